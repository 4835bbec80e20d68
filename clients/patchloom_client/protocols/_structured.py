"""List content of tool messages: typed parts and strings, or JSON that a template iterates over."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.errors import InvalidMessage, UnsupportedContent
from patchloom_client.protocols._json import canonical
from patchloom_client.protocols._parts import text_part
from patchloom_client.protocols._values import items, shown, text

# The names that templates test for, as a type and as a key.
_MEDIA_NAMES = "image image_url input_image image_data audio audio_url input_audio video video_url"
_MEDIA = frozenset(_MEDIA_NAMES.split())


def structured_part(value: object, path: str) -> pb.ContentPart:
    """The part for a list or object.

    Refuses media in it: an object of a media type at any depth, or a list entry with a media key, which
    templates take for an image.
    """
    if not isinstance(value, Mapping | list | tuple):
        raise InvalidMessage(f"expected a list or an object, got {shown(value)}", path)
    encoded = canonical(value, path)
    if _hides_media(value) or any(_MEDIA & entry.keys() for entry in _entries(value)):
        raise UnsupportedContent("media inside structured content; send it as an image or audio part", path)
    return pb.ContentPart(structured=pb.StructuredPart(json=encoded))


def _entries(value: object) -> list[Mapping[str, object]]:
    entries = value if isinstance(value, list | tuple) else [value]
    return [entry for entry in entries if isinstance(entry, Mapping)]


def _hides_media(value: object) -> bool:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Mapping):
            kind = item.get("type")
            if (isinstance(kind, str) and kind in _MEDIA) or "image_url" in item:
                return True
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)
    return False


def message_content(
    content: object, role: int, path: str, typed_part: Callable[[object, str], pb.ContentPart]
) -> list[pb.ContentPart]:
    """The parts of a message's content: a string, a list of parts, or nothing where the role allows that."""
    optional = role in (pb.ROLE_ASSISTANT, pb.ROLE_TOOL)
    if content is None or content == [] or content == ():
        if not optional:
            raise InvalidMessage("missing content; send a string or a list of parts", path)
        return []
    if isinstance(content, str):
        return [text_part(text(content, path))] if content or not optional else []
    if not isinstance(content, list | tuple):
        raise InvalidMessage(f"content is a string or a list of parts, got {shown(content)}", path)
    if role == pb.ROLE_TOOL:
        return tool_content(content, path, typed_part)
    return [typed_part(part, where) for part, where in items(content, path)]


def tool_content(
    content: Sequence[Any], path: str, typed_part: Callable[[object, str], pb.ContentPart]
) -> list[pb.ContentPart]:
    """The parts of a tool message's list: typed parts and strings in their order, or one structured list.

    A list is structured if all its entries are objects without a type, or all are tool references. A text
    part without text is empty text.
    """
    kinds = [entry.get("type") for entry in content if isinstance(entry, Mapping)]
    if kinds and len(kinds) == len(content) and (kinds.count(None) == len(kinds) or _references(kinds)):
        return [structured_part(content, path)]
    return [_tool_part(part, where, typed_part) for part, where in items(content, path)]


def _references(kinds: list[object]) -> bool:
    return all(kind == "tool_reference" for kind in kinds)


def _tool_part(
    part: object, path: str, typed_part: Callable[[object, str], pb.ContentPart]
) -> pb.ContentPart:
    if isinstance(part, str):
        return text_part(text(part, path))
    if isinstance(part, Mapping) and part.get("text") is None:
        kind = part.get("type")
        if isinstance(kind, str) and kind in ("text", "input_text"):
            return text_part("")
    return typed_part(part, path)
