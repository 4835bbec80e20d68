"""Anthropic Messages bodies as normalized requests: blocks keep their positions around tool results."""

from collections.abc import Iterator, Mapping
from typing import Any

from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.errors import InvalidMessage, UnsupportedContent
from patchloom_client.protocols import _parts, _request, _sources
from patchloom_client.protocols._json import json_object
from patchloom_client.protocols._structured import structured_part
from patchloom_client.protocols._tools import flat_tools
from patchloom_client.protocols._turns import join_reasoning, note_moved
from patchloom_client.protocols._values import (
    Body,
    Notes,
    boolean,
    items,
    join,
    listed,
    mapping,
    required_text,
    shown,
    text,
)
from patchloom_client.protocols.options import apply_options

_ROLES = ("user", "assistant", "system")
_BILLING_HEADER = "x-anthropic-billing-header"
_SYSTEM_BLOCKS = ("text",)
_USER_BLOCKS = ("text", "image", "search_result", "tool_result")
_RESULT_BLOCKS = ("text", "image", "search_result", "tool_reference")
_ASSISTANT_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use")
_IMAGE_SOURCES = ("base64", "url")
_IGNORED_FIELDS = """
cache_control diagnostics inference_geo max_tokens metadata service_tier speed stop_sequences stream
temperature tool_choice top_k top_p user_profile_id workspace_id betas output_format
min_p presence_penalty priority repetition_penalty request_id seed stop_token_ids
"""
_IGNORED = frozenset(_IGNORED_FIELDS.split())
_REFUSED = {
    "container": "containers are not supported; send the whole history as messages",
    "mcp_servers": "MCP servers are not supported; send their tools as tools",
}
_READ = ("messages", "system", "thinking", "output_config")
_TOOL_KINDS = (None, "custom")
_TOOL_LEFT_OUT = ("cache_control", "eager_input_streaming", "defer_loading", "allowed_callers")


def to_request(body: Mapping[str, Any]) -> pb.PreprocessRequest:
    """The normalized request of an Anthropic Messages body.

    User content before and after a tool_result becomes user messages before and after its tool message.
    Raises InvalidMessage, UnsupportedContent or InvalidImage with the path of the field in the body's own
    words; what is knowingly left out is in the request's warnings.
    """
    notes = Notes()
    body = _request.check_top_level(body, (*_READ, *_REFUSED), _IGNORED, notes)
    _request.refuse_keys(body, _REFUSED)
    messages = [*_system(body.get("system"), "system", notes)]
    for message, path in items(body.get("messages"), "messages"):
        messages.extend(_message(mapping(message, path), path, notes))
    tools = flat_tools(body.get("tools"), "tools", _TOOL_KINDS, "input_schema", _TOOL_LEFT_OUT)
    request = _request.build(body, messages, tools, notes)
    _apply_effort(request, body)
    return request


def _apply_effort(request: pb.PreprocessRequest, body: Body) -> None:
    """`output_config.effort`, else "none" for disabled thinking; the "patchloom" options override it."""
    output, thinking = (_object(body, key) for key in ("output_config", "thinking"))
    if request.render.HasField("reasoning_effort"):
        return
    if output.get("effort") is not None:
        apply_options(request, {"reasoning_effort": output["effort"]}, "output_config")
    elif thinking.get("type") == "disabled":
        request.render.reasoning_effort = "none"


def _object(body: Body, key: str) -> Body:
    return {} if body.get(key) is None else mapping(body[key], key)


def _message(body: Body, path: str, notes: Notes) -> Iterator[pb.Message]:
    role = body.get("role")
    notes.unknown_keys(body, ("role", "content"), path)
    where = join(path, "content")
    content = body.get("content")
    if role == "assistant":
        yield _assistant(content, where, notes)
    elif role == "user":
        yield from _user(content, where, notes)
    elif role == "system":
        if content is None or content == [] or content == ():
            raise InvalidMessage("missing content; send a string or a list of text blocks", where)
        yield from _system(content, where, notes)
    else:
        raise InvalidMessage(
            f"role {shown(role)} is not supported; one of {listed(_ROLES)}", join(path, "role")
        )


def _system(value: object, path: str, notes: Notes) -> Iterator[pb.Message]:
    """The system message; none for null, for no blocks and where only a billing header stood."""
    if isinstance(value, str):
        yield pb.Message(role=pb.ROLE_SYSTEM, content=[_parts.text_part(text(value, path))])
        return
    parts = [
        _text(block, where, notes)
        for block, where in _blocks(value, path, _SYSTEM_BLOCKS)
        if not _is_billing_header(block, where, notes)
    ]
    if parts:
        yield pb.Message(role=pb.ROLE_SYSTEM, content=parts)


def _is_billing_header(block: Body, path: str, notes: Notes) -> bool:
    """Claude Code's header changes with every request, so a prompt with it never hits a cache."""
    value = block.get("text")
    found = isinstance(value, str) and value.startswith(_BILLING_HEADER)
    if found:
        notes.add("BILLING_HEADER", path, f"the {_BILLING_HEADER} block was left out")
    return found


def _user(content: object, path: str, notes: Notes) -> Iterator[pb.Message]:
    if content is None or content == [] or content == ():
        raise InvalidMessage("missing content; send a string or a list of blocks", path)
    parts: list[pb.ContentPart] = []
    for block, where in _blocks(content, path, _USER_BLOCKS):
        if block["type"] != "tool_result":
            parts.append(_part(block, where, notes))
            continue
        if parts:
            yield pb.Message(role=pb.ROLE_USER, content=parts)
        parts = []
        yield _tool_result(block, where, notes)
    if parts:
        yield pb.Message(role=pb.ROLE_USER, content=parts)


def _blocks(value: object, path: str, allowed: tuple[str, ...]) -> Iterator[tuple[Body, str]]:
    """The blocks of a content, each of an allowed type; a string is one text block, null is none."""
    if isinstance(value, str):
        yield {"type": "text", "text": text(value, path)}, path
        return
    for item, where in [] if value is None else items(value, path):
        block = mapping(item, where)
        kind = block.get("type")
        if not isinstance(kind, str) or kind not in allowed:
            raise _refused_block(kind, where, allowed)
        yield block, where


def _refused_block(kind: object, path: str, allowed: tuple[str, ...]) -> Exception:
    if kind in ("thinking", "redacted_thinking"):
        return InvalidMessage("thinking parts require role='assistant'", path)
    return _parts.refused(kind, path, allowed)


def _part(block: Body, path: str, notes: Notes) -> pb.ContentPart:
    if block["type"] == "text":
        return _text(block, path, notes)
    return (_image if block["type"] == "image" else _search_result)(block, path, notes)


def _text(block: Body, path: str, notes: Notes) -> pb.ContentPart:
    notes.unknown_keys(block, ("type", "text", "citations", *_parts.IGNORED_KEYS), path)
    return _parts.text_content(block, "text", path)


def _search_result(block: Body, path: str, notes: Notes) -> pb.ContentPart:
    """Three lines of text: title, source and content; citations are not asked for."""
    known = ("type", "title", "source", "content", "citations", *_parts.IGNORED_KEYS)
    notes.unknown_keys(block, known, path)
    where = join(path, "content")
    blocks = _blocks(block.get("content"), where, ("text",))
    content = "\n".join(_text(inner, spot, notes).text.text for inner, spot in blocks)
    title, source = (text(block.get(key), join(path, key)) for key in ("title", "source"))
    return _parts.text_part(f"Title: {title}\nSource: {source}\nContent: {content}")


def _image(block: Body, path: str, notes: Notes) -> pb.ContentPart:
    known = ("type", "source", "content_key", "transformations", *_parts.SIZE_KEYS)
    notes.unknown_keys(block, (*known, *_parts.IGNORED_KEYS), path)
    options = _parts.size_options(block, path)
    if block.get("transformations") is not None:
        message = "images are resized by the model's own rule; this field was left out"
        notes.add("IMAGE_TRANSFORMATIONS", join(path, "transformations"), message)
    where = join(path, "source")
    if block.get("content_key") is not None:
        if block.get("source") is not None:
            raise InvalidMessage("an image needs exactly one of source and content_key", path)
        return _parts.image_part(_parts.content_key_source(block, path), "", options)
    source, media_type = _source(mapping(block.get("source"), where), where)
    return _parts.image_part(source, media_type, options)


def _source(source: Body, path: str) -> tuple[pb.MediaSource, str]:
    kind = source.get("type")
    if kind == "base64":
        data = _sources.decode_base64(source.get("data"), join(path, "data"))
        declared = _sources.declared_type(source.get("media_type"), join(path, "media_type"))
        return pb.MediaSource(data=data), declared
    if kind == "url":
        return _sources.from_string(source.get("url"), join(path, "url"))
    raise UnsupportedContent(
        f"image source {shown(kind)} is not supported; send {listed(_IMAGE_SOURCES)}", path
    )


def _tool_result(block: Body, path: str, notes: Notes) -> pb.Message:
    known = ("type", "tool_use_id", "content", "is_error", *_parts.IGNORED_KEYS)
    notes.unknown_keys(block, known, path)
    message = pb.Message(
        role=pb.ROLE_TOOL,
        content=_result_content(block.get("content"), join(path, "content"), notes),
        tool_call_id=required_text(block, "tool_use_id", path),
    )
    if block.get("is_error") is not None:
        message.is_error = boolean(block["is_error"], join(path, "is_error"))
    return message


def _result_content(value: object, path: str, notes: Notes) -> list[pb.ContentPart]:
    if value == "":
        return []
    blocks = list(_blocks(value, path, _RESULT_BLOCKS))
    references = [where for block, where in blocks if block["type"] == "tool_reference"]
    if references and len(references) < len(blocks):
        raise UnsupportedContent(
            "tool references stand beside other content; send them in a result of their own", references[0]
        )
    if references:
        return [_tool_references(blocks, path)]
    return [_part(block, where, notes) for block, where in blocks]


def _tool_references(blocks: list[tuple[Body, str]], path: str) -> pb.ContentPart:
    """Structured content, in the form of the templates that know it."""
    names = [required_text(block, "tool_name", where) for block, where in blocks]
    return structured_part([{"type": "tool_reference", "name": name} for name in names], path)


def _assistant(content: object, path: str, notes: Notes) -> pb.Message:
    message = pb.Message(role=pb.ROLE_ASSISTANT)
    if content == "":
        return message
    reasoning: list[str] = []
    for block, where in _blocks(content, path, _ASSISTANT_BLOCKS):
        if block["type"] == "text":
            note_moved(bool(message.tool_calls), "CONTENT_MOVED", where, notes)
            message.content.append(_text(block, where, notes))
        elif block["type"] == "tool_use":
            message.tool_calls.append(_tool_use(block, where, notes))
        elif block["type"] == "thinking":
            note_moved(bool(message.content or message.tool_calls), "REASONING_MOVED", where, notes)
            reasoning.append(_thinking(block, where, notes))
        else:
            what = "redacted thinking cannot be read and was left out"
            notes.add("REDACTED_THINKING", where, what)
    if any(reasoning):
        message.reasoning = join_reasoning(reasoning)
    return message


def _thinking(block: Body, path: str, notes: Notes) -> str:
    notes.unknown_keys(block, ("type", "thinking", "signature", *_parts.IGNORED_KEYS), path)
    return text(block.get("thinking"), join(path, "thinking"))


def _tool_use(block: Body, path: str, notes: Notes) -> pb.ToolCall:
    known = ("type", "id", "name", "input", "caller", *_parts.IGNORED_KEYS)
    notes.unknown_keys(block, known, path)
    where = join(path, "input")
    value = {} if block.get("input") is None else mapping(block["input"], where)
    return pb.ToolCall(
        id=required_text(block, "id", path),
        name=required_text(block, "name", path),
        arguments=json_object(value, where),
    )
