"""Tool results of TRL-style training loops as typed parts: an image never becomes text.

TRL turns whatever a tool returns into `str(result)` unless it is a list. Here a result becomes content parts
that the converters take ({"type": "text" | "image" | "audio" | "structured", ...}), whatever its Python type.
Pillow is not imported to encode: an image brings its own encoder.
"""

import asyncio
import base64
import functools
import inspect
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from patchloom_client.errors import InvalidMessage, UnsupportedContent
from patchloom_client.protocols._json import canonical, json_object
from patchloom_client.protocols._values import (
    join,
    mapping,
    optional_text,
    required_text,
    sequence,
    shown,
)

Part = dict[str, Any]
Kind = Literal["auto", "text", "image", "audio", "structured"]

KINDS = ("auto", "text", "image", "audio", "structured")
BLOCK_TYPES = ("text", "image", "image_url", "audio", "structured")
_PNG_MODES = ("1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA")
_IMAGE_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\0", "image/tiff"),
    (b"MM\0*", "image/tiff"),
)
# What str() makes of an object, of a Pillow image and of the first bytes of a PNG or JPEG file.
_REPR = re.compile(
    r"\bobject at 0x[0-9A-Fa-f]+|\bat 0x[0-9A-Fa-f]{6,}>|<PIL\.|\bb['\"]\\x(?:89PNG|ff\\xd8\\xff)"
)


def make_tool_result(payload: object, kind: Kind = "auto") -> list[Part]:
    """The content parts of a tool's result; an empty list for None.

    "auto" goes by type. A string is text, whatever it spells. A Pillow image, or the bytes of an image or
    WAV file, is a media part. A list or tuple is its entries in order; entries that are all objects without
    a type are one structured part. An object with a type is a content block; another one is JSON text, and
    where it holds images, each stands behind its key. The other kinds insist: "text" (strings, numbers and
    JSON), "image" (Pillow images, bytes, data URIs and https URLs), "audio" (bytes of a WAV file),
    "structured" (a list or object).

    Raises UnsupportedContent or InvalidMessage for anything else, so nothing is ever turned into its repr.
    """
    if kind not in KINDS:
        raise InvalidMessage(f"kind {shown(kind)} is not known; one of {', '.join(KINDS)}", "kind")
    return [] if payload is None else _MAKERS[kind](payload)


def _auto(payload: object) -> list[Part]:
    if isinstance(payload, list | tuple):
        return _entries(payload)
    if isinstance(payload, Mapping):
        return _object(payload)
    if is_image(payload):
        return _image(payload)
    if isinstance(payload, bytes | bytearray | memoryview):
        return _audio(payload) if _is_wav(bytes(payload)) else _image(payload)
    return _text(payload)


def _entries(payload: Sequence[Any]) -> list[Part]:
    if payload and all(_is_record(entry) for entry in payload):
        return _structured(list(payload))
    return [part for entry in payload for part in make_tool_result(entry)]


def _is_record(entry: object) -> bool:
    return isinstance(entry, Mapping) and "type" not in entry and not _media_keys(entry)


def _object(payload: Mapping[str, Any]) -> list[Part]:
    if "type" in payload:
        return [_block(payload)]
    media = _media_keys(payload)
    if not media:
        return _text(payload)
    parts: list[Part] = []
    for key, value in payload.items():
        if key in media and key != "image":
            parts.append({"type": "text", "text": f"{key}:"})
        elif key not in media and key != "text":
            value = canonical({key: value}, join("", str(key))).decode()
        parts.extend(make_tool_result(value))
    return parts


def _media_keys(payload: Mapping[str, Any]) -> list[str]:
    """The keys under which an object holds an image, bytes, or a list with one."""
    return [key for key, value in payload.items() if _holds_media(value)]


def _holds_media(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(_holds_media(entry) for entry in value)
    return is_image(value) or isinstance(value, bytes | bytearray | memoryview)


def _block(block: Mapping[str, Any]) -> Part:
    """A content block; an image block may hold a Pillow image or bytes under any key of its source."""
    kind = block["type"]
    if not isinstance(kind, str) or kind not in BLOCK_TYPES:
        raise UnsupportedContent(
            f"content type {shown(kind)} is not supported; send {', '.join(BLOCK_TYPES)}", "type"
        )
    found = dict(block)
    media = _media_keys(block)
    if media and (kind not in ("image", "audio") or len(media) > 1):
        raise InvalidMessage("media stands where it is no source; send an image block", media[0])
    for key in media:
        made = _MAKERS[kind](found.pop(key))
        found |= {name: value for part in made for name, value in part.items() if name not in found}
    return found


def _text(payload: object) -> list[Part]:
    if isinstance(payload, str):
        text = payload
    elif payload is None or isinstance(payload, bool | int | float | Mapping | list | tuple):
        text = json.dumps(json.loads(canonical(payload, "")), ensure_ascii=False)
    else:
        raise UnsupportedContent(
            f"{shown(payload)} is no tool result; return text, JSON, a Pillow image, bytes of a file, or a"
            " list of them"
        )
    return [{"type": "text", "text": text}]


def _image(payload: object) -> list[Part]:
    if isinstance(payload, str):
        key = "url" if payload[:5].lower() in ("http:", "https") else "data_uri"
        return [{"type": "image", key: payload}]
    if is_image(payload):
        return [_encoded(_png(payload), "image/png")]
    if isinstance(payload, bytes | bytearray | memoryview):
        data = bytes(payload)
        return [_encoded(data, _media_type(data))]
    raise UnsupportedContent(
        f"{shown(payload)} is no image; return a Pillow image, bytes of a file, a data URI or an https URL"
    )


def _encoded(data: bytes, media_type: str) -> Part:
    return {
        "type": "image",
        "data": base64.b64encode(data).decode(),
        "media_type": media_type,
    }


def _media_type(data: bytes) -> str:
    for signature, media_type in _IMAGE_SIGNATURES:
        if data.startswith(signature):
            return media_type
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    raise UnsupportedContent("bytes that are no image; send png, jpeg, webp, gif, bmp or tiff")


def _audio(payload: object) -> list[Part]:
    if not isinstance(payload, bytes | bytearray | memoryview) or not _is_wav(bytes(payload)):
        raise UnsupportedContent(f"{shown(payload)} is no audio; return the bytes of a WAV file")
    return [{"type": "audio", "data": base64.b64encode(payload).decode(), "format": "wav"}]


def _is_wav(data: bytes) -> bool:
    return data[:4] == b"RIFF" and data[8:12] == b"WAVE"


def _structured(payload: object) -> list[Part]:
    if not isinstance(payload, Mapping | list | tuple):
        raise UnsupportedContent(f"{shown(payload)} is not structured; return a list or an object")
    return [{"type": "structured", "value": json.loads(canonical(payload, ""))}]


_MAKERS: dict[str, Callable[[object], list[Part]]] = {
    "auto": _auto,
    "text": _text,
    "image": _image,
    "audio": _audio,
    "structured": _structured,
}


def is_image(value: object) -> bool:
    """Whether a value is a Pillow image, found without importing Pillow."""
    return any(base.__name__ == "Image" and base.__module__ == "PIL.Image" for base in type(value).__mro__)


def _png(image: Any) -> bytes:
    """A Pillow image as PNG: lossless, its orientation tag kept; modes that PNG has not become RGB."""
    if image.mode in ("F", "I;16B", "I;16L"):
        raise UnsupportedContent(f"image mode {shown(image.mode)} is not supported; return RGB")
    exif = image.info.get("exif")
    if image.mode not in _PNG_MODES:
        image = image.convert("RGBA" if image.mode in ("PA", "La", "RGBa") else "RGB")
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **({"exif": exif} if isinstance(exif, bytes) else {}))
    return buffer.getvalue()


async def call_tools(
    tool_calls: Iterable[Mapping[str, Any]],
    tools: Mapping[str, Callable[..., Any]],
    kind: Kind = "auto",
) -> list[dict[str, Any]]:
    """Runs the calls of one turn and returns their tool messages in call order.

    Calls are {"id", "function": {"name", "arguments"}} as in Chat Completions; the id may be absent.
    Synchronous tools run one after the other, asynchronous ones overlap. A tool that raises, that is not
    known or whose arguments are no object gives an error result ({"is_error": true} with the error as text).
    Raises UnsupportedContent for a result that is no content.
    """
    calls = [_function(call, f"tool_calls[{i}]") for i, call in enumerate(tool_calls)]
    results = await asyncio.gather(*(_run(call, tools) for call in calls), return_exceptions=True)
    return [_tool_message(call, result, kind) for call, result in zip(calls, results, strict=True)]


@dataclass(frozen=True, slots=True)
class _Function:
    id: str | None
    name: str
    arguments: object


def _function(value: object, path: str) -> _Function:
    call, where = mapping(value, path), join(path, "function")
    function = mapping(call.get("function"), where)
    name = required_text(function, "name", where)
    return _Function(optional_text(call.get("id"), join(path, "id")), name, function.get("arguments"))


async def _run(call: _Function, tools: Mapping[str, Callable[..., Any]]) -> object:
    if call.name not in tools:
        raise LookupError(f"no tool named {shown(call.name)}; there are {', '.join(tools)}")
    result = tools[call.name](**json.loads(json_object(call.arguments, "arguments")))
    return await result if inspect.isawaitable(result) else result


def _tool_message(call: _Function, result: object, kind: Kind) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "tool", "name": call.name}
    if call.id is not None:
        message["tool_call_id"] = call.id
    if isinstance(result, Exception):
        said = f"{type(result).__name__}: {result}"
        return {**message, "is_error": True, "content": make_tool_result(said, "text")}
    if isinstance(result, BaseException):
        raise result
    return {**message, "content": make_tool_result(result, kind)}


def environment_tools(environment: object) -> dict[str, Callable[..., Any]]:
    """The tools of an environment as TRL's `environment_factory` finds them: public methods but `reset`."""
    members = inspect.getmembers(environment, inspect.ismethod)
    return {name: method for name, method in members if name[0] != "_" and name != "reset"}


def typed_tool(tool: Callable[..., Any]) -> Callable[..., Any]:
    """A tool for TRL's trainers that always returns content blocks, with images as Pillow images.

    The name, signature and docstring stay, since TRL builds the schema from them. Needs Pillow where a result
    holds an image.
    """
    if inspect.iscoroutinefunction(tool):

        @functools.wraps(tool)
        async def typed_async(*args: Any, **kwargs: Any) -> list[Part]:
            return [_trl_block(part) for part in make_tool_result(await tool(*args, **kwargs))]

        return typed_async

    @functools.wraps(tool)
    def typed(*args: Any, **kwargs: Any) -> list[Part]:
        return [_trl_block(part) for part in make_tool_result(tool(*args, **kwargs))]

    return typed


def _trl_block(part: Part) -> Part:
    if part["type"] == "text":
        return part
    if part["type"] == "image" and "data" in part:
        from PIL import Image

        return {"type": "image", "image": Image.open(io.BytesIO(base64.b64decode(part["data"])))}
    raise UnsupportedContent(f"TRL takes text and images, not {shown(part['type'])}")


def typed_messages(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """TRL's messages as a Chat Completions history: image objects and bytes in blocks become encoded images.

    First checks that no image stands as text. The result is the `messages` of a body for
    `protocols.openai_chat.to_request`.
    """
    checked = [dict(mapping(message, f"messages[{i}]")) for i, message in enumerate(messages)]
    assert_no_image_as_text(checked)
    for i, message in enumerate(checked):
        if isinstance(message.get("content"), list | tuple):
            message["content"] = [
                _typed_entry(entry, f"messages[{i}].content[{j}]")
                for j, entry in enumerate(message["content"])
            ]
    return checked


def _typed_entry(entry: object, path: str) -> object:
    if not isinstance(entry, Mapping) or not _media_keys(entry):
        return entry
    try:
        return _block(entry)
    except InvalidMessage as error:
        raise error.at(join(path, error.field_path)) from error


def assert_no_image_as_text(conversation: object) -> None:
    """Raises InvalidMessage where an image became text, or is about to.

    In any message: an image object or bytes as content or as text. In tool messages also what `str()`
    makes of objects ("<PIL.", "... object at 0x...", "b'\\x89PNG"). Takes messages, or a body with messages.
    """
    if isinstance(conversation, Mapping):
        conversation = conversation.get("messages")
    for i, message in enumerate(sequence(conversation, "messages")):
        path = f"messages[{i}]"
        body = mapping(message, path)
        _check(body.get("content"), f"{path}.content", body.get("role") == "tool")


def _check(value: object, path: str, tool: bool) -> None:
    if is_image(value) or isinstance(value, bytes | bytearray | memoryview):
        raise InvalidMessage("an image object or bytes stand as text; send an image part", path)
    if isinstance(value, str):
        if tool and (found := _REPR.search(value)):
            raise InvalidMessage(
                f"the text of a tool holds the repr of an object ({shown(found.group())}); send its content",
                path,
            )
    elif isinstance(value, Mapping):
        media = value.get("type") in ("image", "audio")
        for key, item in value.items():
            if not (media and _holds_media(item)):
                _check(item, join(path, str(key)), tool)
    elif isinstance(value, list | tuple):
        for j, item in enumerate(value):
            _check(item, f"{path}[{j}]", tool)
