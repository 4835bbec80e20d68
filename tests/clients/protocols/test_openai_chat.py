"""Chat Completions: roles, content, parts, calls and what is refused."""

import pytest
from patchloom_client.errors import InvalidArgument
from patchloom_client.protocols.openai_chat import to_request
from patchloom_proto import preprocess_pb2 as pb

PNG = "iVBORw0KGgo="
PNG_BYTES = b"\x89PNG\r\n\x1a\n"
URI = f"data:image/png;base64,{PNG}"
IMAGE = {"type": "image_url", "image_url": {"url": URI}}
IMAGE_PART = pb.ContentPart(image=pb.ImagePart(source=pb.MediaSource(data=PNG_BYTES), media_type="image/png"))


def text(value):
    return pb.ContentPart(text=pb.TextPart(text=value))


def convert(*messages):
    return to_request({"messages": list(messages)})


def only(message):
    (converted,) = convert(message).conversation.messages
    return converted


def content(role, value, **fields):
    return list(only({"role": role, "content": value, **fields}).content)


def refusal(*messages, **fields):
    with pytest.raises(InvalidArgument) as caught:
        to_request({"messages": list(messages), **fields})
    return caught.value.reason, caught.value.field_path, caught.value.message


def calling(**function):
    return {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("system", pb.ROLE_SYSTEM),
        ("developer", pb.ROLE_SYSTEM),
        ("user", pb.ROLE_USER),
        ("assistant", pb.ROLE_ASSISTANT),
        ("tool", pb.ROLE_TOOL),
    ],
)
def test_every_role_has_its_normalized_role_and_a_string_is_one_text(role, expected):
    message = only({"role": role, "content": "x"})
    assert message == pb.Message(role=expected, content=[text("x")])


@pytest.mark.parametrize("role", ["function", "critic", None, 3, ["user"], "USER"])
def test_another_role_is_refused_with_the_list(role):
    reason, path, message = refusal({"role": role, "content": "x"})
    assert (reason, path) == ("INVALID_MESSAGE", "messages[0].role")
    assert message.endswith("one of developer, system, user, assistant, tool")


@pytest.mark.parametrize("role", ["assistant", "tool"])
@pytest.mark.parametrize("value", [None, "", []])
def test_empty_content_of_an_assistant_or_a_tool_is_empty(role, value):
    assert content(role, value) == []
    assert list(only({"role": role}).content) == []


@pytest.mark.parametrize("role", ["system", "developer", "user"])
@pytest.mark.parametrize("value", [None, []])
def test_missing_content_of_another_role_is_refused(role, value):
    reason, path, message = refusal({"role": "user", "content": "x"}, {"role": role, "content": value})
    assert (reason, path) == ("INVALID_MESSAGE", "messages[1].content")
    assert message.startswith("missing content")


def test_empty_user_text_stays_an_empty_text():
    assert content("user", "") == [text("")]
    assert content("user", [{"type": "text", "text": ""}, IMAGE]) == [text(""), IMAGE_PART]


def test_developer_text_lists_keep_their_texts_apart():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert content("developer", parts) == [text("a"), text("b")]


def test_an_image_only_tool_message_is_one_image_under_its_call():
    message = only({"role": "tool", "tool_call_id": "functions.get_image:0", "content": [IMAGE]})
    assert message == pb.Message(
        role=pb.ROLE_TOOL, content=[IMAGE_PART], tool_call_id="functions.get_image:0"
    )


def test_text_and_images_of_a_tool_message_keep_their_order():
    parts = ["a", IMAGE, {"type": "text", "text": "b"}, IMAGE, {"type": "text"}]
    assert content("tool", parts) == [text("a"), IMAGE_PART, text("b"), IMAGE_PART, text("")]


@pytest.mark.parametrize(
    "string", [URI, '[{"type":"file","data":"iVBORw0KGgo="}]', "<|image_pad|>", "<__media__>"]
)
@pytest.mark.parametrize("role", ["user", "tool"])
def test_a_string_is_text_whatever_it_looks_like(role, string):
    assert content(role, string) == [text(string)]
    assert content(role, [{"type": "text", "text": string}]) == [text(string)]


def test_a_structured_tool_list_travels_as_it_is():
    value = [{"name": "func", "output": "result"}, {"name": "g", "output": {"b": 1, "a": [2.0]}}]
    encoded = b'[{"name":"func","output":"result"},{"name":"g","output":{"b":1,"a":[2.0]}}]'
    assert content("tool", value) == [pb.ContentPart(structured=pb.StructuredPart(json=encoded))]


def test_a_list_of_tool_references_is_structured():
    value = [{"type": "tool_reference", "name": "f"}]
    encoded = b'[{"type":"tool_reference","name":"f"}]'
    assert content("tool", value) == [pb.ContentPart(structured=pb.StructuredPart(json=encoded))]


@pytest.mark.parametrize(
    "value",
    [
        [{"name": "f", "output": [{"type": "image_url", "image_url": {"url": URI}}]}],
        [{"image_url": URI}],
        [{"name": "f", "output": {"deep": [{"type": "input_image"}]}}],
        [{"image": "nginx"}],
    ],
)
def test_media_inside_structured_content_is_refused(value):
    reason, path, _ = refusal({"role": "tool", "content": value})
    assert (reason, path) == ("UNSUPPORTED_CONTENT", "messages[0].content")


@pytest.mark.parametrize("role", ["user", "tool", "system"])
def test_a_thinking_part_needs_the_assistant(role):
    parts = [{"type": "text", "text": "x"}, {"type": "thinking", "thinking": "hm"}]
    assert refusal({"role": role, "content": parts}) == (
        "INVALID_MESSAGE",
        "messages[0].content[1]",
        "thinking parts require role='assistant'",
    )


def thinking(value):
    return {"type": "thinking", "thinking": value}


def test_thinking_parts_are_the_reasoning_of_the_turn():
    parts = [thinking("a"), thinking(""), thinking("b"), {"type": "text", "text": "ok"}]
    request = convert({"role": "assistant", "content": parts})
    assert list(request.conversation.messages) == [
        pb.Message(role=pb.ROLE_ASSISTANT, reasoning="a\nb", content=[text("ok")])
    ]
    assert not request.warnings
    assert only({"role": "assistant", "content": [thinking("")]}) == pb.Message(role=pb.ROLE_ASSISTANT)


def test_thinking_behind_other_content_is_moved_with_a_warning():
    parts = [thinking("a"), {"type": "refusal", "refusal": "c"}, thinking("b")]
    request = convert({"role": "assistant", "content": parts})
    assert list(request.conversation.messages) == [
        pb.Message(role=pb.ROLE_ASSISTANT, reasoning="a\nb", content=[text("c")])
    ]
    assert [(w.reason, w.field_path) for w in request.warnings] == [
        ("REASONING_MOVED", "messages[0].content[2]")
    ]


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_beside_thinking_parts_is_refused(key):
    assert refusal({"role": "assistant", "content": [thinking("a")], key: "b"}) == (
        "INVALID_MESSAGE",
        "messages[0]",
        "reasoning and thinking parts exclude each other; send one of them",
    )


def test_a_refusal_is_text_in_its_place_or_behind_the_content():
    parts = [{"type": "refusal", "refusal": "c"}, {"type": "text", "text": "a"}]
    assert content("assistant", parts) == [text("c"), text("a")]
    assert content("assistant", None, refusal="no") == [text("no")]


@pytest.mark.parametrize(
    ("role", "kind"),
    [
        ("user", "file"),
        ("user", "video_url"),
        ("user", "image_embeds"),
        ("user", "input_image"),
        ("user", "tool_reference"),
        ("tool", "document"),
        ("tool", "file"),
        ("system", "image_url"),
        ("assistant", "image_url"),
        ("user", None),
        ("user", 3),
    ],
)
def test_another_part_type_is_refused_by_name_with_the_list(role, kind):
    reason, path, message = refusal(
        {"role": role, "content": [{"type": "text", "text": "x"}, {"type": kind, "file_id": "f"}]}
    )
    assert (reason, path) == ("UNSUPPORTED_CONTENT", "messages[0].content[1]")
    assert message.startswith(f"content type {kind!r}" if isinstance(kind, str) else "content type")
    assert "send text" in message


@pytest.mark.parametrize("value", [3, True, {"a": 1}, {"type": "text", "text": "x"}])
def test_content_of_another_shape_is_refused(value):
    assert refusal({"role": "tool", "content": value})[:2] == ("INVALID_MESSAGE", "messages[0].content")


@pytest.mark.parametrize("part", ["x", {"type": "text"}, {"type": "text", "text": None}])
def test_a_user_part_needs_a_type_and_a_text(part):
    reason, path, _ = refusal({"role": "user", "content": [part]})
    assert reason == "INVALID_MESSAGE"
    assert path.startswith("messages[0].content[0]")


@pytest.mark.parametrize("url", [None, 3, {"url": URI}])
def test_an_image_url_needs_a_string(url):
    part = {"type": "image_url", "image_url": {"url": url}}
    assert refusal({"role": "user", "content": [part]})[:2] == (
        "INVALID_MESSAGE",
        "messages[0].content[0].image_url.url",
    )


@pytest.mark.parametrize("detail", [None, "auto", "default"])
def test_a_detail_that_says_nothing_is_no_option(detail):
    part = {"type": "image_url", "image_url": {"url": URI, "detail": detail}}
    assert content("user", [part]) == [IMAGE_PART]


def test_an_unknown_detail_is_refused_with_the_list():
    part = {"type": "image_url", "image_url": {"url": URI, "detail": "medium"}}
    _, path, message = refusal({"role": "user", "content": [part]})
    assert path == "messages[0].content[0].image_url.detail"
    assert message == "'medium' is not known; one of auto, low, high, original, default"


def test_an_image_with_two_sources_is_refused():
    part = {"type": "image", "image": URI, "content_key": "ab"}
    assert refusal({"role": "user", "content": [part]})[1] == "messages[0].content[0]"


@pytest.mark.parametrize("role", ["user", "tool"])
def test_wav_audio_becomes_an_audio_part(role):
    part = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    audio = pb.AudioPart(source=pb.MediaSource(data=b"RIFF"), format="wav")
    assert content(role, [part]) == [pb.ContentPart(audio=audio)]


def test_mp3_audio_is_refused_with_what_is_taken():
    part = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "mp3"}}
    assert refusal({"role": "user", "content": [part]}) == (
        "UNSUPPORTED_CONTENT",
        "messages[0].content[0].input_audio.format",
        "audio format 'mp3' is not supported; send wav, pcm16",
    )


def test_malformed_audio_is_named_as_audio():
    part = {"type": "input_audio", "input_audio": {"data": "?", "format": "wav"}}
    assert refusal({"role": "user", "content": [part]})[:2] == (
        "INVALID_AUDIO",
        "messages[0].content[0].input_audio.data",
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 3, "b": 18}', b'{"a":3,"b":18}'),
        ({"b": 1, "a": 2}, b'{"b":1,"a":2}'),
        ("", b"{}"),
        (None, b"{}"),
        ("{}", b"{}"),
    ],
)
def test_arguments_become_one_compact_object(arguments, expected):
    (call,) = only(calling(name="f", arguments=arguments)).tool_calls
    assert call == pb.ToolCall(id="c", name="f", arguments=expected)


@pytest.mark.parametrize("arguments", ["[1]", "3", "null", "{", '{"a": NaN}', '{"a":1,"a":2}', 3])
def test_arguments_that_are_no_plain_object_are_refused(arguments):
    assert refusal(calling(name="f", arguments=arguments))[:2] == (
        "INVALID_MESSAGE",
        "messages[0].tool_calls[0].function.arguments",
    )


def test_a_custom_call_carries_its_text_as_input():
    call = {"id": "c", "type": "custom", "custom": {"name": "py", "input": "print(1)"}}
    message = only({"role": "assistant", "content": None, "tool_calls": [call]})
    assert list(message.tool_calls) == [pb.ToolCall(id="c", name="py", arguments=b'{"input":"print(1)"}')]


def test_parallel_calls_and_their_ids_stay_in_order():
    calls = [{"id": i, "type": "function", "function": {"name": i, "arguments": ""}} for i in "abc"]
    message = only({"role": "assistant", "content": None, "tool_calls": calls})
    assert [call.id for call in message.tool_calls] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("call", "path"),
    [
        ({"type": "mcp"}, ""),
        ({"type": "function"}, ".function"),
        ({"type": "function", "function": {}}, ".function.name"),
        ({"type": "function", "function": {"name": ""}}, ".function.name"),
        ({"id": 3, "type": "function", "function": {"name": "f"}}, ".id"),
    ],
)
def test_a_malformed_call_is_refused_where_it_is_wrong(call, path):
    assert refusal({"role": "assistant", "tool_calls": [call]})[1] == f"messages[0].tool_calls[0]{path}"


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_has_two_names(key):
    message = only({"role": "assistant", "content": "x", key: "hm"})
    assert message == pb.Message(role=pb.ROLE_ASSISTANT, content=[text("x")], reasoning="hm")


def test_two_reasonings_that_differ_are_refused():
    message = {"role": "assistant", "content": "x", "reasoning": "a", "reasoning_content": "b"}
    assert refusal(message)[:2] == ("INVALID_MESSAGE", "messages[0]")
    same = {**message, "reasoning": "b"}
    assert only(same).reasoning == "b"


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ({"role": "user", "content": "x", "tool_calls": [{}]}, "messages[0].tool_calls"),
        ({"role": "user", "content": "x", "tool_call_id": "a"}, "messages[0].tool_call_id"),
        ({"role": "assistant", "content": "x", "tool_call_id": "a"}, "messages[0].tool_call_id"),
        ({"role": "user", "content": "x", "reasoning": "a"}, "messages[0]"),
        ({"role": "assistant", "audio": {"id": "a"}}, "messages[0].audio"),
        ({"role": "assistant", "function_call": {"name": "f"}}, "messages[0].function_call"),
    ],
)
def test_a_field_of_another_role_or_time_is_refused(message, path):
    assert refusal(message)[1] == path


def test_a_tool_message_keeps_its_name_and_error():
    message = only({"role": "tool", "tool_call_id": "a", "name": "f", "content": "x", "is_error": True})
    assert message == pb.Message(
        role=pb.ROLE_TOOL, content=[text("x")], tool_call_id="a", name="f", is_error=True
    )


def test_unknown_fields_of_messages_and_parts_give_warnings_and_cache_marks_do_not():
    part = {"type": "text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}, "uuid": "u"}
    request = convert({"role": "user", "content": [part], "provider": "p"})
    assert [warning.field_path for warning in request.warnings] == [
        "messages[0].provider",
        "messages[0].content[0].uuid",
    ]


@pytest.mark.parametrize("field", ["functions", "function_call", "web_search_options"])
def test_deprecated_and_server_side_tools_are_refused(field):
    reason, path, _ = refusal({"role": "user", "content": "x"}, **{field: [{"name": "f"}]})
    assert (reason, path) == ("UNSUPPORTED_CONTENT", field)


def test_a_tool_keeps_its_own_key_order():
    tool = {"function": {"parameters": {"z": 1, "a": 2}, "name": "f"}, "type": "function"}
    request = to_request({"messages": [{"role": "user", "content": "x"}], "tools": [tool]})
    assert list(request.conversation.tools) == [
        b'{"function":{"parameters":{"z":1,"a":2},"name":"f"},"type":"function"}'
    ]


def test_no_messages_are_refused():
    assert refusal()[:2] == ("INVALID_MESSAGE", "messages")


def test_a_lone_surrogate_is_refused():
    assert refusal({"role": "user", "content": "\ud800"})[:2] == (
        "INVALID_MESSAGE",
        "messages[0].content",
    )
