"""Normalized conversations as JSON: the service's own message form, read strictly and written back."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.errors import InvalidAudio, InvalidMessage, UnsupportedContent
from patchloom_client.protocols import _parts, _request, _sources
from patchloom_client.protocols._json import json_object, parse
from patchloom_client.protocols._structured import message_content, structured_part
from patchloom_client.protocols._tools import nested_tools
from patchloom_client.protocols._values import (
    Body,
    Notes,
    boolean,
    items,
    join,
    listed,
    mapping,
    only_keys,
    optional_text,
    required_text,
    word,
)

ROLES = {
    "system": pb.ROLE_SYSTEM,
    "user": pb.ROLE_USER,
    "assistant": pb.ROLE_ASSISTANT,
    "tool": pb.ROLE_TOOL,
}
_MESSAGE_KEYS: dict[int, tuple[str, ...]] = {
    pb.ROLE_SYSTEM: ("role", "content", "name"),
    pb.ROLE_USER: ("role", "content", "name"),
    pb.ROLE_ASSISTANT: ("role", "content", "name", "reasoning", "tool_calls"),
    pb.ROLE_TOOL: ("role", "content", "name", "tool_call_id", "is_error"),
}
_SOURCE_KEYS = ("data", "data_uri", "url", "content_key", "image_url")
_PART_KEYS = {
    "text": ("type", "text"),
    "image": ("type", *_SOURCE_KEYS, *_parts.SIZE_KEYS, "media_type"),
    "image_url": ("type", "image_url", *_parts.SIZE_KEYS, "media_type"),
    "audio": (*("type", "data", "data_uri", "url", "content_key", "format", "sample_rate", "channels"),),
    "structured": ("type", "value"),
    "thinking": ("type", "text"),
}


def to_request(body: Mapping[str, Any]) -> pb.PreprocessRequest:
    """The request of {"messages": [...], "tools": [...], "model": ..., "patchloom": {...}}.

    Unknown fields, roles and part types are refused. Raises InvalidMessage, UnsupportedContent, InvalidImage
    or InvalidAudio with the path of the field.
    """
    body = mapping(body, "")
    only_keys(body, ("model", "messages", "tools", "patchloom"), "")
    messages = [
        _message(mapping(message, path), path) for message, path in items(body.get("messages"), "messages")
    ]
    return _request.build(body, messages, nested_tools(body.get("tools"), "tools"), Notes())


def _message(body: Body, path: str) -> pb.Message:
    role = word(body.get("role"), join(path, "role"), ROLES)
    keys = _MESSAGE_KEYS[role]
    only_keys({key: value for key, value in body.items() if value is not None}, keys, path)
    content = message_content(
        body.get("content"), role, join(path, "content"), lambda part, where: _part(part, role, where)
    )
    message = pb.Message(role=role, content=content)
    for key in ("name", "reasoning", "tool_call_id"):
        value = optional_text(body.get(key), join(path, key))
        if value is not None and (value or key != "reasoning"):
            setattr(message, key, value)
    if body.get("is_error") is not None:
        message.is_error = boolean(body["is_error"], join(path, "is_error"))
    if body.get("tool_calls") is not None:
        message.tool_calls.extend(
            _tool_call(mapping(call, where), where)
            for call, where in items(body["tool_calls"], join(path, "tool_calls"))
        )
    return message


def _tool_call(body: Body, path: str) -> pb.ToolCall:
    only_keys(body, ("id", "name", "arguments"), path)
    return pb.ToolCall(
        id=optional_text(body.get("id"), join(path, "id")) or "",
        name=required_text(body, "name", path),
        arguments=json_object(body.get("arguments"), join(path, "arguments")),
    )


def _part(value: object, role: int, path: str) -> pb.ContentPart:
    part = content_part(value, path)
    kind = part.WhichOneof("part")
    if kind == "thinking" and role != pb.ROLE_ASSISTANT:
        raise InvalidMessage("thinking parts require role='assistant'", path)
    if kind == "structured" and role != pb.ROLE_TOOL:
        raise InvalidMessage("structured parts require role='tool'", path)
    return part


def content_part(value: object, path: str) -> pb.ContentPart:
    """One part: text, image (or image_url), audio, structured or thinking."""
    body = mapping(value, path)
    kind = body.get("type")
    if not isinstance(kind, str) or kind not in _PART_KEYS:
        raise _parts.refused(kind, path, tuple(_PART_KEYS))
    only_keys(body, _PART_KEYS[kind], path)
    if kind == "text":
        return _parts.text_content(body, "text", path)
    if kind == "thinking":
        text_of = _parts.text_content(body, "text", path).text.text
        return pb.ContentPart(thinking=pb.ThinkingPart(text=text_of))
    if kind == "structured":
        return structured_part(body.get("value"), join(path, "value"))
    return _audio(body, path) if kind == "audio" else _image(body, path)


def _image(body: Body, path: str) -> pb.ContentPart:
    options = _parts.size_options(body, path, _parts.DETAILS)
    declared = _sources.declared_type(body.get("media_type"), join(path, "media_type"))
    key = _source_key(body, _SOURCE_KEYS, path)
    if key == "image_url" and not isinstance(body[key], str):
        image, where = mapping(body[key], join(path, key)), join(path, key)
        only_keys(image, ("url", *_parts.SIZE_KEYS), where)
        options.MergeFrom(_parts.size_options(image, where, _parts.DETAILS))
        source, media_type = _sources.from_string(image.get("url"), join(where, "url"))
    else:
        source, media_type = _source(body, key, path)
    return _parts.image_part(source, media_type or declared, options)


def _audio(body: Body, path: str) -> pb.ContentPart:
    key = _source_key(body, _SOURCE_KEYS[:-1], path)
    if key == "data":
        return _parts.audio_part(body, path)
    if key == "content_key":
        return _parts.audio_from_source(_parts.content_key_source(body, path), body, path)
    source, _ = _string_source(body, key, path, InvalidAudio)
    return _parts.audio_from_source(source, body, path)


def _source_key(body: Body, keys: tuple[str, ...], path: str) -> str:
    given = [key for key in keys if body.get(key) is not None]
    if len(given) != 1:
        raise InvalidMessage(f"a media part needs exactly one of {listed(keys)}", path)
    return given[0]


def _source(body: Body, key: str, path: str) -> tuple[pb.MediaSource, str]:
    if key == "data":
        return pb.MediaSource(data=_sources.decode_base64(body[key], join(path, key))), ""
    if key == "content_key":
        return _parts.content_key_source(body, path), ""
    return _string_source(body, key, path)


def _string_source(body: Body, key: str, path: str, *error: type[InvalidAudio]) -> tuple[pb.MediaSource, str]:
    source, media_type = _sources.from_string(body[key], join(path, key), *error)
    wanted = {"data_uri": "data", "url": "url"}.get(key)
    if wanted and source.WhichOneof("source") != wanted:
        raise UnsupportedContent(
            f"{key} holds another kind of source; send a data URI as data_uri, an address as url",
            join(path, key),
        )
    return source, media_type


def messages_to_json(messages: Iterable[pb.Message]) -> list[dict[str, Any]]:
    """Messages in the form that `to_request` reads, but media bytes are shown by their length and SHA-256."""
    return [_shown_message(message) for message in messages]


def _shown_message(message: pb.Message) -> dict[str, Any]:
    names = {value: name for name, value in ROLES.items()}
    found: dict[str, Any] = {"role": names.get(message.role, "")}
    found["content"] = [_shown_part(part) for part in message.content]
    if message.reasoning:
        found["reasoning"] = message.reasoning
    if message.tool_calls:
        found["tool_calls"] = [
            {"id": call.id, "name": call.name, "arguments": _shown_json(call.arguments or b"{}")}
            for call in message.tool_calls
        ]
    for key in ("tool_call_id", "name"):
        if message.HasField(key):
            found[key] = getattr(message, key)
    return {**found, "is_error": True} if message.is_error else found


def _shown_part(part: pb.ContentPart) -> dict[str, Any]:
    kind = part.WhichOneof("part")
    if kind == "text":
        return {"type": "text", "text": part.text.text}
    if kind == "thinking":
        return {"type": "thinking", "text": part.thinking.text}
    if kind == "structured":
        return {"type": "structured", "value": _shown_json(part.structured.json)}
    if kind == "image":
        return {"type": "image", **_shown_source(part.image.source), **_shown_image(part.image)}
    return {"type": "audio", **_shown_source(part.audio.source), **_shown_audio(part.audio)}


def _shown_source(source: pb.MediaSource) -> dict[str, Any]:
    kind = source.WhichOneof("source")
    if kind == "data":
        return {"bytes": len(source.data), "sha256": hashlib.sha256(source.data).hexdigest()}
    if kind == "data_uri":
        uri = source.data_uri
        return {"data_uri_chars": len(uri), "sha256": hashlib.sha256(uri.encode()).hexdigest()}
    return {} if kind is None else {kind: getattr(source, kind)}


def _shown_image(image: pb.ImagePart) -> dict[str, Any]:
    found: dict[str, Any] = {"media_type": image.media_type} if image.media_type else {}
    details = {value: name for name, value in _parts.DETAILS.items()}
    if image.options.detail:
        found["detail"] = details[image.options.detail]
    for key in ("min_pixels", "max_pixels"):
        if image.options.HasField(key):
            found[key] = getattr(image.options, key)
    return found


def _shown_audio(audio: pb.AudioPart) -> dict[str, Any]:
    found: dict[str, Any] = {"format": audio.format or "wav"}
    for key in ("sample_rate", "channels"):
        if getattr(audio, key):
            found[key] = getattr(audio, key)
    return found


def _shown_json(encoded: bytes) -> Any:
    return parse(encoded.decode(), "")
