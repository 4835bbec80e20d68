"""Public fault reports about tool images, order, counts, literals and content shape: the right value of each.

The report stands behind each test's name.
"""

import json
import re

import numpy as np
import patchloom_client.errors as client
import pytest
from patchloom_client.integrations.trl import make_tool_result
from patchloom_service import errors
from PIL import Image

from bench.checkpoints import build_checkpoint
from tests.support.dialects import DIALECTS, Call, Picture, Result, Session, Turn, picture, write
from tests.support.pipeline import (
    OFFICIAL,
    OWN,
    REFUSING,
    ZOO_TOKENS,
    Pipeline,
    Served,
    check_contract,
    shows,
    with_template,
    write_checkpoint,
    zoo_source,
)
from tests.support.tokenizers import CACHE

RED, BLUE = Picture(56, 84, (255, 1, 2)), Picture(84, 56, (3, 4, 255))
SERVED = {served.name: served for served in (*OWN, *OFFICIAL, *REFUSING)} | {
    "string_only": Served("string_only", "qwen2_5_vl", zoo_source("string_only"), tokens=ZOO_TOKENS)
}
IMAGE_PAD = 151655


@pytest.fixture(scope="module")
def serve(tmp_path_factory, request):
    """Pipelines by name, each loaded once."""
    made = {}

    def get(name, **facts):
        key = (name, *sorted(facts.items()))
        if key not in made:
            served = SERVED[name]
            if served in (*OFFICIAL, *REFUSING):
                served = with_template(served, request.getfixturevalue("official"))
            directory = tmp_path_factory.mktemp(name)
            made[key] = Pipeline(write_checkpoint(served, directory), **facts)
        return made[key]

    yield get
    for pipeline in made.values():
        pipeline.__exit__(None, None, None)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """Qwen2.5-VL with its real tokenizer."""
    directory = build_checkpoint("qwen2_5_vl", tmp_path_factory.mktemp("qwen"), cache_dir=CACHE)
    with Pipeline(directory) as pipeline:
        yield pipeline


def text(value):
    return {"type": "text", "text": value}


def image(value):
    return {"type": "image_url", "image_url": {"url": value.uri}}


def user(*content):
    return {"messages": [{"role": "user", "content": list(content)}]}


def result(*content, call_id="call_a"):
    """A session with one call and its result."""
    calls = [Call(call_id, "get_image")]
    return Session([Turn("user", "look"), Turn("assistant", None, calls, [Result(call_id, list(content))])])


def around(pipeline, response, index=0):
    """The prompt before and after an item."""
    span, ids = response.items[index].span, response.token_ids
    return pipeline.text(ids[: span.offset]), pipeline.text(ids[span.offset + span.length :])


def test_an_image_alone_in_a_tool_message_is_one_run_in_its_block(serve):  # vllm-project/vllm#43203
    kimi = serve("own_kimi")
    response = kimi.run(write(result(RED, call_id="functions.get_image:0"), "chat"))
    check_contract(kimi, response, 1)
    before, after = around(kimi, response)
    assert before.endswith("## Return of functions.get_image:0\n<|media_begin|>image<|media_content|>")
    assert after.startswith("<|media_end|><|im_end|>")


def test_a_template_that_drops_tool_images_is_refused_by_part(serve):  # vllm-project/vllm#41452
    with pytest.raises(errors.TemplateRefused) as error:
        serve("gemma4").run(write(result("A", RED), "chat"))
    assert error.value.field_path == "messages[2].content[1]"
    assert "no placeholder" in error.value.message


def test_ids_and_pixels_come_from_one_pass(qwen):  # huggingface/trl#5663
    response = qwen.run(write(result(RED, "seen", BLUE), "chat"))
    grids = response.tensors["image_grid_thw"].array
    assert int(np.prod(grids, axis=1).sum()) // 4 == response.token_ids.count(IMAGE_PAD) == 12


@pytest.mark.parametrize("wrap", [lambda i: i, lambda i: [text("seen"), {"type": "image", "image": i}]])
def test_an_image_object_of_a_tool_never_becomes_text(qwen, wrap):  # huggingface/trl#5323
    parts = make_tool_result(wrap(Image.new("RGB", (84, 56), RED.colour)))
    body = write(result("x"), "chat")
    body["messages"][2]["content"] = parts
    response = qwen.run(body)
    prompt = qwen.text(response.token_ids)
    assert "PIL." not in prompt
    assert " at 0x" not in prompt
    assert [shows(response, item.index, RED) for item in response.items] == [True]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_image_as_a_json_string_stays_text(qwen, dialect):  # apache/maka#5277
    string = json.dumps([{"type": "image", "data": RED.base64}])
    session = Session([Turn("user", "q"), Turn("assistant", None, [Call("a")], [Result("a", string)])])
    response = qwen.run(write(session, dialect), dialect)
    assert response.items == ()
    assert string in qwen.text(response.token_ids)


def test_the_size_of_text_has_a_limit(serve):  # apache/maka#5277
    small = serve("own_qwen", max_text_bytes=1000)
    with pytest.raises(errors.LimitExceeded, match="at most 1000"):
        small.run(user(text("iVBOR" * 1000)))


def test_an_unsupported_block_in_a_tool_result_is_named(qwen):  # anomalyco/opencode#28861
    body = write(result("A", RED), "messages")
    assert len(qwen.run(body, "messages").items) == 1
    body["messages"][2]["content"][0]["content"].append({"type": "hologram"})
    with pytest.raises(client.UnsupportedContent, match="hologram"):
        qwen.run(body, "messages")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_as_many_media_leave_the_adapter_as_enter_it(qwen, dialect):  # ggml-org/llama.cpp#22536
    session = result("seen", RED, BLUE)
    response = qwen.run(write(session, dialect), dialect)
    assert len(response.items) == len(session.pictures())


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("glm_5_3_flash", [RED, BLUE]),
        ("own_glm", [RED, BLUE]),
        ("own_qwen", [BLUE, RED]),
        ("inkling", [BLUE, RED]),
    ],
)
def test_a_template_that_orders_results_takes_the_images_along(serve, name, wanted):  # dynamo#15152
    pipeline = serve(name)
    results = [Result("b", ["blue:", BLUE]), Result("a", ["red:", RED])]
    session = Session([Turn("user", "q"), Turn("assistant", None, [Call("a"), Call("b")], results)])
    response = pipeline.run(write(session, "chat"))
    assert [shows(response, n, one) for n, one in enumerate(wanted)] == [True, True]
    for n, one in enumerate(wanted):
        said = re.findall("(red|blue):", around(pipeline, response, n)[0])[-1]
        assert said == ("red" if one is RED else "blue")


def test_call_ids_survive_and_ambiguous_results_are_left_alone(serve):  # DFlash2-EXL3#10
    results = [Result("call_b", "B"), Result("call_a", "A")]
    session = Session([Turn("user", "q"), Turn("assistant", None, [Call("call_a"), Call("call_b")], results)])
    kimi = serve("own_kimi")
    prompt = kimi.text(kimi.run(write(session, "chat")).token_ids)
    assert re.findall(r"Return of (call_\w)\n(\w)", prompt) == [("call_b", "B"), ("call_a", "A")]
    twice = Session(
        [
            Turn("user", "q"),
            Turn("assistant", None, [Call("x"), Call("x")], [Result("x", "B"), Result("x", "A")]),
        ]
    )
    glm = serve("own_glm")
    prompt = glm.text(glm.run(write(twice, "chat")).token_ids)
    assert re.findall("<tool_response>(.)</tool_response>", prompt) == ["B", "A"]


@pytest.mark.parametrize(
    "name", ["own_qwen", "own_internvl", "own_internvl_chat", "own_glm", "own_kimi", "inkling"]
)
def test_images_stay_between_the_texts_of_their_message(serve, name):  # OpenGVLab/InternVL#1065
    pipeline = serve(name)
    response = pipeline.run(user(text("«A»"), image(RED), text("«B»"), image(BLUE), text("«C»")))
    assert [shows(response, 0, RED), shows(response, 1, BLUE)] == [True, True]
    for index, (before, after) in enumerate([("A", "B"), ("B", "C")]):
        left, right = around(pipeline, response, index)
        assert re.findall("«(.)»", left)[-1] == before
        assert re.findall("«(.)»", right)[0] == after


def test_five_images_in_one_message_are_five_runs(qwen):  # vllm-project/vllm#15338
    response = qwen.run(user(*(image(picture(n)) for n in range(5))))
    check_contract(qwen, response, 5)
    assert [shows(response, n, picture(n)) for n in range(5)] == [True] * 5


def test_one_placeholder_too_many_is_refused_and_the_service_goes_on(qwen):  # vllm-project/vllm#15764
    whole = qwen.run(user(image(RED)))
    media = [{"type": "image", "data": RED.base64}]
    body = {"token_ids": [*whole.token_ids, IMAGE_PAD], "media": media}
    with pytest.raises(errors.ContractViolation) as error:
        qwen.run(body, "tokens")
    assert "1 items" in error.value.message
    again = qwen.run({"token_ids": whole.token_ids, "media": media}, "tokens")
    assert again.token_ids == whole.token_ids


def test_a_run_of_another_length_is_refused_with_both_numbers(qwen):  # vllm-project/vllm#15185
    ids = qwen.run(user(image(RED))).token_ids
    ids.remove(IMAGE_PAD)
    with pytest.raises(errors.ContractViolation, match=r"5 placeholder.*exactly 6"):
        qwen.run({"token_ids": ids, "media": [{"type": "image", "data": RED.base64}]}, "tokens")


def test_a_large_image_is_as_many_ids_as_features(tmp_path):  # vllm-project/vllm-ascend#6934
    served = Served("kimi", "kimi_k25", image_processor={"max_patches": 20_000})
    with Pipeline(write_checkpoint(served, tmp_path)) as pipeline:
        response = pipeline.run(user(image(Picture(1820, 1820, (9, 8, 7)))))
        check_contract(pipeline, response, 1)
    assert response.items[0].token_count == response.tensors["pixel_values"].shape[0] // 4 == 4225


@pytest.mark.parametrize("name", ["string_only", "qwen2_5_text"])
def test_a_template_without_a_slot_says_that_it_has_none(serve, name):  # ggml-org/llama.cpp#21022
    with pytest.raises(errors.TemplateRefused, match="template") as error:
        serve(name).run(user(text("look"), image(RED)))
    assert error.value.field_path == "messages[0].content[1]"


def test_a_typed_placeholder_is_text_and_the_run_stands_behind_it(qwen):  # vllm-project/vllm#57740
    response = qwen.run(user(text("what does <|image_pad|> mean?"), image(RED)))
    check_contract(qwen, response, 1)
    before, _ = around(qwen, response)
    assert "what does <|image_pad|> mean?" in before
    assert response.token_ids.count(IMAGE_PAD) == 6


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_fullwidth_placeholder_is_text_now_and_in_every_later_turn(  # sgl-project/sglang#39274
    tmp_path_factory, dialect
):
    token = "<｜deepseek_image｜>"
    served = Served("deepseek", "qwen2_5_vl", tokens=(token,))
    turns = [Turn("user", f"what is {token}?")]
    with Pipeline(write_checkpoint(served, tmp_path_factory.mktemp("deepseek"))) as pipeline:
        for turn in range(3):
            response = pipeline.run(write(Session(turns), dialect), dialect)
            assert response.items == ()
            assert pipeline.model.tokenizer.control_id(token) not in response.token_ids
            assert pipeline.text(response.token_ids).count(token) == turn + 1
            turns += [Turn("assistant", "A token."), Turn("user", f"again, {token}")]


def test_a_literal_in_string_tool_content_and_system_text_is_text(  # sgl-project/sglang#32960
    tmp_path_factory,
):
    token = "<|kimi_image_placeholder|>"
    fenced = f"```\n{token} and <|media_pad|>\n```"
    served = Served("kimi", "kimi_k25", tokens=(token,))
    session = Session(
        [Turn("user", "q"), Turn("assistant", None, [Call("a")], [Result("a", fenced)])], system=fenced
    )
    with Pipeline(write_checkpoint(served, tmp_path_factory.mktemp("kimi"))) as pipeline:
        for dialect in DIALECTS:
            response = pipeline.run(write(session, dialect), dialect)
            assert response.items == ()
            check_contract(pipeline, response, 0)
            assert pipeline.text(response.token_ids).count(fenced) == 2


@pytest.mark.parametrize(
    "marker",
    ["<__media__>", "<|media|>", "".join(map(chr, range(0xF0000, 0xF0400))), "\U0010fffd", "\\udb80\\udc00"],
)
def test_no_text_meets_a_marker_of_ours(qwen, marker):  # ggml-org/llama.cpp#21955
    response = qwen.run(user(text(f"{marker}A"), image(RED), text(f"B<|im_end|>{marker}"), image(BLUE)))
    check_contract(qwen, response, 2)
    assert [shows(response, 0, RED), shows(response, 1, BLUE)] == [True, True]
    prompt = qwen.text(response.token_ids)
    assert f"{marker}A<|vision_start|>" in prompt
    assert f"B<|im_end|>{marker}<|vision_start|>" in prompt


def test_other_control_tokens_stand_only_where_the_template_puts_them(serve):  # ggml-org/llama.cpp#24382
    gemma = serve("gemma4")
    turn = gemma.model.tokenizer.control_id("<|turn>")
    plain, typed = (gemma.run(user(text(word))).token_ids for word in ("AxB", "A<|turn>B"))
    assert typed.count(turn) == plain.count(turn) > 0
    assert "A<|turn>B" in gemma.text(typed)


@pytest.mark.parametrize("name", ["string_only", "minicpmv4_5_fallback", "own_internvl_chat"])
def test_text_parts_for_a_template_of_strings_are_joined_by_a_space(serve, name):  # OpenGVLab/InternVL#726
    pipeline = serve(name)
    prompts = set()
    for dialect in DIALECTS:
        response = pipeline.run(write(result("one", "two"), dialect), dialect)
        prompts.add(pipeline.text(response.token_ids))
    assert len(prompts) == 1
    assert "one two" in prompts.pop()


def test_inkling_writes_each_text_as_its_own_block(serve):  # OpenGVLab/InternVL#726
    pipeline = serve("inkling")
    prompt = pipeline.text(pipeline.run(write(result("one", "two"), "messages"), "messages").token_ids)
    block = "<|message_tool|>get_image<|content_text|>{}<|end_message|>"
    assert block.format("one") + block.format("two") in prompt


@pytest.mark.parametrize("name", [served.name for served in (*OWN, *OFFICIAL)])
def test_null_content_is_the_empty_string(serve, name):  # vllm-project/vllm#54337
    pipeline = serve(name)
    ids = []
    for content in (None, ""):
        body = write(result("done"), "chat")
        body["messages"][1]["content"] = content
        ids.append(pipeline.run(body).token_ids)
    assert ids[0] == ids[1]
    assert "None" not in pipeline.text(ids[0])


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_6", "own_glm", "glm_5_3_flash"])
def test_arguments_reach_the_template_as_a_mapping(serve, name):  # QwenLM/Qwen3-Coder#444
    pipeline = serve(name)
    body = write(result("done"), "chat")
    body["messages"][1]["tool_calls"][0]["function"]["arguments"] = '{"a": 3, "b": 18}'
    prompt = re.sub(r"\s+", " ", pipeline.text(pipeline.run(body).token_ids))
    shapes = [
        "<parameter=a> 3 </parameter> <parameter=b> 18 </parameter>",
        "<arg_key>a</arg_key><arg_value>3</arg_value><arg_key>b</arg_key><arg_value>18</arg_value>",
    ]
    assert any(shape in prompt for shape in shapes)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_tools_are_in_the_prompt_with_and_without_an_image(qwen, dialect):  # InternLM/lmdeploy#4831
    schema = {"type": "object", "properties": {"zoom_level": {"type": "integer"}}}
    for content in (["look"], ["look", RED]):
        session = Session([Turn("user", content)], tools=[("magnify", "Zooms in.", schema)])
        prompt = qwen.text(qwen.run(write(session, dialect), dialect).token_ids)
        assert "magnify" in prompt
        assert '"zoom_level": {"type": "integer"}' in prompt


def test_an_image_in_a_function_call_output_is_one_run(qwen):  # sgl-project/sglang#34927
    response = qwen.run(write(result("seen", RED), "responses"), "responses", show_messages=True)
    check_contract(qwen, response, 1)
    message = response.message.messages[2]
    assert [part.WhichOneof("part") for part in message.content] == ["text", "image"]
    assert message.tool_call_id == "call_a"


@pytest.mark.parametrize(
    "source", [{}, {"image_url": {"url": "data:,"}}, {"image_url": 7}, {"image_url": None}]
)
def test_an_image_url_that_is_no_string_is_an_error_with_its_path(qwen, source):  # llama.cpp#23380
    body = write(result("seen"), "responses")
    body["input"][2]["output"].append({"type": "input_image", **source})
    with pytest.raises(client.InvalidArgument) as error:
        qwen.run(body, "responses")
    assert error.value.status == "INVALID_ARGUMENT"
    assert error.value.field_path.startswith("input[2].output[1]")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_empty_text_beside_an_image_adds_no_tokens(qwen, dialect):  # anthropics/claude-code#57245
    ids = [
        qwen.run(write(Session([Turn("user", content)]), dialect), dialect).token_ids
        for content in (["", RED], [RED])
    ]
    assert ids[0] == ids[1]
