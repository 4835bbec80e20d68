"""OpenAI Chat Completions bodies, with the extensions that engines accept, as normalized requests."""

from collections.abc import Mapping, Sequence
from typing import Any

from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.errors import InvalidMessage, UnsupportedContent
from patchloom_client.protocols import _parts, _request, _sources
from patchloom_client.protocols._json import json_object
from patchloom_client.protocols._structured import message_content
from patchloom_client.protocols._tools import nested_tools
from patchloom_client.protocols._turns import join_reasoning, note_moved
from patchloom_client.protocols._values import (
    Body,
    Notes,
    boolean,
    items,
    join,
    listed,
    mapping,
    optional_text,
    required_text,
    shown,
    text,
)
from patchloom_client.protocols.normalized import content_part

_ROLES = {
    "developer": pb.ROLE_SYSTEM,
    "system": pb.ROLE_SYSTEM,
    "user": pb.ROLE_USER,
    "assistant": pb.ROLE_ASSISTANT,
    "tool": pb.ROLE_TOOL,
}
_PART_TYPES: dict[int, tuple[str, ...]] = {
    pb.ROLE_SYSTEM: ("text",),
    pb.ROLE_USER: ("text", "image_url", "image", "input_audio", "audio"),
    pb.ROLE_ASSISTANT: ("text", "refusal", "thinking"),
    pb.ROLE_TOOL: ("text", "image_url", "image", "input_audio", "audio", "structured"),
}
_MESSAGE_FIELDS = """
role content name tool_calls tool_call_id reasoning reasoning_content refusal audio function_call is_error
annotations
"""
_MESSAGE_KEYS = frozenset(_MESSAGE_FIELDS.split())
# Sampling, storage and accounting: they say nothing about the prompt. The second half is what engines add.
_IGNORED_FIELDS = """
audio frequency_penalty logit_bias logprobs max_completion_tokens max_tokens metadata modalities moderation n
parallel_tool_calls prediction presence_penalty prompt_cache_key prompt_cache_options prompt_cache_retention
response_format safety_identifier seed service_tier stop store stream stream_options temperature tool_choice
top_logprobs top_p user verbosity
best_of ebnf guided_choice guided_grammar guided_json guided_regex ignore_eos include_stop_str_in_output
length_penalty min_p min_tokens no_stop_trim priority regex repetition_penalty request_id return_token_ids rid
separate_reasoning skip_special_tokens spaces_between_special_tokens stop_token_ids stream_reasoning
structured_outputs top_k use_beam_search
"""
_IGNORED = frozenset(_IGNORED_FIELDS.split())
_REFUSED = {
    "functions": "functions are not supported; send tools",
    "function_call": "function_call is not supported; send tools and tool_choice",
    "web_search_options": "web search is not supported; send function tools",
}
_IMAGE_URL_KEYS = ("url", *_parts.SIZE_KEYS)
_IMAGE_KEYS = ("image", "url", "data_uri", "data", "base64", "content_key", "path")


def to_request(body: Mapping[str, Any]) -> pb.PreprocessRequest:
    """The normalized request of a Chat Completions body.

    Raises InvalidMessage, UnsupportedContent, InvalidImage or InvalidAudio with the path of the field in the
    body's own words; what is knowingly left out is in the request's warnings.
    """
    notes = Notes()
    body = _request.check_top_level(body, ("messages", *_REFUSED), _IGNORED, notes)
    _request.refuse_keys(body, _REFUSED)
    messages = [
        _message(mapping(message, path), path, notes)
        for message, path in items(body.get("messages"), "messages")
    ]
    return _request.build(body, messages, nested_tools(body.get("tools"), "tools"), notes)


def _message(body: Body, path: str, notes: Notes) -> pb.Message:
    role = _role(body.get("role"), join(path, "role"))
    notes.unknown_keys(body, _MESSAGE_KEYS, path)
    content = message_content(
        body.get("content"), role, join(path, "content"), lambda part, where: _part(part, role, where, notes)
    )
    message = pb.Message(role=role)
    _add_content(message, content, join(path, "content"), notes)
    if body.get("name") is not None:
        message.name = text(body["name"], join(path, "name"))
    _add_assistant_fields(message, body, path, notes)
    _add_tool_fields(message, body, path)
    return message


def _add_content(message: pb.Message, content: Sequence[pb.ContentPart], path: str, notes: Notes) -> None:
    """The parts of a message; thinking parts become its reasoning."""
    thoughts: list[str] = []
    for i, part in enumerate(content):
        if part.WhichOneof("part") != "thinking":
            message.content.append(part)
            continue
        note_moved(bool(message.content), "REASONING_MOVED", f"{path}[{i}]", notes)
        thoughts.append(part.thinking.text)
    if any(thoughts):
        message.reasoning = join_reasoning(thoughts)


def _role(value: object, path: str) -> pb.Role:
    if not isinstance(value, str) or value not in _ROLES:
        raise InvalidMessage(f"role {shown(value)} is not supported; one of {listed(_ROLES)}", path)
    return _ROLES[value]


def _part(part: object, role: int, path: str, notes: Notes) -> pb.ContentPart:
    body = mapping(part, path)
    kind = body.get("type")
    if kind == "thinking" and role != pb.ROLE_ASSISTANT:
        raise InvalidMessage("thinking parts require role='assistant'", path)
    allowed = _PART_TYPES[role]
    if not isinstance(kind, str) or kind not in allowed:
        raise _parts.refused(kind, path, allowed)
    if kind in ("text", "refusal"):
        notes.unknown_keys(body, ("type", kind, "annotations", *_parts.IGNORED_KEYS), path)
        return _parts.text_content(body, kind, path)
    if kind == "thinking":
        return _thinking(body, path, notes)
    if kind == "image_url":
        return _image_url(body, path, notes)
    if kind == "image":
        return _image(body, path, notes)
    if kind in ("audio", "structured"):
        return content_part(body, path)
    notes.unknown_keys(body, ("type", "input_audio", *_parts.IGNORED_KEYS), path)
    where = join(path, "input_audio")
    return _parts.audio_part(mapping(body.get("input_audio"), where), where)


def _thinking(body: Body, path: str, notes: Notes) -> pb.ContentPart:
    key = "text" if body.get("thinking") is None else "thinking"
    notes.unknown_keys(body, ("type", "thinking", "text", "signature"), path)
    part = _parts.text_content(body, key, path)
    return pb.ContentPart(thinking=pb.ThinkingPart(text=part.text.text))


def _image_url(body: Body, path: str, notes: Notes) -> pb.ContentPart:
    known = ("type", "image_url", *_parts.SIZE_KEYS, *_parts.IGNORED_KEYS)
    notes.unknown_keys(body, known, path)
    options = _parts.size_options(body, path)
    where = join(path, "image_url")
    value = body.get("image_url")
    if isinstance(value, str):
        return _parts.image_from_string(value, where, options)
    image = mapping(value, where)
    notes.unknown_keys(image, _IMAGE_URL_KEYS, where)
    options.MergeFrom(_parts.size_options(image, where))
    return _parts.image_from_string(image.get("url"), join(where, "url"), options)


def _image(body: Body, path: str, notes: Notes) -> pb.ContentPart:
    """The Hugging Face and the normalized form: the source stands beside the type."""
    known = ("type", *_IMAGE_KEYS, "media_type", *_parts.SIZE_KEYS, *_parts.IGNORED_KEYS)
    notes.unknown_keys(body, known, path)
    given = [key for key in _IMAGE_KEYS if body.get(key) is not None]
    if len(given) != 1:
        raise InvalidMessage(
            "an image needs exactly one of image, url, data_uri, data, base64 and content_key", path
        )
    key, options = given[0], _parts.size_options(body, path)
    declared = _sources.declared_type(body.get("media_type"), join(path, "media_type"))
    if key == "path":
        raise UnsupportedContent(f"file paths are not supported; send {_sources.SUPPORTED}", join(path, key))
    if key == "content_key":
        return _parts.image_part(_parts.content_key_source(body, path), declared, options)
    if key in ("data", "base64"):
        data = _sources.decode_base64(body[key], join(path, key))
        return _parts.image_part(pb.MediaSource(data=data), declared, options)
    source, media_type = _sources.from_string(body[key], join(path, key))
    return _parts.image_part(source, media_type or declared, options)


def _add_assistant_fields(message: pb.Message, body: Body, path: str, notes: Notes) -> None:
    reasoning = _reasoning(body, path)
    calls = body.get("tool_calls")
    for key in ("audio", "function_call"):
        if body.get(key) is not None:
            raise UnsupportedContent(
                f"{key} of a message is not supported; send content and tool_calls", join(path, key)
            )
    if message.role != pb.ROLE_ASSISTANT:
        _refuse_misplaced(body, ("tool_calls", "refusal"), "assistant", path)
        if reasoning:
            raise InvalidMessage("reasoning needs role assistant", path)
        return
    refusal = optional_text(body.get("refusal"), join(path, "refusal"))
    if refusal:
        message.content.append(_parts.text_part(refusal))
    if reasoning and message.reasoning:
        raise InvalidMessage("reasoning and thinking parts exclude each other; send one of them", path)
    if reasoning:
        message.reasoning = reasoning
    if calls is not None:
        message.tool_calls.extend(
            tool_call(mapping(call, where), where, notes)
            for call, where in items(calls, join(path, "tool_calls"))
        )


def _reasoning(body: Body, path: str) -> str:
    keys = ("reasoning_content", "reasoning")
    values = [optional_text(body.get(key), join(path, key)) or "" for key in keys]
    if all(values) and values[0] != values[1]:
        raise InvalidMessage("reasoning and reasoning_content differ; send one of them", path)
    return values[0] or values[1]


def tool_call(body: Body, path: str, notes: Notes) -> pb.ToolCall:
    """A function call, or a custom call, whose text becomes the argument "input". The id may be absent."""
    kind = "function" if body.get("type") is None else body["type"]
    if kind not in ("function", "custom"):
        raise UnsupportedContent(
            f"tool call type {shown(kind)} is not supported; send function or custom", path
        )
    notes.unknown_keys(body, ("id", "type", "index", kind), path)
    where = join(path, kind)
    call = mapping(body.get(kind), where)
    if kind == "custom":
        arguments = json_object({"input": text(call.get("input"), join(where, "input"))}, where)
    else:
        arguments = json_object(call.get("arguments"), join(where, "arguments"))
    return pb.ToolCall(
        id=optional_text(body.get("id"), join(path, "id")) or "",
        name=required_text(call, "name", where),
        arguments=arguments,
    )


def _add_tool_fields(message: pb.Message, body: Body, path: str) -> None:
    if message.role != pb.ROLE_TOOL:
        _refuse_misplaced(body, ("tool_call_id", "is_error"), "tool", path)
        return
    call_id = optional_text(body.get("tool_call_id"), join(path, "tool_call_id"))
    if call_id is not None:
        message.tool_call_id = call_id
    if body.get("is_error") is not None:
        message.is_error = boolean(body["is_error"], join(path, "is_error"))


def _refuse_misplaced(body: Body, keys: Sequence[str], role: str, path: str) -> None:
    for key in keys:
        value = body.get(key)
        if value is not None and value is not False and value != "" and value != []:
            raise InvalidMessage(f"{key} needs role {role}", join(path, key))
