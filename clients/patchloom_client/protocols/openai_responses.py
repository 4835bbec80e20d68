"""OpenAI Responses bodies as normalized requests: items become turns."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.errors import InvalidMessage, UnsupportedContent
from patchloom_client.protocols import _parts, _request
from patchloom_client.protocols._json import json_object
from patchloom_client.protocols._structured import tool_content
from patchloom_client.protocols._tools import flat_tools
from patchloom_client.protocols._turns import Turns
from patchloom_client.protocols._values import (
    Body,
    Notes,
    items,
    join,
    listed,
    mapping,
    required_text,
    shown,
    text,
)
from patchloom_client.protocols.options import apply_options

_ROLES = {
    "developer": pb.ROLE_SYSTEM,
    "system": pb.ROLE_SYSTEM,
    "user": pb.ROLE_USER,
    "assistant": pb.ROLE_ASSISTANT,
}
_PART_TYPES: dict[int, tuple[str, ...]] = {
    pb.ROLE_SYSTEM: ("input_text",),
    pb.ROLE_USER: ("input_text", "input_image", "input_audio"),
    pb.ROLE_ASSISTANT: ("output_text", "refusal", "input_text"),
    pb.ROLE_TOOL: ("input_text", "input_image", "input_audio"),
}
_IGNORED_FIELDS = """
access_programs include max_output_tokens max_tool_calls metadata moderation parallel_tool_calls
prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier service_tier store stream
stream_options temperature text tool_choice top_logprobs top_p user
frequency_penalty logit_bias min_p presence_penalty priority repetition_penalty request_id seed stop
stop_token_ids top_k
"""
_IGNORED = frozenset(_IGNORED_FIELDS.split())
_STATE = "no conversation is stored here; send the whole history as input"
_REFUSED = {
    "background": "background responses are not supported; leave it out",
    "background_options": "background responses are not supported; leave it out",
    "context_management": "context management is not supported; send the history as the model is to see it",
    "conversation": _STATE,
    "previous_response_id": _STATE,
    "prompt": "stored prompts are not supported; send instructions and input",
}
_READ = ("input", "instructions", "reasoning", "truncation", "image")
_ITEM_KEYS = ("type", "id", "status", "caller")


def to_request(body: Mapping[str, Any]) -> pb.PreprocessRequest:
    """The normalized request of a Responses body.

    Consecutive calls are one assistant turn, with the reasoning and the message before them; each output is
    a tool message. Raises InvalidMessage, UnsupportedContent, InvalidImage or InvalidAudio with the path of
    the field in the body's own words; what is knowingly left out is in the request's warnings.
    """
    notes = Notes()
    body = _request.check_top_level(body, (*_READ, *_REFUSED), _IGNORED, notes)
    _request.refuse_keys(body, _REFUSED)
    turns = Turns(notes)
    if body.get("instructions") is not None:
        turns.message(_instructions(body["instructions"]))
    _read_input(body.get("input"), turns, notes)
    tools = flat_tools(
        body.get("tools"), "tools", ("function",), "parameters", ("defer_loading", "allowed_callers")
    )
    request = _request.build(body, turns.finish(), tools, notes)
    _apply_reasoning(request, body)
    _note_context(body, request)
    return request


def _instructions(value: object) -> pb.Message:
    part = _parts.text_part(text(value, "instructions"))
    return pb.Message(role=pb.ROLE_SYSTEM, content=[part])


def _read_input(value: object, turns: Turns, notes: Notes) -> None:
    if value is None:
        raise InvalidMessage("missing input; send a string or a list of items", "input")
    if isinstance(value, str):
        part = _parts.text_part(text(value, "input"))
        turns.message(pb.Message(role=pb.ROLE_USER, content=[part]))
        return
    for item, path in items(value, "input"):
        _read_item(mapping(item, path), path, turns, notes)


def _apply_reasoning(request: pb.PreprocessRequest, body: Body) -> None:
    """`reasoning.effort`, which the options under "patchloom" override."""
    if body.get("reasoning") is None or request.render.HasField("reasoning_effort"):
        return
    effort = mapping(body["reasoning"], "reasoning").get("effort")
    apply_options(request, {"reasoning_effort": effort}, "reasoning")


def _note_context(body: Body, request: pb.PreprocessRequest) -> None:
    if body.get("truncation") not in (None, "disabled"):
        message = "the history is never truncated; this field was left out"
        request.warnings.add(reason="NOT_TRUNCATED", field_path="truncation", message=message)
    image = {} if body.get("image") is None else mapping(body["image"], "image")
    if image.get("context_compression") not in (None, "auto", "disabled"):
        message = "images are never compressed; this field was left out"
        path = "image.context_compression"
        request.warnings.add(reason="NOT_COMPRESSED", field_path=path, message=message)


Reader = Callable[[Body, str, Turns, Notes], None]


def _read_item(item: Body, path: str, turns: Turns, notes: Notes) -> None:
    kind = item.get("type")
    if kind is None and item.get("role") is not None:
        kind = "message"
    if not isinstance(kind, str) or kind not in _ITEMS:
        raise UnsupportedContent(f"input item {shown(kind)} is not supported; send {listed(_ITEMS)}", path)
    read, known = _ITEMS[kind]
    notes.unknown_keys(item, (*_ITEM_KEYS, *known), path)
    read(item, path, turns, notes)


def _read_message(item: Body, path: str, turns: Turns, notes: Notes) -> None:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidMessage(
            f"role {shown(role)} is not supported; one of {listed(_ROLES)}", join(path, "role")
        )
    content = _content(item, _ROLES[role], join(path, "content"), notes)
    if _ROLES[role] == pb.ROLE_ASSISTANT:
        turns.speak(content)
    else:
        turns.message(pb.Message(role=_ROLES[role], content=content))


def _content(item: Body, role: int, path: str, notes: Notes) -> list[pb.ContentPart]:
    content, assistant = item.get("content"), role == pb.ROLE_ASSISTANT
    if isinstance(content, str):
        return [_parts.text_part(text(content, path))] if content or not assistant else []
    if content is None or content == [] or content == ():
        if not assistant:
            raise InvalidMessage("missing content; send a string or a list of parts", path)
        return []
    return [_part(part, role, where, notes) for part, where in items(content, path)]


def _part(part: object, role: int, path: str, notes: Notes) -> pb.ContentPart:
    body = mapping(part, path)
    kind = body.get("type")
    allowed = _PART_TYPES[role]
    if not isinstance(kind, str) or kind not in allowed:
        raise _parts.refused(kind, path, allowed)
    if kind == "input_image":
        return _image(body, path, notes)
    if kind == "input_audio":
        notes.unknown_keys(body, ("type", "input_audio", *_parts.IGNORED_KEYS), path)
        where = join(path, "input_audio")
        return _parts.audio_part(mapping(body.get("input_audio"), where), where)
    key = "refusal" if kind == "refusal" else "text"
    known = ("type", key, "annotations", "logprobs", *_parts.IGNORED_KEYS)
    notes.unknown_keys(body, known, path)
    return _parts.text_content(body, key, path)


def _image(body: Body, path: str, notes: Notes) -> pb.ContentPart:
    known = ("type", "image_url", "file_id", "content_key", *_parts.SIZE_KEYS, *_parts.IGNORED_KEYS)
    notes.unknown_keys(body, known, path)
    options = _parts.size_options(body, path)
    _refuse_file_id(body, path)
    if body.get("content_key") is not None:
        if body.get("image_url") is not None:
            raise InvalidMessage("an image needs exactly one of image_url and content_key", path)
        return _parts.image_part(_parts.content_key_source(body, path), "", options)
    return _parts.image_from_string(body.get("image_url"), join(path, "image_url"), options)


def _refuse_file_id(body: Body, path: str) -> None:
    if body.get("file_id") is not None:
        raise UnsupportedContent(
            "file ids are not supported; send image_url with a data URI or an https URL",
            join(path, "file_id"),
        )


def _read_reasoning(item: Body, path: str, turns: Turns, notes: Notes) -> None:
    summary = _texts(item.get("summary"), join(path, "summary"), "summary_text")
    content = _texts(item.get("content"), join(path, "content"), "reasoning_text")
    if item.get("encrypted_content") is not None:
        _check_encrypted(bool(summary or content), path, notes)
    if summary and content:
        message = "the reasoning is there in full; its summary was left out"
        notes.add("REASONING_SUMMARY", join(path, "summary"), message)
    if content or summary:
        turns.reason(content or summary, path)


def _check_encrypted(readable: bool, path: str, notes: Notes) -> None:
    where = join(path, "encrypted_content")
    if not readable:
        raise UnsupportedContent(
            "encrypted reasoning cannot be read here; send its content or summary, or leave the item out",
            where,
        )
    notes.add("ENCRYPTED_REASONING", where, "encrypted reasoning cannot be read and was left out")


def _texts(value: object, path: str, kind: str) -> str:
    """The texts of a list of blocks of one type, a line each."""
    found = []
    for block, where in [] if value is None else items(value, path):
        body = mapping(block, where)
        if body.get("type") != kind:
            raise _parts.refused(body.get("type"), where, (kind,))
        found.append(text(body.get("text"), join(where, "text")))
    return "\n".join(line for line in found if line)


def _call_id(item: Body, path: str) -> str:
    return required_text(item, "id" if item.get("call_id") is None and item.get("id") else "call_id", path)


def _read_function_call(item: Body, path: str, turns: Turns, notes: Notes) -> None:
    arguments = json_object(item.get("arguments"), join(path, "arguments"))
    _add_call(item, path, turns, required_text(item, "name", path), arguments)


def _read_custom_call(item: Body, path: str, turns: Turns, notes: Notes) -> None:
    arguments = json_object({"input": text(item.get("input"), join(path, "input"))}, path)
    _add_call(item, path, turns, required_text(item, "name", path), arguments)


def _read_computer_call(item: Body, path: str, turns: Turns, notes: Notes) -> None:
    """A call of the tool "computer", whose arguments are its action or {"actions": [...]}."""
    if item.get("action") is not None:
        where = join(path, "action")
        arguments = json_object(mapping(item["action"], where), where)
    else:
        actions = list(items(item.get("actions"), join(path, "actions")))
        arguments = json_object({"actions": [action for action, _ in actions]}, join(path, "actions"))
    _add_call(item, path, turns, "computer", arguments)


def _add_call(item: Body, path: str, turns: Turns, name: str, arguments: bytes) -> None:
    turns.call(pb.ToolCall(id=_call_id(item, path), name=name, arguments=arguments))


def _read_output(item: Body, path: str, turns: Turns, notes: Notes) -> None:
    message = pb.Message(
        role=pb.ROLE_TOOL,
        content=_output(item.get("output"), join(path, "output"), notes),
        tool_call_id=required_text(item, "call_id", path),
    )
    if item.get("name") is not None:
        message.name = text(item["name"], join(path, "name"))
    turns.message(message)


def _output(value: object, path: str, notes: Notes) -> list[pb.ContentPart]:
    if value is None or value == "":
        return []
    if isinstance(value, str):
        return [_parts.text_part(text(value, path))]
    if not isinstance(value, list | tuple):
        raise InvalidMessage(f"output is a string or a list of parts, got {shown(value)}", path)
    return tool_content(value, path, lambda part, where: _part(part, pb.ROLE_TOOL, where, notes))


def _read_screenshot(item: Body, path: str, turns: Turns, notes: Notes) -> None:
    where = join(path, "output")
    output = mapping(item.get("output"), where)
    if output.get("type") != "computer_screenshot":
        raise _parts.refused(output.get("type"), where, ("computer_screenshot",))
    notes.unknown_keys(output, ("type", "image_url", "file_id", *_parts.SIZE_KEYS), where)
    _refuse_file_id(output, where)
    options = _parts.size_options(output, where)
    image = _parts.image_from_string(output.get("image_url"), join(where, "image_url"), options)
    call_id = required_text(item, "call_id", path)
    turns.message(pb.Message(role=pb.ROLE_TOOL, content=[image], tool_call_id=call_id))


_CALL_KEYS = ("call_id", "name", "arguments", "input", "async")
_OUTPUT_KEYS = ("call_id", "name", "output")
_ITEMS: dict[str, tuple[Reader, Collection[str]]] = {
    "message": (_read_message, ("role", "content", "phase")),
    "reasoning": (_read_reasoning, ("summary", "content", "encrypted_content")),
    "function_call": (_read_function_call, _CALL_KEYS),
    "function_call_output": (_read_output, _OUTPUT_KEYS),
    "custom_tool_call": (_read_custom_call, _CALL_KEYS),
    "custom_tool_call_output": (_read_output, _OUTPUT_KEYS),
    "computer_call": (
        _read_computer_call,
        ("call_id", "action", "actions", "pending_safety_checks"),
    ),
    "computer_call_output": (
        _read_screenshot,
        ("call_id", "output", "acknowledged_safety_checks"),
    ),
}
