"""Which slot of a rendered prompt is which media item: two proofs over rendered texts.

Brackets: private markers around each media part must enclose exactly its own slot. Spelling: rendered with
some parts as another modality, each slot spells the binary number of its item.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from patchloom_service.chat.twins import PrivateBlock
from patchloom_service.types import Modality


@dataclass(frozen=True, slots=True)
class SlotText:
    """A placeholder in a prompt text, characters [start, end)."""

    start: int
    end: int
    modality: Modality


@dataclass(frozen=True, slots=True)
class Alternate:
    """Another part type that the template renders in place of a modality.

    The template writes `text` where it would write `own`, neither a beginning of the other; `before` is how
    many characters of `own` stand in front of the placeholder.
    """

    type: str
    own: str
    before: int
    text: str


@dataclass(frozen=True, slots=True)
class Markers:
    """The private characters before and after each item."""

    block: PrivateBlock
    count: int

    def open(self, item: int) -> str:
        """The marker in front of an item."""
        return self.block[2 * item]

    def close(self, item: int) -> str:
        """The marker behind an item."""
        return self.block[2 * item + 1]

    @property
    def pattern(self) -> re.Pattern[str]:
        """Finds any marker."""
        first, last = chr(self.block.start), chr(self.block.start + max(2 * self.count, 1) - 1)
        return re.compile(f"[{first}-{last}]")

    def strip(self, text: str) -> str:
        """The text without markers."""
        return self.pattern.sub("", text)


def read_brackets(
    text: str, slots: Sequence[SlotText], markers: Markers, modalities: Sequence[Modality]
) -> tuple[int, ...] | None:
    """The item of each slot in text order; None where the brackets do not prove it.

    They prove it if every item's markers stand there once, enclose nothing of another item, and enclose
    exactly one slot, of the item's modality, with no slot outside.
    """
    events = [
        (match.start(), ord(match.group()) - markers.block.start) for match in markers.pattern.finditer(text)
    ]
    if len(events) != 2 * markers.count or len(slots) != markers.count:
        return None
    order: list[int] = []
    for k, slot in enumerate(slots):
        (start, opened), (end, closed) = events[2 * k], events[2 * k + 1]
        item = opened // 2
        paired = opened % 2 == 0 and closed == opened + 1
        if not (paired and start < slot.start < end and slot.modality is modalities[item]):
            return None
        order.append(item)
    return tuple(order) if len(set(order)) == markers.count else None


def enclosed_items(text: str, slots: Sequence[SlotText], markers: Markers) -> frozenset[int]:
    """The items whose markers stand around at least one slot: the evidence for an error message."""
    found = set()
    for item in range(markers.count):
        start, end = text.find(markers.open(item)), text.find(markers.close(item))
        if 0 <= start < end and any(start < slot.start < end for slot in slots):
            found.add(item)
    return frozenset(found)


class RenderAs(Protocol):
    """Renders the prompt with some items as another part type."""

    def __call__(self, types: Mapping[int, str]) -> str: ...


def spell(
    base: str,
    slots: Sequence[SlotText],
    modalities: Sequence[Modality],
    alternates: Mapping[Modality, Alternate],
    render_as: RenderAs,
) -> tuple[int, ...] | None:
    """The item of each slot of `base` in text order, by ceil(log2(items + 1)) renders; None without proof.

    Every render must equal `base` but for the slots whose item has the bit set, and the numbers must
    be those of the items, each once, in a slot of its modality.
    """
    count = len(modalities)
    if len(slots) != count or any(modality not in alternates for modality in modalities):
        return None
    numbers = [0] * count
    for bit in range(count.bit_length()):
        chosen = {i for i in range(count) if (i + 1) >> bit & 1}
        text = render_as({item: alternates[modalities[item]].type for item in chosen})
        flags = read_flags(base, slots, alternates, text)
        if flags is None:
            return None
        numbers = [number | flag << bit for number, flag in zip(numbers, flags, strict=True)]
    if sorted(numbers) != list(range(1, count + 1)):
        return None
    order = tuple(number - 1 for number in numbers)
    matching = all(slot.modality is modalities[item] for slot, item in zip(slots, order, strict=True))
    return order if matching else None


def read_flags(
    base: str, slots: Sequence[SlotText], alternates: Mapping[Modality, Alternate], text: str
) -> list[bool] | None:
    """Which slots of `base` stand in `text` as their alternate; None where anything else differs."""
    flags: list[bool] = []
    at, last = 0, 0
    for slot in slots:
        alternate = alternates[slot.modality]
        start = slot.start - alternate.before
        end = start + len(alternate.own)
        if start < last or base[start:end] != alternate.own:
            return None
        between = base[last:start]
        if not text.startswith(between, at):
            return None
        at += len(between)
        if text.startswith(alternate.text, at):
            flags.append(True)
            at += len(alternate.text)
        elif text.startswith(alternate.own, at):
            flags.append(False)
            at += len(alternate.own)
        else:
            return None
        last = end
    return flags if text[at:] == base[last:] else None
