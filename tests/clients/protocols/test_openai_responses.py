"""Responses: items become turns."""

import pytest
from patchloom_client.errors import InvalidArgument
from patchloom_client.protocols.openai_responses import to_request
from patchloom_proto import preprocess_pb2 as pb

URI = "data:image/png;base64,iVBORw0KGgo="
IMAGE_PART = pb.ContentPart(
    image=pb.ImagePart(source=pb.MediaSource(data=b"\x89PNG\r\n\x1a\n"), media_type="image/png")
)
USER = {"role": "user", "content": "go"}


def text(value):
    return pb.ContentPart(text=pb.TextPart(text=value))


def call(name, call_id="c"):
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"}


def output(value, call_id="c"):
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def reasoning(value):
    content = [{"type": "reasoning_text", "text": value}]
    return {"type": "reasoning", "id": "rs", "summary": [], "content": content}


def said(value):
    content = [{"type": "output_text", "text": value, "annotations": []}]
    return {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "status": "completed",
        "content": content,
    }


def convert(*items, **fields):
    return to_request({"input": list(items), **fields})


def spoken(*items):
    """(role, reasoning, texts, call ids) of each message."""
    names = {pb.ROLE_USER: "user", pb.ROLE_ASSISTANT: "assistant", pb.ROLE_TOOL: "tool"}
    return [
        (
            names[message.role],
            message.reasoning,
            "".join(part.text.text for part in message.content),
            "".join(tool_call.id for tool_call in message.tool_calls) or message.tool_call_id,
        )
        for message in convert(*items).conversation.messages
    ]


def refusal(*items, **fields):
    with pytest.raises(InvalidArgument) as caught:
        convert(*items, **fields)
    return caught.value.reason, caught.value.field_path, caught.value.message


def test_a_string_is_a_user_message_and_instructions_come_first():
    request = to_request({"instructions": "rules", "input": "hi"})
    assert list(request.conversation.messages) == [
        pb.Message(role=pb.ROLE_SYSTEM, content=[text("rules")]),
        pb.Message(role=pb.ROLE_USER, content=[text("hi")]),
    ]


@pytest.mark.parametrize("kind", [{}, {"type": "message"}])
@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("user", pb.ROLE_USER),
        ("system", pb.ROLE_SYSTEM),
        ("developer", pb.ROLE_SYSTEM),
        ("assistant", pb.ROLE_ASSISTANT),
    ],
)
def test_an_item_with_a_role_is_a_message(kind, role, expected):
    request = convert({**kind, "role": role, "content": [{"type": "input_text", "text": "x"}]})
    assert list(request.conversation.messages) == [pb.Message(role=expected, content=[text("x")])]


def test_consecutive_calls_are_one_turn_with_what_stands_before_them():
    assert spoken(USER, reasoning("hm"), said("ok"), call("f", "a"), call("f", "b")) == [
        ("user", "", "go", ""),
        ("assistant", "hm", "ok", "ab"),
    ]


def test_an_output_between_calls_makes_two_rounds():
    assert spoken(USER, call("f", "a"), output("1", "a"), call("f", "b"), output("2", "b")) == [
        ("user", "", "go", ""),
        ("assistant", "", "", "a"),
        ("tool", "", "1", "a"),
        ("assistant", "", "", "b"),
        ("tool", "", "2", "b"),
    ]


def test_outputs_stay_in_item_order_under_their_ids():
    items = [USER, call("f", "a"), call("f", "b"), output("2", "b"), output("1", "a")]
    assert spoken(*items)[2:] == [("tool", "", "2", "b"), ("tool", "", "1", "a")]


def test_two_assistant_messages_stay_two_and_only_the_second_takes_the_calls():
    assert spoken(said("one"), said("two"), call("f", "a")) == [
        ("assistant", "", "one", ""),
        ("assistant", "", "two", "a"),
    ]


def test_a_message_behind_calls_opens_a_new_turn():
    assert spoken(call("f", "a"), said("done")) == [
        ("assistant", "", "", "a"),
        ("assistant", "", "done", ""),
    ]


def test_reasoning_behind_a_message_belongs_to_the_next_message():
    assert spoken(said("one"), reasoning("hm"), said("two")) == [
        ("assistant", "", "one", ""),
        ("assistant", "hm", "two", ""),
    ]


def test_reasoning_between_calls_joins_their_turn_with_a_warning():
    items = [reasoning("r1"), call("f", "a"), reasoning("r2"), call("f", "b"), output("1", "a")]
    assert spoken(*items) == [("assistant", "r1\nr2", "", "ab"), ("tool", "", "1", "a")]
    assert [(w.reason, w.field_path) for w in convert(*items).warnings] == [("REASONING_MOVED", "input[2]")]


def test_reasoning_alone_keeps_its_place():
    assert spoken(said("one"), reasoning("hm"), USER) == [
        ("assistant", "", "one", ""),
        ("assistant", "hm", "", ""),
        ("user", "", "go", ""),
    ]


def test_empty_reasoning_is_dropped_and_a_summary_stands_in_for_missing_reasoning():
    empty = {"type": "reasoning", "id": "rs", "summary": []}
    summary = [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]
    assert spoken(empty, call("f", "a")) == [("assistant", "", "", "a")]
    assert spoken({**empty, "summary": summary}, said("x")) == [("assistant", "a\nb", "x", "")]


def test_a_summary_beside_the_reasoning_is_left_out_with_a_warning():
    item = {**reasoning("full"), "summary": [{"type": "summary_text", "text": "short"}]}
    assert spoken(item, said("x")) == [("assistant", "full", "x", "")]
    assert [(w.reason, w.field_path) for w in convert(item, said("x")).warnings] == [
        ("REASONING_SUMMARY", "input[0].summary")
    ]


def test_encrypted_reasoning_alone_is_refused_and_beside_text_it_is_a_warning():
    alone = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "gAAAA"}
    assert refusal(alone)[:2] == ("UNSUPPORTED_CONTENT", "input[0].encrypted_content")
    request = convert({**reasoning("hm"), "encrypted_content": "gAAAA"}, said("x"))
    assert [w.reason for w in request.warnings] == ["ENCRYPTED_REASONING"]


@pytest.mark.parametrize("detail", [{}, {"detail": None}, {"detail": "auto"}])
def test_an_output_array_with_text_and_image_is_one_tool_message(detail):
    value = [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": URI, **detail},
    ]
    assert list(convert(USER, call("f"), output(value)).conversation.messages)[2] == pb.Message(
        role=pb.ROLE_TOOL, content=[text("a"), IMAGE_PART], tool_call_id="c"
    )


@pytest.mark.parametrize("value", [None, "", []])
def test_an_empty_output_still_answers_its_call(value):
    message = convert(USER, call("f"), output(value)).conversation.messages[2]
    assert message == pb.Message(role=pb.ROLE_TOOL, tool_call_id="c")


def test_a_computer_screenshot_is_a_tool_message_with_an_image():
    items = [
        {
            "type": "computer_call",
            "id": "cu",
            "call_id": "c",
            "action": {"type": "click", "x": 1, "y": 2},
            "pending_safety_checks": [],
            "status": "completed",
        },
        {
            "type": "computer_call_output",
            "call_id": "c",
            "output": {"type": "computer_screenshot", "image_url": URI},
        },
    ]
    computer = pb.ToolCall(id="c", name="computer", arguments=b'{"type":"click","x":1,"y":2}')
    request = convert(*items)
    assert list(request.conversation.messages) == [
        pb.Message(role=pb.ROLE_ASSISTANT, tool_calls=[computer]),
        pb.Message(role=pb.ROLE_TOOL, content=[IMAGE_PART], tool_call_id="c"),
    ]
    assert not request.warnings


def test_a_screenshot_by_file_id_is_refused():
    value = {"type": "computer_screenshot", "file_id": "file_1"}
    item = {"type": "computer_call_output", "call_id": "c", "output": value}
    assert refusal(item)[:2] == ("UNSUPPORTED_CONTENT", "input[0].output.file_id")


def test_custom_tool_calls_and_outputs_pair_like_functions():
    items = [
        {"type": "custom_tool_call", "call_id": "c", "name": "py", "input": "1+1"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "2"},
    ]
    py = pb.ToolCall(id="c", name="py", arguments=b'{"input":"1+1"}')
    assert list(convert(*items).conversation.messages) == [
        pb.Message(role=pb.ROLE_ASSISTANT, tool_calls=[py]),
        pb.Message(role=pb.ROLE_TOOL, content=[text("2")], tool_call_id="c"),
    ]


def test_the_item_id_stands_in_for_a_missing_call_id_of_a_call_only():
    item = {**call("f"), "id": "fc_1"}
    assert convert(item).conversation.messages[0].tool_calls[0].id == "c"
    del item["call_id"]
    assert convert(item).conversation.messages[0].tool_calls[0].id == "fc_1"
    answer = {"type": "function_call_output", "id": "fc_1", "call_id": None, "output": "x"}
    assert refusal(answer)[:2] == ("INVALID_MESSAGE", "input[0].call_id")


@pytest.mark.parametrize(
    ("image_url", "reason"),
    [({"url": URI}, "INVALID_MESSAGE"), (None, "INVALID_MESSAGE"), ("x.png", "UNSUPPORTED_CONTENT")],
)
def test_an_image_url_must_be_a_string_with_a_source(image_url, reason):
    value = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": image_url}]
    items = [USER, said("x"), call("f"), output(value)]
    assert refusal(*items)[:2] == (reason, "input[3].output[1].image_url")


@pytest.mark.parametrize(
    ("part", "path"),
    [
        ({"type": "input_image", "file_id": "file_1", "detail": "auto"}, ".file_id"),
        ({"type": "input_file", "file_data": "JVBERi0="}, ""),
        ({"type": "input_video"}, ""),
        ({"type": "output_image"}, ""),
    ],
)
def test_files_and_other_parts_are_refused_in_messages_and_outputs(part, path):
    inside = {"role": "user", "content": [part]}
    assert refusal(inside)[:2] == ("UNSUPPORTED_CONTENT", f"input[0].content[0]{path}")
    assert refusal(output([part]))[:2] == ("UNSUPPORTED_CONTENT", f"input[0].output[0]{path}")


@pytest.mark.parametrize(
    "item",
    [
        {"type": "item_reference", "id": "x"},
        {"id": "x"},
        {"type": "web_search_call", "id": "x", "status": "completed"},
        {"type": "mcp_call"},
        {"type": "local_shell_call"},
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "image_generation_call"},
    ],
)
def test_another_item_is_refused_by_name_with_the_list(item):
    reason, path, message = refusal(USER, item)
    assert (reason, path) == ("UNSUPPORTED_CONTENT", "input[1]")
    assert str(item.get("type", "null")) in message
    assert "function_call_output" in message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("previous_response_id", "resp_1"),
        ("conversation", "conv_1"),
        ("prompt", {"id": "p"}),
        ("background", True),
    ],
)
def test_stored_state_is_refused_and_its_absence_is_not(field, value):
    assert refusal(USER, **{field: value})[:2] == ("UNSUPPORTED_CONTENT", field)
    assert not convert(USER, **{field: None}).warnings


def test_truncation_and_compression_that_are_asked_for_give_warnings():
    request = convert(USER, truncation="auto", image={"context_compression": "enabled"})
    assert [w.reason for w in request.warnings] == ["NOT_TRUNCATED", "NOT_COMPRESSED"]
    assert not convert(USER, truncation="disabled", image={"context_compression": "auto"}).warnings


def test_no_items_are_refused():
    assert refusal()[:2] == ("INVALID_MESSAGE", "input")


def test_a_missing_input_is_refused():
    with pytest.raises(InvalidArgument) as caught:
        to_request({"model": "m"})
    assert caught.value.field_path == "input"
