"""The committed agent requests, replayed through the whole pipeline: no error, no image out of place."""

import json
import re
from functools import cache
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from bench.checkpoints import build_checkpoint
from tests.data.replay import make
from tests.support.dialects import Picture
from tests.support.pipeline import OWN, Pipeline, check_contract, shows, write_checkpoint
from tests.support.tokenizers import CACHE

FOLDER = Path(make.__file__).parent
FILES = sorted(path.stem for path in FOLDER.glob("*.json"))


@cache
def recorded(name):
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def every():
    return [request for name in FILES for request in recorded(name)]


@pytest.fixture(scope="module", params=["qwen2_5_vl", "own_glm", "own_kimi", "inkling"])
def pipeline(request, tmp_path_factory):
    """Qwen2.5-VL with its real tokenizer; GLM orders results by their calls, the others as they come."""
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "qwen2_5_vl":
        build_checkpoint("qwen2_5_vl", directory, cache_dir=CACHE)
    else:
        write_checkpoint(next(served for served in OWN if served.name == request.param), directory)
    with Pipeline(directory) as made:
        yield made


@pytest.mark.parametrize("name", FILES)
def test_every_request_has_its_images_in_place(pipeline, name):
    for request in recorded(name):
        response = pipeline.run(request["body"], request["dialect"])
        check_contract(pipeline, response, len(request["images"]))
        wanted = [(i["call"], Picture(*i["size"], tuple(i["colour"]))) for i in request["images"]]
        if pipeline.model.spec.family == "glm5_next":
            wanted.sort(key=lambda owned: call_order(owned[0]))
        owners = [item.tool_call_id for item in response.items]
        assert owners == [call for call, _ in wanted], request["name"]
        for item, (_, shown) in zip(response.items, wanted, strict=True):
            assert shows(response, item.index, shown), (request["name"], item.path)


def call_order(call_id):
    """Sorts `call_1_0`: by round and number; images of the user come first here."""
    return [int(number) for number in re.findall(r"\d+", call_id)]


def test_every_text_of_the_requests_is_in_the_prompt(pipeline):
    for request in every():
        prompt = pipeline.text(pipeline.run(request["body"], request["dialect"], count=True).token_ids)
        for texts in text_groups(request):
            assert all(text in prompt for text in texts), request["name"]


def text_groups(request):
    """The texts of each tool result of a body."""
    body = request["body"]
    if request["dialect"] == "chat":
        contents = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    elif request["dialect"] == "responses":
        contents = [i["output"] for i in body["input"] if i.get("type") == "function_call_output"]
    else:
        blocks = [b for m in body["messages"] if isinstance(m["content"], list) for b in m["content"]]
        contents = [block.get("content") for block in blocks if block["type"] == "tool_result"]
    return [[c] if isinstance(c, str) else [p["text"] for p in c or () if "text" in p] for c in contents]


def test_the_set_is_large_and_mixed():
    requests = every()
    assert len(requests) >= 106
    assert len({request["name"] for request in requests}) == len(requests)
    assert {request["dialect"] for request in requests} == {"chat", "responses", "messages"}
    assert sum(any(image["call"] for image in request["images"]) for request in requests) >= 14
    assert sum(has_several_texts(request) for request in requests) >= 5
    assert sum(any(not "".join(group) for group in text_groups(request)) for request in requests) >= 5


def has_several_texts(request):
    return any(len(group) > 1 for group in text_groups(request))


def test_the_files_are_what_their_script_writes():
    written = {story.name: make.requests(story) for story in make.STORIES}
    assert {name: recorded(name) for name in FILES} == json.loads(json.dumps(written))


def test_the_bodies_are_what_the_sdks_send():
    """Images in tool messages are an extension of engines: the SDK's chat type takes text there."""
    from anthropic.types import MessageParam
    from openai.types.chat import ChatCompletionMessageParam
    from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

    chat, anthropic, responses = map(
        TypeAdapter, (ChatCompletionMessageParam, MessageParam, ResponseCreateParamsNonStreaming)
    )
    for request in every():
        body = request["body"]
        if request["dialect"] == "responses":
            exhaust(responses.validate_python({**body, "stream": False}))
            continue
        for message in body["messages"]:
            if message["role"] == "tool" and isinstance(message["content"], list):
                texts = [part for part in message["content"] if part["type"] == "text"]
                message = {**message, "content": texts}
            exhaust((chat if request["dialect"] == "chat" else anthropic).validate_python(message))


def exhaust(value):
    """Reads lazily validated iterables to their end, so that every entry is checked."""
    if isinstance(value, dict):
        for item in value.values():
            exhaust(item)
    elif not isinstance(value, str | bytes) and hasattr(value, "__iter__"):
        for item in value:
            exhaust(item)
