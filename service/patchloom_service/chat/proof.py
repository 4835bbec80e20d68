"""The proof of a rendered prompt: its control tokens are the template's own, and each slot's item is known.

It renders the conversation again with private characters and compares; it knows nothing of templates.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from patchloom_service.chat.spelling import (
    Alternate,
    Markers,
    SlotText,
    enclosed_items,
    read_brackets,
    spell,
)
from patchloom_service.chat.template_messages import Edit, MediaSlot
from patchloom_service.chat.twins import PrivateBlock, Restorer
from patchloom_service.errors import TemplateRefused
from patchloom_service.types import Json, MediaItem, Modality

DROPPED_MAX = 64
"""How many items at most are left out one by one to name the one without a slot."""


@dataclass(frozen=True, slots=True)
class Proven:
    """A prompt text in which every control token is the template's own.

    `order` names the item of each slot in text order; `restore` turns the twins in a stretch of the text
    back into what the client wrote.
    """

    text: str
    order: tuple[int, ...]
    restore: Callable[[str], str] = str


class Prover(Protocol):
    """What a proof asks of the rendering of one request."""

    @property
    def items(self) -> Sequence[MediaItem]: ...

    @property
    def alternates(self) -> Mapping[Modality, Alternate]: ...

    @property
    def text_moves_media(self) -> bool: ...

    def render(self, edit: Edit) -> str: ...

    def slots(self, text: str) -> list[SlotText]: ...

    def disarmed(self, text: str, generated: bool, twins: Mapping[str, str]) -> str: ...

    def no_slot(self, item: MediaItem) -> TemplateRefused: ...


@dataclass(frozen=True, slots=True)
class Proof:
    """One proof. `plain` is the prompt as the template renders the messages as they are.

    `alphabet` holds the characters that get twins, "" where no text needs one. `literal` says that some text
    holds a whole control token. `block` has 2 * (twins + items) private characters that occur nowhere else.
    """

    prover: Prover
    plain: str
    alphabet: str
    literal: bool
    block: PrivateBlock

    @staticmethod
    def block_size(alphabet: str, items: int) -> int:
        """How many private characters a proof needs."""
        return 2 * (len(alphabet) + items)

    def proven(self) -> Proven:
        """The prompt with the item of each slot; raises TemplateRefused without proof."""
        twins = self._twins(0)
        if len(self.prover.items) < 2:
            base = self.prover.render(self._twinned(twins))
            self._check_text(base, twins)
            return Proven(base, tuple(range(len(self.prover.items))), Restorer(twins))
        markers = self._markers()
        marked = self.prover.render(self._bracketed(twins, markers))
        base = markers.strip(marked)
        order = read_brackets(marked, self.prover.slots(marked), markers, self._modalities())
        if Restorer(twins)(base) != self.plain:
            # The markers changed something, or the literals: without markers it can be told.
            unmarked = self.prover.render(self._twinned(twins)) if twins else self.plain
            order = order if unmarked == base else None
            base = unmarked
        self._check_text(base, twins)
        if self.prover.text_moves_media:
            order = None
        order = order or self._spelled(base, twins)
        if order is None:
            raise self._unproven(base, marked, markers)
        return Proven(base, order, Restorer(twins))

    def _twins(self, copy: int) -> dict[str, str]:
        start = copy * len(self.alphabet)
        return {character: self.block[start + i] for i, character in enumerate(self.alphabet)}

    def _markers(self) -> Markers:
        count = len(self.prover.items)
        return Markers(PrivateBlock(self.block.start + 2 * len(self.alphabet), 2 * count), count)

    def _modalities(self) -> list[Modality]:
        return [item.modality for item in self.prover.items]

    def _twinned(self, twins: Mapping[str, str]) -> Edit:
        return Edit(text=lambda text, generated: self.prover.disarmed(text, generated, twins))

    def _bracketed(self, twins: Mapping[str, str], markers: Markers) -> Edit:
        def media(slot: MediaSlot) -> list[dict[str, Json]]:
            return [
                {"type": "text", "text": markers.open(slot.item)},
                {"type": slot.modality.value},
                {"type": "text", "text": markers.close(slot.item)},
            ]

        return Edit(text=self._twinned(twins).text, media=media)

    def _check_text(self, base: str, twins: Mapping[str, str]) -> None:
        """The restored text is the plain prompt, or it holds literals and they alone make the difference."""
        if Restorer(twins)(base) == self.plain:
            return
        if not self.literal:
            raise TemplateRefused(
                "the template transforms text, so that it cannot be told which control tokens are its own"
            )
        others = self._twins(1)
        again = self.prover.render(self._twinned(others))
        if Restorer(others)(again) != Restorer(twins)(base):
            raise TemplateRefused(
                "the template transforms control tokens in text; send the text without them"
            )

    def _spelled(self, base: str, twins: Mapping[str, str]) -> tuple[int, ...] | None:
        def render_as(types: Mapping[int, str]) -> str:
            def media(slot: MediaSlot) -> list[dict[str, Json]]:
                return [{"type": types.get(slot.item, slot.modality.value)}]

            return self.prover.render(Edit(text=self._twinned(twins).text, media=media))

        return spell(base, self.prover.slots(base), self._modalities(), self.prover.alternates, render_as)

    def _unproven(self, base: str, marked: str, markers: Markers) -> TemplateRefused:
        """The refusal, naming an item without a slot if there is one."""
        items = self.prover.items
        slots = len(self.prover.slots(base))
        if slots < len(items):
            enclosed = enclosed_items(marked, self.prover.slots(marked), markers)
            missing = [item for item in items if item.index not in enclosed]
            if len(missing) != len(items) - slots:
                missing = self._dropped(slots) or missing
            return self.prover.no_slot(missing[0] if missing else items[0])
        if slots > len(items):
            return TemplateRefused(
                f"the template renders {slots} placeholders for {len(items)} media items; "
                "one each is allowed",
                items[0].path,
            )
        return TemplateRefused(
            "the template moves media so that it cannot be proven which slot is whose; "
            "send at most one media item, or serve the model with a template that keeps their place",
            items[0].path,
        )

    def _dropped(self, slots: int) -> list[MediaItem]:
        """The items whose absence leaves all slots in place."""

        def left_out(item: MediaItem) -> str:
            def media(slot: MediaSlot) -> list[dict[str, Json]]:
                return [] if slot.item == item.index else [{"type": slot.modality.value}]

            return self.prover.render(Edit(media=media))

        candidates = self.prover.items if len(self.prover.items) <= DROPPED_MAX else ()
        return [item for item in candidates if len(self.prover.slots(left_out(item))) == slots]
