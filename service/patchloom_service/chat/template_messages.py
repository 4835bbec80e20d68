"""Normalized messages as the plain dicts that a chat template sees.

A draft fixes order, roles and the form of each content once; it is then written out as often as needed,
each time with other texts or media parts (`Edit`), and the result differs in nothing else.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from patchloom_service.types import (
    AudioPart,
    Conversation,
    ImagePart,
    Json,
    MediaItem,
    Message,
    Modality,
    Role,
    StructuredPart,
    TextPart,
    ThinkingPart,
    ToolCall,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a template wants, learnt by the probe.

    `strings` and `lists` are the roles that need text content as a string, or as a list of parts; any other
    role takes both. `joined` are the roles that lose or print one of several texts. `arguments` is "mapping"
    or "string". `merge_system` joins later system messages to the first.
    """

    strings: frozenset[Role] = frozenset()
    lists: frozenset[Role] = frozenset()
    joined: frozenset[Role] = frozenset()
    arguments: str = "mapping"
    merge_system: bool = False


@dataclass(frozen=True, slots=True)
class MediaSlot:
    """The place of a media item among the parts of a message."""

    item: int
    modality: Modality


DraftPart: TypeAlias = str | MediaSlot | StructuredPart


@dataclass(frozen=True, slots=True)
class DraftMessage:
    """One message of a draft; `path` names the normalized message that it came from.

    Without a role it is a spacer, for a template that writes nothing for a role that it does not know.
    """

    role: Role | None
    parts: tuple[DraftPart, ...]
    path: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None

    @property
    def is_text(self) -> bool:
        """Whether all parts are text."""
        return all(isinstance(part, str) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Untrusted:
    """A text that a client wrote. `generated` marks assistant content and reasoning."""

    path: str
    text: str
    generated: bool = False


def _same_text(text: str, generated: bool) -> str:
    return text


def _plain_media(slot: MediaSlot) -> list[dict[str, Json]]:
    return [{"type": slot.modality.value}]


@dataclass(frozen=True, slots=True)
class Edit:
    """How a draft is written out: `text(text, generated)` for every untrusted text, `media(slot)` for a part.

    `tag` is put behind the last text of the last message.
    """

    text: Callable[[str, bool], str] = _same_text
    media: Callable[[MediaSlot], list[dict[str, Json]]] = _plain_media
    tag: str = ""


REASONING_JOINER = "\n"
"""Stands between the thinking parts of a message, as the client joins blocks of reasoning."""


def draft(conversation: Conversation, items: Sequence[MediaItem], shape: Shape) -> tuple[DraftMessage, ...]:
    """The messages of a normalized conversation in the order and roles that a template gets."""
    slots = {(item.message, item.position): MediaSlot(item.index, item.modality) for item in items}
    messages = tuple(
        _draft_message(message, index, slots) for index, message in enumerate(conversation.messages)
    )
    return _merged(messages) if shape.merge_system else messages


def _draft_message(message: Message, index: int, slots: Mapping[tuple[int, int], MediaSlot]) -> DraftMessage:
    parts: list[DraftPart] = []
    thinking: list[str] = []
    for position, part in enumerate(message.content):
        if isinstance(part, TextPart):
            parts.append(part.text)
        elif isinstance(part, ThinkingPart):
            thinking.append(part.text)
        elif isinstance(part, ImagePart | AudioPart):
            parts.append(slots[index, position])
        else:
            parts.append(part)
    return DraftMessage(
        role=message.role,
        parts=tuple(parts),
        path=f"messages[{index}]",
        reasoning=message.reasoning or REASONING_JOINER.join(filter(None, thinking)),
        tool_calls=message.tool_calls,
        tool_call_id=message.tool_call_id,
        name=message.name,
    )


SYSTEM_JOINER = "\n\n"
"""Stands between system messages that are merged."""


def _merged(messages: tuple[DraftMessage, ...]) -> tuple[DraftMessage, ...]:
    systems = [message for message in messages if message.role is Role.SYSTEM]
    if not systems or (messages[0].role is Role.SYSTEM and len(systems) == 1):
        return messages
    rest = tuple(message for message in messages if message.role is not Role.SYSTEM)
    return (replace(systems[0], parts=_joined_parts(systems)), *rest)


def _joined_parts(systems: Sequence[DraftMessage]) -> tuple[DraftPart, ...]:
    if all(system.is_text for system in systems):
        return (SYSTEM_JOINER.join(" ".join(map(str, system.parts)) for system in systems),)
    parts: list[DraftPart] = []
    for system in systems:
        parts += [SYSTEM_JOINER, *system.parts] if parts else system.parts
    return tuple(parts)


def merged_systems(conversation: Conversation, shape: Shape) -> tuple[str, ...]:
    """The paths of the system messages that do not stay where they stand."""
    if not shape.merge_system:
        return ()
    return tuple(
        f"messages[{index}]"
        for index, message in enumerate(conversation.messages)
        if index and message.role is Role.SYSTEM
    )


def write(messages: Sequence[DraftMessage], shape: Shape, edit: Edit) -> list[dict[str, Any]]:
    """The template messages: role, content, and what else the message has.

    Text-only content: of a tool message one string, its parts joined by a space; of other roles the string
    of a single part, the list of several where the template renders them all, else their join by a space.
    Where a role needs a list, that one text is its only part. Any other content keeps its list form and
    order. The list of a structured part takes its own place.
    """
    written = [_write_message(message, shape, edit) for message in messages]
    if edit.tag and written:
        written[-1]["content"] = _tagged(written[-1]["content"], edit.tag)
    return written


def _write_message(message: DraftMessage, shape: Shape, edit: Edit) -> dict[str, Any]:
    generated = message.role is Role.ASSISTANT
    written: dict[str, Any] = {
        "role": message.role.value if message.role else "spacer",
        "content": _content(message, shape, edit, generated),
    }
    if message.reasoning:
        reasoning = edit.text(message.reasoning, True)
        written |= {"reasoning_content": reasoning, "reasoning": reasoning, "thinking": reasoning}
    if message.tool_calls:
        written["tool_calls"] = [_tool_call(call, shape, edit) for call in message.tool_calls]
    if message.tool_call_id:
        written["tool_call_id"] = edit.text(message.tool_call_id, False)
    if message.name:
        written["name"] = edit.text(message.name, False)
    return written


def _content(message: DraftMessage, shape: Shape, edit: Edit, generated: bool) -> Any:
    parts = message.parts
    if message.is_text:
        if message.role is Role.TOOL or message.role in shape.joined:
            parts = (" ".join(map(str, parts)),)
        if len(parts) < 2 and message.role not in shape.lists:
            return edit.text("".join(map(str, parts)), generated)
    content: list[Any] = []
    for part in parts:
        if isinstance(part, str):
            content.append({"type": "text", "text": edit.text(part, generated)})
        elif isinstance(part, MediaSlot):
            content += edit.media(part)
        else:
            content += _structured(part, edit)
    return content


def _structured(part: StructuredPart, edit: Edit) -> list[Json]:
    value = edited_json(part.value, edit)
    return value if isinstance(value, list) else [value]


def _tool_call(call: ToolCall, shape: Shape, edit: Edit) -> dict[str, Any]:
    arguments: Any = edited_json(call.arguments, edit)
    if shape.arguments == "string":
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {
        "id": edit.text(call.id, False),
        "type": "function",
        "function": {"name": edit.text(call.name, False), "arguments": arguments},
    }


def edited_json(value: Json, edit: Edit) -> Json:
    """A copy of a JSON value with each string and each key edited."""
    if isinstance(value, str):
        return edit.text(value, False)
    if isinstance(value, list):
        return [edited_json(item, edit) for item in value]
    if isinstance(value, dict):
        return {edit.text(key, False): edited_json(item, edit) for key, item in value.items()}
    return value


def _tagged(content: Any, tag: str) -> Any:
    if isinstance(content, str):
        return content + tag
    for index in reversed(range(len(content))):
        if isinstance(content[index], dict) and "text" in content[index]:
            part = content[index] | {"text": content[index]["text"] + tag}
            return [*content[:index], part, *content[index + 1 :]]
    return content


def untrusted(
    messages: Sequence[DraftMessage], tools: Sequence[Json], template_kwargs: Mapping[str, Json]
) -> Iterator[Untrusted]:
    """Every text of a request that is rendered, with its path."""
    for message in messages:
        yield from _message_texts(message)
    for index, tool in enumerate(tools):
        yield from (Untrusted(f"tools[{index}]", text) for text in json_texts(tool))
    for key, value in template_kwargs.items():
        yield from (Untrusted(f"render.template_kwargs.{key}", text) for text in json_texts(value))


def _message_texts(message: DraftMessage) -> Iterator[Untrusted]:
    generated = message.role is Role.ASSISTANT
    for index, part in enumerate(message.parts):
        path = f"{message.path}.content[{index}]"
        if isinstance(part, str):
            yield Untrusted(path, part, generated)
        elif isinstance(part, StructuredPart):
            yield from (Untrusted(path, text) for text in json_texts(part.value))
    if message.reasoning:
        yield Untrusted(f"{message.path}.reasoning", message.reasoning, True)
    for index, call in enumerate(message.tool_calls):
        path = f"{message.path}.tool_calls[{index}]"
        yield Untrusted(f"{path}.id", call.id)
        yield Untrusted(f"{path}.name", call.name)
        yield from (Untrusted(f"{path}.arguments", text) for text in json_texts(call.arguments))
    if message.tool_call_id:
        yield Untrusted(f"{message.path}.tool_call_id", message.tool_call_id)
    if message.name:
        yield Untrusted(f"{message.path}.name", message.name)


def json_texts(value: Json) -> Iterator[str]:
    """All strings and keys in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from json_texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from json_texts(item)
