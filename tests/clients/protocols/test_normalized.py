"""Normalized JSON: strict to read, and written back for people."""

import json

import pytest
from patchloom_client.errors import InvalidArgument
from patchloom_client.protocols.normalized import messages_to_json, to_request
from patchloom_proto import preprocess_pb2 as pb

PNG = "iVBORw0KGgo="
PNG_SHA256 = "4c4b6a3be1314ab86138bef4314dde022e600960d8689a2c8f8631802d20dab6"


def only(**message):
    (converted,) = to_request({"messages": [message]}).conversation.messages
    return converted


def part(**fields):
    return only(role="user", content=[fields]).content[0]


def refusal(*messages, **fields):
    with pytest.raises(InvalidArgument) as caught:
        to_request({"messages": list(messages), **fields})
    return caught.value.reason, caught.value.field_path, caught.value.message


def test_a_whole_message_of_every_role_is_read():
    tool = only(
        role="tool",
        content=[
            "a",
            {"type": "text", "text": "b"},
            {"type": "structured", "value": {"z": 1, "a": [2.0]}},
        ],
        tool_call_id="c",
        name="f",
        is_error=True,
    )
    assert tool == pb.Message(
        role=pb.ROLE_TOOL,
        content=[
            pb.ContentPart(text=pb.TextPart(text="a")),
            pb.ContentPart(text=pb.TextPart(text="b")),
            pb.ContentPart(structured=pb.StructuredPart(json=b'{"z":1,"a":[2.0]}')),
        ],
        tool_call_id="c",
        name="f",
        is_error=True,
    )
    assistant = only(
        role="assistant",
        reasoning="hm",
        tool_calls=[
            {"id": "c", "name": "f", "arguments": '{"b": 1}'},
            {"id": "d", "name": "g", "arguments": {"b": 1}},
            {"name": "h"},
        ],
    )
    assert assistant == pb.Message(
        role=pb.ROLE_ASSISTANT,
        reasoning="hm",
        tool_calls=[
            pb.ToolCall(id="c", name="f", arguments=b'{"b":1}'),
            pb.ToolCall(id="d", name="g", arguments=b'{"b":1}'),
            pb.ToolCall(name="h", arguments=b"{}"),
        ],
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"url": "https://h/x"}, pb.MediaSource(url="https://h/x")),
        ({"content_key": "ab"}, pb.MediaSource(content_key="ab")),
        ({"data": PNG}, pb.MediaSource(data=b"\x89PNG\r\n\x1a\n")),
        ({"image_url": "https://h/x"}, pb.MediaSource(url="https://h/x")),
    ],
)
def test_an_image_has_one_of_several_sources(source, expected):
    assert part(type="image", **source).image.source == expected


def test_an_explicit_auto_overrides_the_request_where_no_detail_does_not():
    image = part(type="image", data=PNG, detail="auto").image
    assert image.options == pb.ImageOptions(detail=pb.IMAGE_DETAIL_AUTO)
    assert not part(type="image", data=PNG).image.HasField("options")


def test_pcm_audio_says_how_it_is_sampled():
    audio = part(type="audio", data="AAAA", format="pcm16", sample_rate=8000, channels=2).audio
    assert audio == pb.AudioPart(
        source=pb.MediaSource(data=b"\0\0\0"), format="pcm16", sample_rate=8000, channels=2
    )


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ({"role": "developer", "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": "x", "tool_call_id": "a"}, "messages[0].tool_call_id"),
        ({"role": "tool", "content": "x", "reasoning": "a"}, "messages[0].reasoning"),
        ({"role": "assistant", "content": "x", "reasoning_content": "a"}, "messages[0].reasoning_content"),
        ({"role": "user", "content": [{"type": "text", "text": "x", "y": 1}]}, "messages[0].content[0].y"),
        ({"role": "user", "content": [{"type": "video"}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "structured", "value": []}]}, "messages[0].content[0]"),
        ({"role": "tool", "content": [{"type": "structured", "value": "x"}]}, "messages[0].content[0].value"),
        ({"role": "tool", "content": [{"type": "thinking", "text": "x"}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "image"}]}, "messages[0].content[0]"),
        (
            {"role": "user", "content": [{"type": "image", "data": PNG, "url": "https://h/x"}]},
            "messages[0].content[0]",
        ),
        (
            {"role": "user", "content": [{"type": "image", "data_uri": "https://h/x"}]},
            "messages[0].content[0].data_uri",
        ),
        (
            {"role": "user", "content": [{"type": "image", "url": f"data:image/png;base64,{PNG}"}]},
            "messages[0].content[0].url",
        ),
        ({"role": "assistant", "tool_calls": [{"id": "a"}]}, "messages[0].tool_calls[0].name"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "system", "content": []}, "messages[0].content"),
    ],
)
def test_what_the_form_does_not_know_is_refused_where_it_stands(message, path):
    assert refusal(message)[1] == path


def test_an_unknown_top_level_field_is_refused_with_the_list():
    assert refusal({"role": "user", "content": "x"}, temperature=1) == (
        "INVALID_MESSAGE",
        "temperature",
        "unknown field; known are model, messages, tools, patchloom",
    )


def test_a_structured_list_without_a_wrapper_reaches_the_tool_message():
    message = only(role="tool", content=[{"name": "func", "output": "result"}])
    assert message.content[0].structured.json == b'[{"name":"func","output":"result"}]'


TEXT_ONLY = [
    {"role": "system", "content": [{"type": "text", "text": "s"}]},
    {
        "role": "assistant",
        "content": [{"type": "thinking", "text": "t"}],
        "tool_calls": [{"id": "c", "name": "f", "arguments": {"z": 12345678901234567890, "a": 1.0}}],
    },
    {"role": "assistant", "content": [], "reasoning": "r"},
    {
        "role": "tool",
        "content": [
            {"type": "structured", "value": [{"name": "f"}]},
            {"type": "image", "url": "https://h/x", "detail": "low", "min_pixels": 4, "max_pixels": 9},
            {"type": "image", "content_key": "ab", "media_type": "image/png"},
            {
                "type": "audio",
                "content_key": "cd",
                "format": "pcm16",
                "sample_rate": 8000,
                "channels": 2,
            },
        ],
        "tool_call_id": "c",
        "name": "f",
        "is_error": True,
    },
]


def test_messages_without_bytes_come_back_as_they_were_read():
    messages = to_request({"messages": TEXT_ONLY}).conversation.messages
    shown = messages_to_json(messages)
    assert shown == TEXT_ONLY
    assert json.dumps(shown) == json.dumps(TEXT_ONLY)


def test_bytes_are_shown_by_length_and_hash():
    image = {"type": "image", "data": PNG, "media_type": "image/png"}
    messages = to_request({"messages": [{"role": "user", "content": [image]}]}).conversation.messages
    assert messages_to_json(messages) == [
        {
            "role": "user",
            "content": [{"type": "image", "bytes": 8, "sha256": PNG_SHA256, "media_type": "image/png"}],
        }
    ]


def test_a_data_uri_of_another_client_is_shown_by_length_and_hash():
    source = pb.MediaSource(data_uri="data:;base64,AAAA")
    message = pb.Message(role=pb.ROLE_USER, content=[pb.ContentPart(image=pb.ImagePart(source=source))])
    (shown,) = messages_to_json([message])
    assert shown["content"][0]["data_uri_chars"] == 17
    assert "AAAA" not in json.dumps(shown)
