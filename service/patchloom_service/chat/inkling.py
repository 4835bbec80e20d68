"""Renders a conversation for Inkling, token by token; the model has no template.

A message is a sequence of blocks: a role token, the author's name, a token for the kind of content, the
content, an end token. Every part is a block of its own. Text, names and JSON stay ordinary text
whatever they spell, so nothing in a request can forge a control token.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from patchloom_service.errors import InvalidMessage, LiteralRefused, UnsupportedContent
from patchloom_service.types import (
    AudioPart,
    ControlToken,
    Conversation,
    ImagePart,
    Json,
    LiteralPolicy,
    MediaItem,
    Message,
    Part,
    Prompt,
    Role,
    Segment,
    Slot,
    TextPart,
    TextSegment,
    ThinkingPart,
    ToolCall,
    Warning,
)

EFFORTS: Mapping[str, float] = {
    "none": 0.0,
    "minimal": 0.1,
    "low": 0.2,
    "medium": 0.7,
    "high": 0.9,
    "xhigh": 0.99,
    "max": 0.99,
}
"""Names of reasoning efforts."""

_ROLES = {
    Role.SYSTEM: "message_system",
    Role.USER: "message_user",
    Role.ASSISTANT: "message_model",
    Role.TOOL: "message_tool",
}
_NAMES = (
    *_ROLES.values(),
    *("content_text", "content_image", "content_audio_input", "content_thinking", "content_xml"),
    *("content_invoke_tool_json", "content_model_end_sampling", "audio_end", "end_message"),
)
# Some checkpoints leave this token its number for a name.
_OTHER_SPELLINGS = {"content_xml": "<|unused_200024|>"}


class Vocabulary(Protocol):
    """What the renderer asks of a tokenizer."""

    @property
    def control(self) -> Mapping[str, int]:
        """The spellings that LiteralPolicy.REJECT refuses in text, with their ids."""
        ...

    def token_id(self, spelling: str) -> int | None:
        """The id of an added token, None for any other text."""
        ...


class InklingRenderer:
    """Renders normalized conversations. Has no state of a request and may be shared by threads.

    `default_effort` holds where a request names none; None writes no effort then. LiteralPolicy.PARSE
    is LITERAL here: without a template there is no parser to which text would be given. ValueError for
    a vocabulary without a token that Inkling needs.
    """

    def __init__(self, vocabulary: Vocabulary, default_effort: str | None = "0.9") -> None:
        self._control = {name: ControlToken(_id(vocabulary, name)) for name in _NAMES}
        longest_first = sorted(vocabulary.control, key=len, reverse=True)
        self._literals = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._default_effort = default_effort

    def render(self, conversation: Conversation, items: Sequence[MediaItem]) -> Prompt:
        """The prompt of a normalized conversation, `items` being its harvest.

        The head is: leading system messages, tool declarations, effort; then the other messages in their
        order. No generation prompt is written, the model samples its own. Raises InvalidMessage,
        UnsupportedContent and LiteralRefused with the path of the part.
        """
        return _Rendering(self._control, self._literals, conversation, items).prompt(self._default_effort)


def format_effort(effort: str) -> str:
    """The number that is written for an effort's name or number: at most two decimals, no trailing zeros.

    Hundredths of the float64 are rounded half to even, as the model's own renderer does.
    """
    value = EFFORTS.get(effort)
    if value is None:
        value = _number(effort)
    hundredths = round(value * 100)
    return f"{hundredths / 100:.2f}".rstrip("0").rstrip(".")


def _number(effort: str) -> float:
    try:
        value = float(effort)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= 1.0:
        raise InvalidMessage(
            f"thinking effort must be a finite number in [0, 1] or one of {', '.join(EFFORTS)}, "
            f"got {effort!r}",
            "render.reasoning_effort",
        )
    return value


def _id(vocabulary: Vocabulary, name: str) -> int:
    spellings = [f"<|{name}|>", *([_OTHER_SPELLINGS[name]] if name in _OTHER_SPELLINGS else [])]
    for spelling in spellings:
        found = vocabulary.token_id(spelling)
        if found is not None:
            return found
    raise ValueError(f"the tokenizer has no token {' or '.join(spellings)}; Inkling needs it")


class _Rendering:
    """One conversation on its way to segments."""

    def __init__(
        self,
        control: Mapping[str, ControlToken],
        literals: re.Pattern[str] | None,
        conversation: Conversation,
        items: Sequence[MediaItem],
    ) -> None:
        self._control = control
        reject = conversation.options.literals is LiteralPolicy.REJECT
        self._refused = literals if reject else None
        self._conversation = conversation
        self._slots = {(item.message, item.position): Slot(item.index) for item in items}

    def prompt(self, default_effort: str | None) -> Prompt:
        conversation, effort = self._conversation, self._conversation.options.reasoning_effort
        messages = list(enumerate(conversation.messages))
        head = next((i for i, m in messages if m.role is not Role.SYSTEM), len(messages))
        segments = [
            *self._messages(messages[:head]),
            *self._tools(conversation.tools),
            *self._effort(default_effort if effort is None else effort),
            *self._messages(messages[head:]),
        ]
        return Prompt(tuple(segments), warnings=tuple(_warnings(conversation)))

    def _messages(self, messages: Sequence[tuple[int, Message]]) -> Iterator[Segment]:
        last = len(self._conversation.messages) - 1
        for index, message in messages:
            path = f"messages[{index}]"
            if index == last and self._conversation.options.continue_final_message:
                yield from self._open(message, path)
            elif message.role is Role.ASSISTANT:
                yield from self._assistant(index, message, path)
            else:
                yield from self._parts(index, message, path)

    def _assistant(self, index: int, message: Message, path: str) -> Iterator[Segment]:
        if message.reasoning:
            thinking = self._text(message.reasoning, f"{path}.reasoning")
            yield from self._block(Role.ASSISTANT, [], "content_thinking", thinking)
        only_calls = message.content == (TextPart(""),) and (message.reasoning or message.tool_calls)
        if not only_calls:
            yield from self._parts(index, message, path)
        for i, call in enumerate(message.tool_calls):
            yield from self._call(call, f"{path}.tool_calls[{i}]")
        yield self._control["content_model_end_sampling"]

    def _parts(self, index: int, message: Message, path: str) -> Iterator[Segment]:
        for position, part in enumerate(message.content or (TextPart(""),)):
            yield from self._part(message, part, (index, position), f"{path}.content[{position}]")

    def _part(self, message: Message, part: Part, at: tuple[int, int], path: str) -> Iterator[Segment]:
        role = message.role
        name = "" if role is Role.ASSISTANT else message.name or ""
        author = self._text(name, f"messages[{at[0]}].name")
        match part:
            case TextPart(text):
                yield from self._block(role, author, "content_text", self._text(text, path))
            case ThinkingPart(text):
                if role is not Role.ASSISTANT:
                    raise InvalidMessage("Inkling thinking parts require role='assistant'", path)
                yield from self._block(role, [], "content_thinking", self._text(text, path))
            case ImagePart():
                yield from self._block(role, author, "content_image", [self._slots[at]])
            case AudioPart():
                if role not in (Role.USER, Role.TOOL):
                    raise UnsupportedContent("Inkling takes audio in user and tool messages only", path)
                content: list[Segment] = [self._slots[at], self._control["audio_end"]]
                yield from self._block(role, author, "content_audio_input", content)
            case _:
                raise UnsupportedContent(
                    "Inkling takes no structured parts; send text, image or audio parts", path
                )

    def _call(self, call: ToolCall, path: str) -> Iterator[Segment]:
        arguments = {key: call.arguments[key] for key in sorted(call.arguments)}
        text = _compact({"name": call.name, "args": arguments}, path, exponent="e")
        author = self._text(call.name, f"{path}.name")
        yield from self._block(
            Role.ASSISTANT, author, "content_invoke_tool_json", self._text(text, f"{path}.arguments")
        )

    def _tools(self, tools: Sequence[Mapping[str, Json]]) -> Iterator[Segment]:
        if not tools:
            return
        declared: list[Json] = [_declaration(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
        text = _compact(declared, "tools", exponent="e+", sort=True)
        author = [TextSegment("tool_declare")]
        yield from self._block(Role.SYSTEM, author, "content_xml", self._text(text, "tools"))

    def _effort(self, effort: str | None) -> Iterator[Segment]:
        if effort is not None:
            text = [TextSegment(f"Thinking effort level: {format_effort(effort)}")]
            yield from self._block(Role.SYSTEM, [], "content_text", text)

    def _open(self, message: Message, path: str) -> Iterator[Segment]:
        """The final message without its end, for the model to go on."""
        match message:
            case Message(role=Role.ASSISTANT, content=(TextPart(text),), reasoning="", tool_calls=()):
                content = self._text(text, f"{path}.content[0]")
                block = self._block(Role.ASSISTANT, [], "content_text", content)
                yield from list(block)[:-1]
            case _:
                raise InvalidMessage(
                    "continue_final_message needs a final assistant message of one text, "
                    "without reasoning and tool calls",
                    path,
                )

    def _block(
        self, role: Role, author: Iterable[Segment], kind: str, content: Iterable[Segment]
    ) -> Iterator[Segment]:
        yield self._control[_ROLES[role]]
        yield from author
        yield self._control[kind]
        yield from content
        yield self._control["end_message"]

    def _text(self, text: str, path: str) -> list[Segment]:
        """Ordinary text; empty text is no segment."""
        found = self._refused.search(text) if self._refused else None
        if found:
            raise LiteralRefused(
                f"text holds the control token {found.group()}; without control tokens, or with the "
                "literal policy LITERAL, it is allowed",
                path,
            )
        return [TextSegment(text)] if text else []


def _warnings(conversation: Conversation) -> Iterator[Warning]:
    if conversation.options.template_kwargs:
        names = ", ".join(conversation.options.template_kwargs)
        yield Warning(
            "TEMPLATE_KWARGS_IGNORED",
            "render.template_kwargs",
            f"Inkling has no template that would read {names}",
        )
    for index, message in enumerate(conversation.messages):
        if message.role is Role.ASSISTANT and message.name:
            yield Warning(
                "NAME_IGNORED",
                f"messages[{index}].name",
                "Inkling writes the called tool where an assistant's name would stand",
            )


def _declaration(tool: Mapping[str, Json], path: str) -> Json:
    function = tool.get("function", tool)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidMessage('must be {"type": "function", "function": {"name": ...}}', path)
    return {
        "description": function.get("description") or "",
        "name": function["name"],
        "parameters": function.get("parameters") or {},
        "type": tool.get("type", "function"),
    }


def _compact(value: Json, path: str, exponent: str, sort: bool = False) -> str:
    """Compact JSON as the model's own renderer writes it, integers exact.

    Not ASCII-escaped. `exponent` is how it introduces a positive one, which differs between calls
    and declarations; `sort` sorts the keys of all objects.
    """

    def write(value: Json) -> str:
        match value:
            case float():
                return _float(value, exponent)
            case list():
                return f"[{','.join([write(item) for item in value])}]"
            case dict():
                keys = sorted(value) if sort else value
                return "{" + ",".join([f"{write(key)}:{write(value[key])}" for key in keys]) + "}"
            case _:
                return json.dumps(value, ensure_ascii=False)

    try:
        return write(value)
    except RecursionError as error:
        raise InvalidMessage("nested too deeply", path) from error


def _float(value: float, exponent: str) -> str:
    """The shortest decimal that reads back as `value`; exponents below -5 or above 15 (Rust's ryu)."""
    text = repr(value)
    if "e" not in text:
        return text
    digits, power = text.split("e")
    if int(power) == -5:
        sign = "-" if value < 0 else ""
        return f"{sign}0.0000{digits.lstrip('-').replace('.', '')}"
    return f"{digits}e{int(power)}" if int(power) < 0 else f"{digits}{exponent}{int(power)}"
