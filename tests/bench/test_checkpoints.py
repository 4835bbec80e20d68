import ast
import json
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer

from bench import checkpoints, rank_tokenizer
from bench.checkpoints import build_checkpoint

IMAGE_TOKENS = {
    "qwen2_vl": "<|image_pad|>",
    "qwen2_5_vl": "<|image_pad|>",
    "qwen3_vl": "<|image_pad|>",
    "qwen3_5": "<|image_pad|>",
    "internvl3": "<IMG_CONTEXT>",
    "glm5_next": "<|image|>",
    "kimi_k25": "<|media_pad|>",
    "inkling": "<|unused_200054|>",
}
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}},
}
HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "what is "}, {"type": "image"}]},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "look", "arguments": {"at": "x"}}},
            {"id": "b", "type": "function", "function": {"name": "look", "arguments": {"at": "y"}}},
        ],
    },
    {"role": "tool", "tool_call_id": "a", "name": "look", "content": [{"type": "image"}]},
    {"role": "tool", "tool_call_id": "b", "name": "look", "content": "nothing"},
]


def read(path: Path) -> dict:
    return json.loads(path.read_text())


@pytest.mark.parametrize("family", checkpoints.families())
def test_a_directory_has_the_files_that_preprocessing_reads(family, tmp_path):
    names = {path.name for path in build_checkpoint(family, tmp_path).iterdir()}
    assert names >= {
        *("config.json", "preprocessor_config.json"),
        *("tokenizer.json", "tokenizer_config.json"),
    }
    assert ("chat_template.jinja" in names) == (family != "inkling")


@pytest.mark.parametrize("family", IMAGE_TOKENS)
def test_the_image_token_id_of_the_config_is_that_of_the_tokenizer(family, tmp_path):
    build_checkpoint(family, tmp_path)
    added = {t["content"]: t["id"] for t in read(tmp_path / "tokenizer.json")["added_tokens"]}
    assert read(tmp_path / "config.json")["image_token_id"] == added[IMAGE_TOKENS[family]]


@pytest.mark.parametrize("family", [f for f in checkpoints.families() if f != "internvl_chat"])
def test_transformers_knows_the_architecture(family, tmp_path):
    config = AutoConfig.from_pretrained(build_checkpoint(family, tmp_path))
    assert config.architectures[0].removesuffix("ForConditionalGeneration") in type(config).__name__


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("qwen2_5_vl", "Qwen2VLImageProcessorPil"),
        ("qwen3_vl", "Qwen2VLImageProcessorPil"),
        ("internvl3", "GotOcr2ImageProcessorPil"),
        ("glm5_next", "Glm5NextImageProcessorPil"),
    ],
)
def test_transformers_loads_the_image_processor(family, kind, tmp_path):
    processor = AutoImageProcessor.from_pretrained(build_checkpoint(family, tmp_path), backend="pil")
    assert type(processor).__name__ == kind


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_5", "internvl3", "glm5_next", "kimi_k25"])
def test_our_template_renders_images_of_users_and_tools(family, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(build_checkpoint(family, tmp_path))
    prompt = tokenizer.apply_chat_template(HISTORY, tools=[TOOL], tokenize=False, add_generation_prompt=True)
    assert prompt.count(IMAGE_TOKENS[family]) == 2
    assert prompt.index("what is ") < prompt.index(IMAGE_TOKENS[family])
    assert prompt.rindex(IMAGE_TOKENS[family]) < prompt.index("nothing")


def test_our_qwen_template_puts_results_of_one_round_into_one_user_turn(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(build_checkpoint("qwen2_5_vl", tmp_path))
    prompt = tokenizer.apply_chat_template(HISTORY, tokenize=False, add_generation_prompt=True)
    assert prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nwhat is <|vision_start|><|image_pad|><|vision_end|><|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "look", "arguments": {"at": "x"}}\n</tool_call>'
        '\n<tool_call>\n{"name": "look", "arguments": {"at": "y"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n"
        "<tool_response>\n<|vision_start|><|image_pad|><|vision_end|>\n</tool_response>\n"
        "<tool_response>\nnothing\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_caller_may_bring_a_template_and_settings(tmp_path):
    build_checkpoint("inkling", tmp_path, template="{{ 1 }}", image_processor={"rescale_image_frac": 2.0})
    assert (tmp_path / "chat_template.jinja").read_text() == "{{ 1 }}"
    assert read(tmp_path / "preprocessor_config.json")["rescale_image_frac"] == 2.0


def test_an_unknown_family_is_refused_with_those_that_are_known(tmp_path):
    with pytest.raises(ValueError, match="qwen2_vl"):
        build_checkpoint("llama", tmp_path)


@pytest.mark.parametrize("module", [checkpoints, rank_tokenizer])
def test_building_needs_nothing_of_the_service(module):
    tree = ast.parse(Path(module.__file__).read_text())
    names = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    assert [name for name in names if name.startswith("patchloom")] == []
