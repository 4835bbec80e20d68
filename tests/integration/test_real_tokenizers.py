"""Real tokenizers and processors: ids equal those of transformers, expanded by the processor's own counts."""

import io

import numpy as np
import pytest
import transformers
from PIL import Image

from bench.checkpoints import build_checkpoint
from tests.support.dialects import Call, Picture, Result, Session, Turn, write
from tests.support.pipeline import Pipeline
from tests.support.tokenizers import CACHE

RED, BLUE = Picture(64, 300, (255, 1, 2)), Picture(333, 77, (3, 4, 255))
# The family, the official template, the placeholder, the image processor that runs on Pillow, and the order
# in which results stand in the prompt.
CASES = {
    "glm_5_3_flash": ("glm5_next", "<|image|>", "Glm5NextImageProcessorPil", (RED, BLUE)),
    "qwen3_vl": ("qwen3_vl", "<|image_pad|>", "Qwen2VLImageProcessorPil", (BLUE, RED)),
    "qwen3_5": ("qwen3_5", "<|image_pad|>", "Qwen2VLImageProcessorPil", (BLUE, RED)),
}
SCHEMA = {"type": "object", "properties": {"page": {"type": "integer"}}, "required": ["page"]}
SESSION = Session(
    [
        Turn("user", "Compare the two pages, 请比较。"),
        Turn(
            "assistant",
            "Looking.",
            [Call("call_a", "screenshot", {"page": 1}), Call("call_b", "screenshot", {"page": 2})],
            [Result("call_b", ["page two:", BLUE]), Result("call_a", ["page one:", RED, "end"])],
        ),
        Turn("user", "Which one is warmer?"),
    ],
    system="You drive a browser.",
    tools=[("screenshot", "Takes a screenshot.", SCHEMA)],
)


def template_messages():
    """The history as transformers' templates take it."""
    messages = write(SESSION, "chat")["messages"]
    for message in messages:
        if isinstance(message["content"], list):
            message["content"] = [
                part if part["type"] == "text" else {"type": "image"} for part in message["content"]
            ]
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = {"page": 1 if call["id"] == "call_a" else 2}
    return messages


@pytest.mark.parametrize("name", CASES)
def test_ids_and_pixels_are_those_of_the_tokenizer_and_the_processor(name, official, tmp_path):
    family, placeholder, processor_class, order = CASES[name]
    build_checkpoint(family, tmp_path, template=official(name), cache_dir=CACHE)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    processor = getattr(transformers, processor_class).from_pretrained(tmp_path)
    images = [Image.open(io.BytesIO(one.data)) for one in order]
    wanted = processor(images, return_tensors="np")
    counts = iter(np.prod(wanted["image_grid_thw"], axis=1) // 4)
    slot = tokenizer.convert_tokens_to_ids(placeholder)
    plain = tokenizer.apply_chat_template(
        template_messages(),
        tools=write(SESSION, "chat")["tools"],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    expanded = [token for one in plain for token in [one] * (int(next(counts)) if one == slot else 1)]
    with Pipeline(tmp_path) as pipeline:
        response = pipeline.run(write(SESSION, "chat"), encoding="model", parity="pillow13")
    assert response.token_ids == expanded
    assert np.array_equal(response.tensors["image_grid_thw"].array, wanted["image_grid_thw"])
    assert np.array_equal(response.tensors["pixel_values"].array, wanted["pixel_values"])
    assert [item.tool_call_id for item in response.items] == [
        "call_a" if o is RED else "call_b" for o in order
    ]
