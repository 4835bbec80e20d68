"""One request against one template: its draft, its renders and their checks."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from patchloom_service.chat import alignment
from patchloom_service.chat.jinja_template import RESERVED, ChatTemplate
from patchloom_service.chat.probe import KEPT, LOST, PRINTED, TemplateProbe
from patchloom_service.chat.proof import Proof, Proven
from patchloom_service.chat.spelling import Alternate, SlotText
from patchloom_service.chat.template_messages import (
    Edit,
    Shape,
    Untrusted,
    draft,
    edited_json,
    merged_systems,
    untrusted,
    write,
)
from patchloom_service.chat.tokenize import Tokenizer, pieces
from patchloom_service.chat.twins import Literals, PrivateBlock, private_block
from patchloom_service.errors import InvalidMessage, LiteralRefused, TemplateRefused, UnsupportedContent
from patchloom_service.types import (
    ControlToken,
    Conversation,
    Json,
    LiteralPolicy,
    MediaItem,
    Modality,
    Prompt,
    Role,
    Segment,
    Slot,
    StructuredPart,
    TextSegment,
    Warning,
)


@dataclass(frozen=True, slots=True)
class LiteralSets:
    """Which control tokens are disarmed in assistant text and in all other text."""

    generated: Literals
    other: Literals

    def of(self, generated: bool) -> Literals:
        """The set for a text."""
        return self.generated if generated else self.other

    @property
    def alphabet(self) -> str:
        """The characters that need twins."""
        return "".join(sorted({*self.generated.alphabet, *self.other.alphabet}))


class Model(Protocol):
    """What a rendering asks of the renderer."""

    template: ChatTemplate
    tokenizer: Tokenizer
    probe: TemplateProbe
    shape: Shape
    modalities: dict[str, Modality]
    media_tokens: frozenset[str]
    literals: dict[LiteralPolicy, LiteralSets]
    aligned: bool


class Rendering:
    """The rendering of one request; used once, by one thread."""

    def __init__(self, model: Model, conversation: Conversation, items: Sequence[MediaItem]) -> None:
        options = conversation.options
        _check_kwargs(options.template_kwargs, model.tokenizer.variables)
        self.model = model
        self.conversation = conversation
        self.items = items
        self.renders = 0
        self.now = time.time() if options.now is None else options.now
        self.literals = model.literals[options.literals]
        self.kwargs = dict(options.template_kwargs)
        if options.reasoning_effort is not None:
            self.kwargs.setdefault("reasoning_effort", options.reasoning_effort)
        messages = draft(conversation, items, model.shape)
        self.messages = alignment.align(messages) if model.aligned else messages

    def prompt(self) -> Prompt:
        """The prompt, its control tokens and slots proven."""
        if self.conversation.options.literals is LiteralPolicy.REJECT:
            self._check_whole_literals()
        if self.tag:
            self._check_continued()
        self._check_results_render()
        plain = self.render(Edit())
        if self.tag:
            self._check_final_text(plain)
        self._check_structured(plain)
        proven = self._prove(plain)
        return Prompt(self._segments(proven), self.renders, self._warnings())

    # What a proof asks

    @property
    def alternates(self) -> Mapping[Modality, Alternate]:
        """The part types that can stand in for a modality."""
        return self.model.probe.alternates

    @property
    def text_moves_media(self) -> bool:
        """Whether a text beside an image changes its place."""
        return self.model.probe.text_moves_media

    def render(self, edit: Edit) -> str:
        """The prompt text of one render, cut where the final message is to be continued."""
        edit = replace(edit, tag=f"{self.tag} " if self.tag else "")
        kwargs = {key: edited_json(value, edit) for key, value in self.kwargs.items()}
        variables: dict[str, Any] = {
            **self.model.tokenizer.variables,
            **kwargs,
            "messages": write(self.messages, self.model.shape, edit),
            "tools": [edited_json(tool, edit) for tool in self.conversation.tools] or None,
            "documents": None,
            "add_generation_prompt": self.conversation.options.add_generation_prompt and not self.tag,
        }
        self.renders += 1
        try:
            text = self.model.template.render(variables, self.now)
        except TemplateRefused as error:
            raise self._explained(error) from error
        return self._cut(text) if self.tag else text

    def slots(self, text: str) -> list[SlotText]:
        """The placeholders in a prompt text."""
        modalities = self.model.modalities
        return [
            SlotText(match.start, match.end, modalities[match.spelling])
            for match in self.model.tokenizer.find_control(text)
            if match.spelling in modalities
        ]

    def disarmed(self, text: str, generated: bool, twins: Mapping[str, str]) -> str:
        """The text with its control tokens disarmed."""
        return self.literals.of(generated).disarm(text, twins) if twins else text

    def no_slot(self, item: MediaItem) -> TemplateRefused:
        """The refusal of an item that the template leaves out."""
        return TemplateRefused(
            f"the template renders no placeholder for {item.path}; {self._advice(item)}", item.path
        )

    # Texts and private characters

    @cached_property
    def texts(self) -> tuple[Untrusted, ...]:
        """Everything in the request that a client wrote."""
        return tuple(untrusted(self.messages, self.conversation.tools, self.kwargs))

    @cached_property
    def tag(self) -> str:
        """The private character that marks where the final message goes on, "" where it does not."""
        return self._private(1)[0] if self.conversation.options.continue_final_message else ""

    def _private(self, size: int, *more: str) -> PrivateBlock:
        texts = [text.text for text in self.texts]
        block = private_block([*texts, self.model.template.source, *more], size)
        if block is None:
            raise TemplateRefused(
                f"the texts leave no {size} private code points in a row, U+F0000 to U+10FFFD; use fewer",
                "messages",
            )
        return block

    # Proof

    def _prove(self, plain: str) -> Proven:
        suspects = [text for text in self.texts if self.literals.of(text.generated).sites(text.text)]
        if len(self.items) < 2:
            self._check_count(plain, exact=not suspects)
        if len(self.items) < 2 and not suspects:
            return Proven(plain, tuple(range(len(self.items))))
        alphabet = self.literals.alphabet if suspects else ""
        literal = any(self.literals.of(text.generated).first(text.text) for text in suspects)
        block = self._private(Proof.block_size(alphabet, len(self.items)), plain, self.tag)
        proven = Proof(self, plain, alphabet, literal, block).proven()
        if len(self.items) < 2:
            self._check_count(proven.text, exact=True)
        if suspects and self.conversation.options.literals is LiteralPolicy.REJECT:
            self._check_joined_literals(plain, proven.text, suspects[0])
        return proven

    def _check_count(self, text: str, exact: bool) -> None:
        """With one item at most, the number and modality of the slots is all that can be wrong."""
        slots = self.slots(text)
        if self.items and not any(slot.modality is self.items[0].modality for slot in slots):
            raise self.no_slot(self.items[0])
        if exact and len(slots) > len(self.items):
            raise TemplateRefused(
                f"the template renders {len(slots)} placeholders for {len(self.items)} media items; "
                "one each is allowed",
                self.items[0].path if self.items else "messages",
            )

    def _check_whole_literals(self) -> None:
        for text in self.texts:
            found = self.literals.of(text.generated).first(text.text)
            if found:
                raise LiteralRefused(
                    f"the text holds the control token {found!r}; the policy REJECT allows none", text.path
                )

    def _check_joined_literals(self, plain: str, proven: str, suspect: Untrusted) -> None:
        find = self.model.tokenizer.find_control
        if len(find(plain)) != len(find(proven)):
            raise LiteralRefused("texts join to a control token; the policy REJECT allows none", suspect.path)

    def _check_results_render(self) -> None:
        """Refuses a tool result at a place where the template leaves results out."""
        if self.model.probe.result_after_user != LOST:
            return
        answering = False
        for message in self.messages:
            if message.role is Role.TOOL and not answering:
                raise TemplateRefused(
                    "the template leaves out a tool result that does not directly follow its call; "
                    "send the results first, or ask for tool_results HOIST",
                    message.path,
                )
            answering = bool(message.tool_calls) or (answering and message.role is Role.TOOL)

    # Structured parts

    def _check_structured(self, plain: str) -> None:
        """Refuses a structured part that the template ignores or prints as program text."""
        places = [
            (m, p, part)
            for m, message in enumerate(self.messages)
            for p, part in enumerate(message.parts)
            if isinstance(part, StructuredPart)
        ]
        if not places:
            return
        for m, _, part in places:
            if any(repr(item) in plain for item in _containers(part.value)):
                raise TemplateRefused("the template prints a structured part as program text", self._path(m))
        self._check_structured_media(plain, [(m, p) for m, p, _ in places])
        marks = self._private(len(places), plain, self.tag)
        marked = self._with_parts(
            {(m, p): _marked(part.value, marks[k]) for k, (m, p, part) in enumerate(places)}
        )
        for k, (m, p, _) in enumerate(places):
            if (marked is None or marks[k] not in marked) and self._with_parts({(m, p): []}) == plain:
                raise TemplateRefused(
                    "the template ignores a structured part; send it as text", self._path(m)
                )

    def _check_structured_media(self, plain: str, places: Sequence[tuple[int, int]]) -> None:
        """Refuses a structured part that the template takes for media, by a key such as "video"."""
        alphabet = self.literals.alphabet
        block = self._private(len(alphabet), plain, self.tag)
        twins = {character: block[index] for index, character in enumerate(alphabet)}
        edit = Edit(text=lambda text, generated: self.disarmed(text, generated, twins))
        count = self._count_media(self.render(edit))
        for m, p in places:
            emptied = self._with_parts({(m, p): []}, edit)
            if emptied is not None and self._count_media(emptied) != count:
                raise UnsupportedContent(
                    "the template takes a structured part for media; send it as an image or audio part",
                    self._path(m),
                )

    def _count_media(self, text: str) -> int:
        find = self.model.tokenizer.find_control
        return sum(match.spelling in self.model.media_tokens for match in find(text))

    def _path(self, message: int) -> str:
        return f"{self.messages[message].path}.content"

    def _with_parts(self, values: Mapping[tuple[int, int], Json], edit: Edit | None = None) -> str | None:
        """The prompt with other structured values; None where the template refuses them."""
        saved = self.messages
        self.messages = tuple(
            replace(
                message,
                parts=tuple(
                    StructuredPart(values[m, p]) if (m, p) in values else part
                    for p, part in enumerate(message.parts)
                ),
            )
            for m, message in enumerate(saved)
        )
        try:
            return self.render(edit or Edit())
        except TemplateRefused:
            return None
        finally:
            self.messages = saved

    # Continuing the final message

    def _check_continued(self) -> None:
        final = self.messages[-1]
        if "content" not in self.model.template.source:
            raise TemplateRefused("the template reads no content; the final message cannot be continued")
        if not any(isinstance(part, str) for part in final.parts):
            raise InvalidMessage(
                "continue_final_message needs a text in the final message", f"{final.path}.content"
            )

    def _check_final_text(self, plain: str) -> None:
        content = write(self.messages[-1:], self.model.shape, Edit())[0]["content"]
        final = content if isinstance(content, str) else _last_text(content)
        if final.strip() not in plain:
            raise TemplateRefused(
                "the template changes the text of the final message; it cannot be continued",
                f"{self.messages[-1].path}.content",
            )

    def _cut(self, text: str) -> str:
        at = text.rfind(self.tag)
        if at < 0:
            raise TemplateRefused(
                "the template does not render the end of the final message; it cannot be continued",
                f"{self.messages[-1].path}.content",
            )
        # A tag that kept its space stands behind a text that was not trimmed.
        return text[:at] if text.startswith(f"{self.tag} ", at) else text[:at].rstrip()

    # Errors and results

    def _advice(self, item: MediaItem) -> str:
        role = self.conversation.messages[item.message].role
        facts = self.model.probe.roles[role]
        if PRINTED in (facts.texts, facts.mixed):
            return (
                f"it prints the parts of {role.value} messages as program text; send text only there, "
                "or serve the model with a template that takes content parts"
            )
        if item.modality is Modality.IMAGE and 1 in (facts.text_image, facts.image):
            return f"it leaves out images in some {role.value} messages"
        return f"it takes no {item.modality.value} in {role.value} messages"

    def _explained(self, error: TemplateRefused) -> TemplateRefused:
        """A failed render with the part that a template for strings cannot take."""
        for item in self.items:
            role = self.conversation.messages[item.message].role
            if role in self.model.shape.strings:
                return TemplateRefused(
                    f"{error.message}; it takes only a string as content of {role.value} messages", item.path
                )
        return error

    def _segments(self, proven: Proven) -> tuple[Segment, ...]:
        prefix = self.model.tokenizer.prompt_prefix(proven.text)
        segments: list[Segment] = [ControlToken(token) for token in prefix]
        order = iter(proven.order)
        for piece in pieces(self.model.tokenizer, proven.text):
            if isinstance(piece, str):
                segments.append(TextSegment(proven.restore(piece)))
            elif piece.spelling in self.model.modalities:
                segments.append(Slot(next(order)))
            else:
                segments.append(ControlToken(piece.id))
        return tuple(segments)

    def _warnings(self) -> tuple[Warning, ...]:
        merged = merged_systems(self.conversation, self.model.shape)
        facts = self.model.probe.roles[Role.SYSTEM]
        lost = LOST in (facts.string, facts.listed) and KEPT not in (facts.string, facts.listed)
        return tuple(
            Warning("SYSTEM_MERGED", path, "the template takes one system message; this one joined the first")
            for path in merged
        ) + tuple(
            Warning("SYSTEM_LOST", message.path, "the template leaves system messages out")
            for message in self.messages
            if lost and message.role is Role.SYSTEM
        )


def _check_kwargs(kwargs: Mapping[str, Json], variables: Mapping[str, Any]) -> None:
    for name in kwargs:
        if name in RESERVED or name in variables:
            raise InvalidMessage(
                "the name belongs to the template's own variables; choose another",
                f"render.template_kwargs.{name}",
            )


def _containers(value: Json) -> Iterator[Json]:
    """The non-empty objects and lists at the top of a structured value."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict | list) and item:
            yield item


def _marked(value: Json, mark: str) -> Json:
    """A copy with a mark behind every string value."""
    if isinstance(value, str):
        return value + mark
    if isinstance(value, list):
        return [_marked(item, mark) for item in value]
    if isinstance(value, dict):
        return {key: _marked(item, mark) for key, item in value.items()}
    return value


def _last_text(content: Sequence[Any]) -> str:
    texts = [part["text"] for part in content if isinstance(part, dict) and "text" in part]
    return str(texts[-1]) if texts else ""
