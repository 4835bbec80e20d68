"""The canonical form of a conversation: what a role may hold, names filled in, results in their place.

Same type in, same type out. It renders nothing and looks into no media.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from patchloom_service.errors import InvalidMessage, LimitExceeded, UnsupportedContent
from patchloom_service.types import (
    AudioPart,
    Conversation,
    ImagePart,
    Json,
    MediaItem,
    MediaPart,
    Message,
    Modality,
    Part,
    Role,
    StructuredPart,
    TextPart,
    ThinkingPart,
    TokenPrompt,
    ToolResultPolicy,
    Warning,
)

_MEDIA_KEYS = frozenset(
    ["image", "image_url", "input_image", "audio", "input_audio", "audio_url", "video", "video_url"]
)


def normalize(conversation: Conversation, max_tool_results: int) -> Conversation:
    """The conversation in canonical form.

    Every message has the content that its role needs: an empty assistant or tool message holds one empty
    text. A tool message has a name: its own, else that of the latest call with its id, else "".
    Tool results stand where `options.tool_results` says. Raises InvalidMessage and UnsupportedContent
    with the path of the part, LimitExceeded for more results in a turn than allowed.
    """
    if not conversation.messages:
        raise InvalidMessage("a conversation needs at least one message", "messages")
    messages = [_checked(message, f"messages[{i}]") for i, message in enumerate(conversation.messages)]
    messages = list(_placed(messages, conversation.options.tool_results, max_tool_results))
    return replace(conversation, messages=tuple(_named(messages)))


def unmatched_results(conversation: Conversation) -> Iterator[Warning]:
    """One warning per tool message that answers no call of an earlier turn, or answers one twice."""
    open_calls: set[str] = set()
    for index, message in enumerate(conversation.messages):
        open_calls |= {call.id for call in message.tool_calls}
        if message.role is not Role.TOOL:
            continue
        if not message.tool_call_id and not open_calls:
            continue  # a history without ids
        if message.tool_call_id in open_calls:
            open_calls.discard(message.tool_call_id)
            continue
        path = f"messages[{index}].tool_call_id"
        yield Warning("UNMATCHED_TOOL_RESULT", path, "no earlier call with this id waits for a result")


def harvest(conversation: Conversation) -> tuple[MediaItem, ...]:
    """The media items of a normalized conversation, in the order of its messages and their parts."""
    items: list[MediaItem] = []
    for m, message in enumerate(conversation.messages):
        for p, part in enumerate(message.content):
            if isinstance(part, ImagePart | AudioPart):
                modality = _modality(part)
                call = message.tool_call_id or "" if message.role is Role.TOOL else ""
                items.append(MediaItem(len(items), modality, part, f"messages[{m}].content[{p}]", m, p, call))
    return tuple(items)


def harvest_tokens(prompt: TokenPrompt) -> tuple[MediaItem, ...]:
    """The media items of a token prompt, in the order of their placeholders."""
    return tuple(
        MediaItem(i, _modality(part), part, f"media[{i}]", 0, i) for i, part in enumerate(prompt.media)
    )


def _modality(part: MediaPart) -> Modality:
    return Modality.IMAGE if isinstance(part, ImagePart) else Modality.AUDIO


def _checked(message: Message, path: str) -> Message:
    for i, part in enumerate(message.content):
        _check_part(message.role, part, f"{path}.content[{i}]")
    assistant, tool = message.role is Role.ASSISTANT, message.role is Role.TOOL
    if message.tool_calls and not assistant:
        raise InvalidMessage("tool calls need role assistant", f"{path}.tool_calls")
    if message.reasoning and not assistant:
        raise InvalidMessage("reasoning needs role assistant", f"{path}.reasoning")
    if message.tool_call_id is not None and not tool:
        raise InvalidMessage("tool_call_id needs role tool", f"{path}.tool_call_id")
    if message.reasoning and any(isinstance(part, ThinkingPart) for part in message.content):
        raise InvalidMessage("reasoning and thinking parts exclude each other; send one of them", path)
    for i, call in enumerate(message.tool_calls):
        if not call.name:
            raise InvalidMessage("a tool call needs a name", f"{path}.tool_calls[{i}].name")
    if message.content:
        return message
    if assistant or tool:
        return replace(message, content=(TextPart(""),))
    raise InvalidMessage(
        f"missing content; a {message.role.value} message needs text or media", f"{path}.content"
    )


def _check_part(role: Role, part: Part, path: str) -> None:
    if isinstance(part, ThinkingPart) and role is not Role.ASSISTANT:
        raise InvalidMessage("thinking parts require role='assistant'", path)
    if isinstance(part, StructuredPart):
        if role is not Role.TOOL:
            raise InvalidMessage("structured parts require role='tool'", path)
        if not isinstance(part.value, list | dict):
            raise InvalidMessage("a structured part is a JSON list or object", path)
        if _hides_media(part.value):
            raise UnsupportedContent(
                "media inside a structured part; send it as an image or audio part", path
            )


def _hides_media(value: Json) -> bool:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            kind = item.get("type")
            if (isinstance(kind, str) and kind in _MEDIA_KEYS) or "image_url" in item:
                return True
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return False


def _placed(messages: list[Message], policy: ToolResultPolicy, limit: int) -> Iterator[Message]:
    """Applies the tool-result policy turn by turn: from an assistant message with calls to the next one."""
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        yield message
        if message.role is not Role.ASSISTANT or not message.tool_calls:
            continue
        end = index
        while end < len(messages) and messages[end].role is not Role.ASSISTANT:
            end += 1
        yield from _turn(messages, index, end, policy, limit)
        index = end


def _turn(
    messages: list[Message], start: int, end: int, policy: ToolResultPolicy, limit: int
) -> Iterable[Message]:
    turn = messages[start:end]
    results = [message for message in turn if message.role is Role.TOOL]
    if len(results) > limit:
        raise LimitExceeded(
            f"{len(results)} tool results in a turn; at most {limit} are allowed",
            f"messages[{start}]",
        )
    rest = [message for message in turn if message.role is not Role.TOOL]
    if turn == results + rest or policy is ToolResultPolicy.KEEP:
        return turn
    if policy is ToolResultPolicy.HOIST:
        return results + rest
    at = next(start + i for i, message in enumerate(turn) if message.role is not Role.TOOL)
    raise InvalidMessage(
        f"{messages[at].role.value} content before the last tool result of its turn; send the results first",
        f"messages[{at}]",
    )


def _named(messages: Iterable[Message]) -> Iterator[Message]:
    names: dict[str, str] = {}
    for message in messages:
        for call in message.tool_calls:
            names[call.id] = call.name
        if message.role is Role.TOOL and not message.name:
            message = replace(message, name=names.get(message.tool_call_id or "", ""))
        yield message
