"""Anthropic Messages: blocks, results in their place, and what is left out."""

import pytest
from patchloom_client.errors import InvalidArgument
from patchloom_client.protocols.anthropic_messages import to_request
from patchloom_proto import preprocess_pb2 as pb

PNG = "iVBORw0KGgo="
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
IMAGE_PART = pb.ContentPart(
    image=pb.ImagePart(source=pb.MediaSource(data=b"\x89PNG\r\n\x1a\n"), media_type="image/png")
)


def text(value):
    return pb.ContentPart(text=pb.TextPart(text=value))


def block(value):
    return {"type": "text", "text": value}


def result(call_id="c", **fields):
    return {"type": "tool_result", "tool_use_id": call_id, **fields}


def convert(*messages, **fields):
    return to_request({"messages": list(messages), **fields})


def converted(role, content):
    return list(convert({"role": role, "content": content}).conversation.messages)


def tool(*parts, call_id="c", **fields):
    return pb.Message(role=pb.ROLE_TOOL, content=parts, tool_call_id=call_id, **fields)


def user(*parts):
    return pb.Message(role=pb.ROLE_USER, content=parts)


def refusal(*messages, **fields):
    with pytest.raises(InvalidArgument) as caught:
        convert(*messages, **fields)
    return caught.value.reason, caught.value.field_path, caught.value.message


@pytest.mark.parametrize("system", ["rules", [block("rules")]])
def test_the_top_level_system_is_the_first_message(system):
    request = convert({"role": "user", "content": "hi"}, system=system)
    assert list(request.conversation.messages) == [
        pb.Message(role=pb.ROLE_SYSTEM, content=[text("rules")]),
        user(text("hi")),
    ]


def test_the_billing_header_block_is_left_out_with_a_warning():
    header = block("x-anthropic-billing-header: cc_version=1; cch=ab12;")
    request = convert({"role": "user", "content": "hi"}, system=[header, block("rules")])
    assert request.conversation.messages[0].content[0] == text("rules")
    assert [(w.reason, w.field_path) for w in request.warnings] == [("BILLING_HEADER", "system[0]")]
    alone = convert({"role": "user", "content": "hi"}, system=[header])
    assert list(alone.conversation.messages) == [user(text("hi"))]


def test_a_later_system_message_keeps_its_place():
    messages = converted("user", "a") + converted("system", [block("b")])
    assert [message.role for message in messages] == [pb.ROLE_USER, pb.ROLE_SYSTEM]


def test_user_content_around_results_keeps_its_position():
    content = [
        block("before"),
        IMAGE,
        result("a", content="1"),
        result("b", content=[IMAGE]),
        block("after"),
    ]
    assert converted("user", content) == [
        user(text("before"), IMAGE_PART),
        tool(text("1"), call_id="a"),
        tool(IMAGE_PART, call_id="b"),
        user(text("after")),
    ]


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}])
def test_an_empty_result_still_answers_its_call(content):
    assert converted("user", [result(**content)]) == [tool()]


def test_texts_and_images_of_a_result_stay_together_in_order():
    content = [block("a"), IMAGE, block("b")]
    assert converted("user", [result(content=content)]) == [tool(text("a"), IMAGE_PART, text("b"))]


def test_an_error_result_is_carried():
    assert converted("user", [result(content="x", is_error=True)]) == [tool(text("x"), is_error=True)]


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ([result(content=[IMAGE, {"type": "document"}])], "[0].content[1]"),
        ([result(content=[{"type": "browser_state"}])], "[0].content[0]"),
        ([block("x"), {"type": "document", "source": {}}], "[1]"),
        ([{"type": "container_upload", "file_id": "f"}], "[0]"),
        ([{"type": "web_search_tool_result"}], "[0]"),
        ([{"type": "image_url", "image_url": "x"}], "[0]"),
        ([result(content=[IMAGE, {"type": "tool_reference", "tool_name": "f"}])], "[0].content[1]"),
        ([{"type": "image", "source": {"type": "file", "file_id": "f"}}], "[0].source"),
        (
            [block("x"), result(content=[block("y"), {"type": "image", "source": {}}])],
            "[1].content[1].source",
        ),
    ],
)
def test_other_blocks_and_sources_are_refused_by_name_where_they_stand(content, path):
    reason, where, message = refusal({"role": "user", "content": "hi"}, {"role": "user", "content": content})
    assert (reason, where) == ("UNSUPPORTED_CONTENT", f"messages[1].content{path}")
    assert "send" in message


@pytest.mark.parametrize("kind", ["tool_result", "image", "server_tool_use", "document"])
def test_an_assistant_holds_no_results_media_or_server_blocks(kind):
    assert refusal({"role": "assistant", "content": [{"type": kind}]})[:2] == (
        "UNSUPPORTED_CONTENT",
        "messages[0].content[0]",
    )


@pytest.mark.parametrize("kind", ["thinking", "redacted_thinking"])
def test_thinking_in_a_result_is_refused(kind):
    content = [result(content=[{"type": kind, "thinking": "hm", "signature": "s"}])]
    assert refusal({"role": "user", "content": content}) == (
        "INVALID_MESSAGE",
        "messages[0].content[0].content[0]",
        "thinking parts require role='assistant'",
    )


def test_an_assistant_turn_is_reasoning_text_and_calls():
    content = [
        {"type": "thinking", "thinking": "a", "signature": "s"},
        {"type": "thinking", "thinking": "b", "signature": "s"},
        block("ok"),
        {"type": "tool_use", "id": "c", "name": "f", "input": {"z": 1, "a": 2.0}},
        {"type": "tool_use", "id": "d", "name": "g", "input": {}},
    ]
    request = convert({"role": "assistant", "content": content})
    assert list(request.conversation.messages) == [
        pb.Message(
            role=pb.ROLE_ASSISTANT,
            reasoning="a\nb",
            content=[text("ok")],
            tool_calls=[
                pb.ToolCall(id="c", name="f", arguments=b'{"z":1,"a":2.0}'),
                pb.ToolCall(id="d", name="g", arguments=b"{}"),
            ],
        )
    ]
    assert not request.warnings


def test_redacted_thinking_is_left_out_with_a_warning():
    content = [{"type": "redacted_thinking", "data": "x"}, block("ok")]
    request = convert({"role": "assistant", "content": content})
    assert list(request.conversation.messages) == [pb.Message(role=pb.ROLE_ASSISTANT, content=[text("ok")])]
    assert [(w.reason, w.field_path) for w in request.warnings] == [
        ("REDACTED_THINKING", "messages[0].content[0]")
    ]


def test_blocks_out_of_the_turn_order_are_moved_with_a_warning():
    content = [
        block("a"),
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "tool_use", "id": "c", "name": "f", "input": {}},
        block("b"),
    ]
    request = convert({"role": "assistant", "content": content})
    assert [(w.reason, w.field_path) for w in request.warnings] == [
        ("REASONING_MOVED", "messages[0].content[1]"),
        ("CONTENT_MOVED", "messages[0].content[3]"),
    ]


@pytest.mark.parametrize("content", [None, "", []])
def test_empty_assistant_content_is_empty_and_kept(content):
    assert converted("assistant", content) == [pb.Message(role=pb.ROLE_ASSISTANT)]


@pytest.mark.parametrize("role", ["user", "system"])
@pytest.mark.parametrize("content", [None, []])
def test_missing_content_of_another_role_is_refused(role, content):
    reason, path, message = refusal({"role": role, "content": content})
    assert (reason, path) == ("INVALID_MESSAGE", "messages[0].content")
    assert message.startswith("missing content")


@pytest.mark.parametrize(
    ("source", "reason", "path"),
    [
        ({"type": "base64", "media_type": "image/png", "data": ""}, "INVALID_IMAGE", ".data"),
        ({"type": "base64", "media_type": "image/png", "data": "a?"}, "INVALID_IMAGE", ".data"),
        (
            {"type": "base64", "data": f"data:image/png;base64,{PNG}"},
            "INVALID_IMAGE",
            ".data",
        ),
        ({"type": "base64"}, "INVALID_MESSAGE", ".data"),
        ({"type": "url", "url": "x.png"}, "UNSUPPORTED_CONTENT", ".url"),
        ({"type": "url"}, "INVALID_MESSAGE", ".url"),
    ],
)
def test_a_bad_source_is_refused_where_it_is_wrong(source, reason, path):
    image = {"type": "image", "source": source}
    content = [result(content=[block("x"), image])]
    assert refusal({"role": "user", "content": content})[:2] == (
        reason,
        f"messages[0].content[0].content[1].source{path}",
    )


def test_a_result_needs_the_id_of_its_call():
    content = [{"type": "tool_result", "content": "x"}]
    assert refusal({"role": "user", "content": content})[:2] == (
        "INVALID_MESSAGE",
        "messages[0].content[0].tool_use_id",
    )


@pytest.mark.parametrize("value", ["{}", [1], 3])
def test_the_input_of_a_call_is_an_object(value):
    content = [{"type": "tool_use", "id": "c", "name": "f", "input": value}]
    assert refusal({"role": "assistant", "content": content})[1] == "messages[0].content[0].input"


def test_a_search_result_becomes_text():
    search = {"type": "search_result", "title": "T", "source": "S", "content": [block("a"), block("b")]}
    expected = text("Title: T\nSource: S\nContent: a\nb")
    assert converted("user", [search]) == [user(expected)]
    assert converted("user", [result(content=[search])]) == [tool(expected)]


def test_tool_references_become_structured_content():
    references = [{"type": "tool_reference", "tool_name": name} for name in ("f", "g")]
    encoded = b'[{"type":"tool_reference","name":"f"},{"type":"tool_reference","name":"g"}]'
    assert converted("user", [result(content=references)]) == [
        tool(pb.ContentPart(structured=pb.StructuredPart(json=encoded)))
    ]


def test_disabled_thinking_is_no_effort():
    hi = {"role": "user", "content": "hi"}
    assert convert(hi, thinking={"type": "disabled"}).render.reasoning_effort == "none"
    enabled = convert(hi, thinking={"type": "enabled", "budget_tokens": 1024})
    assert not enabled.render.HasField("reasoning_effort")


@pytest.mark.parametrize(
    ("field", "value"), [("container", "c_1"), ("mcp_servers", [{"type": "url", "url": "u"}])]
)
def test_server_side_state_and_tools_are_refused(field, value):
    hi = {"role": "user", "content": "hi"}
    assert refusal(hi, **{field: value})[:2] == ("UNSUPPORTED_CONTENT", field)
    assert not convert(hi, **{field: None}).warnings
