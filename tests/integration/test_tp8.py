"""Eight tensor-parallel ranks fed by a running service over shared memory, against transformers alone."""

import base64
import hashlib
import io
import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from patchloom_client.client import Client
from patchloom_client.protocols import PROTOCOLS, apply_options
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer

from bench.checkpoints import build_checkpoint
from tests.integration.runner import launch, tiny_model

ROOT = Path(__file__).resolve().parents[2]
HISTORIES = ROOT / "tests" / "data" / "histories"
DIALECTS = ("chat", "responses", "messages")
NAMES = ("parallel_out_of_order", "three_rounds", "user_images")
SHARED = {"transport": "shared_memory", "positions": True, "shards": launch.RANKS}
MAX_PIXELS = 100_352


@pytest.fixture(scope="module")
def directory():
    return build_checkpoint("qwen2_5_vl", ROOT / ".cache" / "checkpoints" / "qwen2_5_vl")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return tiny_model.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def running(directory, weights):
    with (
        launch.service(directory, "--parity", "pillow13", "--dtype", "float32") as service,
        launch.ranks(weights) as ranks,
        Client(service.address, timeout=60) as client,
    ):
        yield service, ranks, client


@pytest.fixture(scope="module")
def reference(directory, weights):
    return Reference(directory, weights)


class Reference:
    """One unsharded process: transformers' PIL image processor, tokenizer, template and model."""

    def __init__(self, directory, weights):
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.images = AutoImageProcessor.from_pretrained(directory, backend="pil")
        self.template = (directory / "chat_template.jinja").read_text()
        self.model = tiny_model.load(weights, sharded=False)

    def run(self, body, keep, max_pixels=None):
        """(ids, sha256 of the pixels, logits of the last `keep` positions) of a Chat Completions body."""
        messages, images = hf_messages(body)
        text = self.tokenizer.apply_chat_template(
            messages,
            tools=body.get("tools"),
            chat_template=self.template,
            add_generation_prompt=True,
            tokenize=False,
        )
        size = {"shortest_edge": 3136, "longest_edge": max_pixels or 12845056}
        pixels = self.images(images, size=size, return_tensors="pt")
        for t, h, w in pixels["image_grid_thw"].tolist():
            text = text.replace("<|image_pad|>", "<|done|>" * (t * h * w // 4), 1)
        ids = self.tokenizer(text.replace("<|done|>", "<|image_pad|>"), return_tensors="pt")["input_ids"]
        with torch.no_grad():
            out = self.model(
                input_ids=ids,
                mm_token_type_ids=(ids == 151655).int(),
                pixel_values=pixels["pixel_values"],
                image_grid_thw=pixels["image_grid_thw"],
                logits_to_keep=keep,
            )
        return ids[0].tolist(), sha256(pixels["pixel_values"].numpy()), out.logits[0].numpy()


def sha256(array):
    return hashlib.sha256(np.ascontiguousarray(array).view(np.uint8)).hexdigest()


def hf_messages(body):
    """A Chat Completions body as a template takes it, and its images."""
    images, messages = [], []
    for message in body["messages"]:
        made = dict(message)
        content = message.get("content")
        if content is None:
            made["content"] = ""
        elif isinstance(content, list) and all(part["type"] == "text" for part in content):
            made["content"] = (
                " ".join(part["text"] for part in content) if message["role"] == "tool" else content
            )
        elif isinstance(content, list):
            made["content"] = [hf_part(part, images) for part in content]
        if message.get("tool_calls"):
            made["tool_calls"] = [
                {
                    **call,
                    "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])},
                }
                for call in message["tool_calls"]
            ]
        messages.append(made)
    return messages, images


def hf_call(function):
    return {"type": "function", "function": function | {"arguments": json.loads(function["arguments"])}}


def hf_part(part, images):
    if part["type"] != "image_url":
        return part
    data = base64.b64decode(part["image_url"]["url"].partition(",")[2])
    images.append(Image.open(io.BytesIO(data)).convert("RGB"))
    return {"type": "image"}


def history(name):
    return json.loads((HISTORIES / f"{name}.json").read_text())


def screenshots(count, seed):
    """A chat body with large images of different shapes, in user and tool messages."""
    rng = np.random.default_rng(seed)
    parts = []
    for index in range(count):
        height, width = int(rng.integers(200, 700)), int(rng.integers(200, 700))
        levels = rng.integers(0, 256, (height // 20 + 1, width // 20 + 1, 3), np.uint8)
        image = Image.fromarray(levels).resize((width, height), Image.Resampling.BICUBIC)
        file = io.BytesIO()
        image.save(file, "PNG")
        url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        parts += [
            {"type": "text", "text": f"image {index}"},
            {"type": "image_url", "image_url": {"url": url}},
        ]
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return {
        "messages": [
            {"role": "user", "content": parts[:4]},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": parts[4:]},
        ]
    }


def ask(client, dialect, body, **options):
    made = PROTOCOLS[dialect](body)
    apply_options(made, SHARED | options)
    made.model = ""
    return client.preprocess(made)


def forward(ranks, response, keep=2, shared_vision=False):
    """The answers of the ranks, which must agree, and the logits."""
    command = {"do": "forward", "keep": keep, "shared_vision": shared_vision}
    answers, logits = ranks.send(command, response.message)
    assert len({answer["logits"] for answer in answers}) == 1
    assert [(a["copied"], a["handle"]) for a in answers] == [(False, True)] * launch.RANKS
    return answers, np.frombuffer(logits, np.float64).reshape(answers[0]["shape"])


def until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_text_model_is_really_sharded(running):
    _, ranks, _ = running
    assert [(fact["local_rows"], fact["rows"]) for fact in ranks.facts] == [(8, 64)] * launch.RANKS


@pytest.mark.parametrize("shared_vision", [False, True])
def test_logits_and_pixels_equal_one_unsharded_process_with_transformers_own(
    running, reference, shared_vision
):
    service, ranks, client = running
    body = screenshots(5, seed=1)
    before = service.metrics().get("patchloom_decodes_total", 0)
    with ask(client, "chat", body, max_pixels=MAX_PIXELS) as response:
        answers, logits = forward(ranks, response, keep=6, shared_vision=shared_vision)
        ids, pixels, expected = reference.run(body, keep=6, max_pixels=MAX_PIXELS)
        assert response.token_ids == ids
        assert {answer["pixels"] for answer in answers} == {pixels}
        np.testing.assert_allclose(logits, expected, rtol=1e-9, atol=0)
        assert service.metrics()["patchloom_decodes_total"] - before == (0 if shared_vision else 5)
        if shared_vision:
            assert sorted(answer["vision_items"] for answer in answers) == [0, 0, 0, 1, 1, 1, 1, 1]


def test_fifty_requests_in_three_dialects_cached_and_not(running, reference):
    service, ranks, client = running
    first = service.metrics()
    expected = {name: reference.run(history(name)["chat"], keep=1) for name in NAMES}
    keys, asked = set(), 0
    for index in range(50):
        name, dialect = NAMES[index % 3], DIALECTS[index // 3 % 3]
        with ask(client, dialect, history(name)[dialect]) as response:
            keys |= {item.content_key for item in response.items}
            asked += len(response.items)
            answers, logits = forward(ranks, response, keep=1)
            ids, pixels, wanted = expected[name]
            assert response.token_ids == ids
            assert {answer["pixels"] for answer in answers} == {pixels}
            np.testing.assert_allclose(logits, wanted, rtol=1e-9, atol=0)
    after = service.metrics()
    counted = {
        kind: after[f"patchloom_{kind}_total"] - first.get(f"patchloom_{kind}_total", 0)
        for kind in ("decodes", "cache_misses", "cache_hits", "leases_granted")
    }
    assert counted == {
        "decodes": len(keys),
        "cache_misses": len(keys),
        "cache_hits": asked - len(keys),
        "leases_granted": 50,
    }
    until(lambda: service.metrics()["patchloom_leases"] == 0)


def test_eight_readers_share_one_memory_and_a_rank_that_dies_while_reading_leaks_nothing(running):
    """The last test: the group of ranks does not outlive it."""
    service, ranks, client = running
    with ask(client, "chat", screenshots(3, seed=2), max_pixels=MAX_PIXELS) as response:
        answers, _ = ranks.send({"do": "die", "rank": 7}, response.message, without=7)
        assert len({answer["pixels"] for answer in answers}) == 1
        until(lambda: service.metrics()["patchloom_shm_readers"] == 1)
        assert service.metrics()["patchloom_leases"] == 1
    until(lambda: service.metrics()["patchloom_leases"] == 0)
    metrics = service.metrics()
    assert metrics["patchloom_shm_bytes"] == metrics["patchloom_shm_idle_bytes"]
    assert metrics["patchloom_shm_readers"] == 0
