"""InternVLChatModel: a template over plain strings, into which images are written beforehand.

Image parts of any message become `<img><IMG_CONTEXT></img>` and a newline at their place. A user message may
instead hold the legacy marker `<IMAGE_TOKEN>` for each of its images, which then stand there. The
Hugging Face form of InternVL has a template that takes parts and needs none of this.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from patchloom_service.chat.jinja_template import ChatTemplate, TemplateLimits
from patchloom_service.chat.render import JinjaRenderer
from patchloom_service.errors import InvalidMessage, PatchloomError, TemplateRefused
from patchloom_service.types import (
    AudioPart,
    Conversation,
    ImagePart,
    MediaItem,
    Message,
    Part,
    Prompt,
    Role,
    TextPart,
)

ARCHITECTURE = "InternVLChatModel"
IMAGE = "<img><IMG_CONTEXT></img>"
"""What the template sees of an image; the run of an item replaces the token in the middle."""

MARKER = "<IMAGE_TOKEN>"
"""The legacy marker: in user messages with as many of them as images, the images' places; else text."""


@dataclass(frozen=True, slots=True)
class View:
    """A conversation with every image at the place where it is written.

    `items` are the same items, in the same order, at their new positions; `paths` leads from the path of a
    part in the view to that of the part it came from.
    """

    conversation: Conversation
    items: tuple[MediaItem, ...]
    paths: Mapping[str, str]


class InternVLChatRenderer(JinjaRenderer):
    """Renders normalized conversations with a checkpoint's template for strings; thread-safe."""

    def _compile(self, source: str, limits: TemplateLimits | None) -> ChatTemplate:
        return StringTemplate(source, limits)

    def render(self, conversation: Conversation, items: Sequence[MediaItem]) -> Prompt:
        """As JinjaRenderer.render; InvalidMessage too for markers and images that do not match in number."""
        seen = view(conversation, items)
        try:
            return super().render(seen.conversation, seen.items)
        except PatchloomError as error:
            raise error.at(seen.paths.get(error.field_path, error.field_path)) from error


class StringTemplate(ChatTemplate):
    """A template that gets every message's content as one string, its images written out."""

    def render(self, variables: Mapping[str, Any], now: float) -> str:
        """As ChatTemplate.render; TemplateRefused for parts that cannot be written."""
        messages = [written(message) for message in variables["messages"]]
        return super().render({**variables, "messages": messages}, now)


def written(message: Mapping[str, Any]) -> dict[str, Any]:
    """The template message with its list of parts joined to a string; all other fields kept."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(map(_spelling, content))
    return {**message, "content": content}


def _spelling(part: object) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image"}:
            return IMAGE
        case _:
            raise TemplateRefused("the template takes strings; send text and image parts")


def view(conversation: Conversation, items: Sequence[MediaItem]) -> View:
    """The conversation as it is written; raises InvalidMessage as `placed` does.

    Texts, roles, tool calls, ids and names stay as they are.
    """
    owners = {(item.message, item.position): item for item in items}
    messages: list[Message] = []
    moved: list[MediaItem] = []
    paths: dict[str, str] = {}
    for index, message in enumerate(conversation.messages):
        path = f"messages[{index}].content"
        parts = list(placed(message, path))
        messages.append(replace(message, content=tuple(part for _, part in parts)))
        for position, (origin, part) in enumerate(parts):
            paths[f"{path}[{position}]"] = f"{path}[{origin}]"
            if isinstance(part, ImagePart | AudioPart):
                moved.append(replace(owners[index, origin], position=position))
    moved.sort(key=lambda item: item.index)
    return View(replace(conversation, messages=tuple(messages)), tuple(moved), paths)


def placed(message: Message, path: str) -> Iterator[tuple[int, Part]]:
    """The parts of a message as they are written, each with the position of the part it came from.

    Markers mean images in user messages with images only, and there they must be none or as many as the
    images; InvalidMessage at `path` for another number.
    """
    images = [(p, part) for p, part in enumerate(message.content) if isinstance(part, ImagePart)]
    markers = sum(part.text.count(MARKER) for part in message.content if isinstance(part, TextPart))
    if not images or not markers or message.role is not Role.USER:
        return _followed_by_newlines(message.content)
    if markers != len(images):
        raise InvalidMessage(
            f"{markers} {MARKER} markers for {len(images)} images; "
            "as many markers as images, or none, are allowed",
            path,
        )
    return _at_markers(message.content, images)


def _followed_by_newlines(parts: Sequence[Part]) -> Iterator[tuple[int, Part]]:
    for position, part in enumerate(parts):
        yield position, part
        if isinstance(part, ImagePart):
            yield position, TextPart("\n")


def _at_markers(parts: Sequence[Part], images: Sequence[tuple[int, ImagePart]]) -> Iterator[tuple[int, Part]]:
    """The parts without their images, which stand in for the markers, the first for the first."""
    waiting = iter(images)
    for position, part in enumerate(parts):
        if isinstance(part, ImagePart):
            continue
        if not isinstance(part, TextPart):
            yield position, part
            continue
        first, *rest = part.text.split(MARKER)
        if first:
            yield position, TextPart(first)
        for text in rest:
            yield next(waiting)
            if text:
                yield position, TextPart(text)
