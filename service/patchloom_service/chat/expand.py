"""Prompt and plans to token ids with placeholder ranges; the contract is checked here and nowhere else.

The contract: every media item has exactly one slot, every slot has exactly one item, and the lengths of an
item's ranges sum to its plan's token count. Ranges are recorded while expanding, never searched for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from patchloom_service.errors import ContractViolation, LimitExceeded
from patchloom_service.models.base import IdArray, ItemSpan, MediaPlan, Run, run_tokens
from patchloom_service.types import ControlToken, MediaItem, Prompt, Segment, Slot, TextSegment

Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]
"""Token ids of texts as ordinary text, one list per text."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """The prompt as ids. `order` lists item indices in prompt order; `spans` stand in that order."""

    ids: IdArray
    order: tuple[int, ...]
    spans: tuple[ItemSpan, ...]


def expand(
    prompt: Prompt,
    items: Sequence[MediaItem],
    plans: Sequence[MediaPlan],
    encode: Encode,
    max_tokens: int,
) -> Expanded:
    """Token ids int64 and the span of every item.

    `plans` stand in the order of `items`. Raises ContractViolation naming both numbers and the item's
    path, LimitExceeded for a prompt of more than `max_tokens`, decided before any run is written.
    """
    _check_slots(prompt.segments, items)
    pieces = _with_seams(prompt.segments, plans)
    texts = [piece.text for piece in pieces if isinstance(piece, TextSegment)]
    encoded = iter(encode(texts))
    chunks = [next(encoded) if isinstance(piece, TextSegment) else piece for piece in pieces]
    _check_length(chunks, plans, max_tokens)
    return _write(chunks, items, plans)


def _check_slots(segments: Sequence[Segment], items: Sequence[MediaItem]) -> None:
    counts = [0] * len(items)
    for segment in segments:
        if isinstance(segment, Slot):
            if not 0 <= segment.item < len(items):
                raise ContractViolation(
                    f"the prompt has a slot for item {segment.item}, there are {len(items)} items"
                )
            counts[segment.item] += 1
    for item, count in zip(items, counts, strict=True):
        if count != 1:
            raise ContractViolation(
                f"the prompt has {count} slots for this {item.modality.value}; exactly 1 is allowed",
                item.path,
            )


def _with_seams(segments: Sequence[Segment], plans: Sequence[MediaPlan]) -> list[Segment]:
    """Text that a run brings along at its ends joins the text around the slot, as one segment."""
    joined: list[Segment] = []

    def add(segment: Segment) -> None:
        if isinstance(segment, TextSegment):
            if not segment.text:
                return
            if joined and isinstance(joined[-1], TextSegment):
                joined[-1] = TextSegment(joined[-1].text + segment.text)
                return
        joined.append(segment)

    for segment in segments:
        run = plans[segment.item].run if isinstance(segment, Slot) else ()
        if run and isinstance(run[0], str):
            add(TextSegment(run[0]))
        add(segment)
        if len(run) > 1 and isinstance(run[-1], str):
            add(TextSegment(run[-1]))
    return joined


_Chunk = Sequence[int] | ControlToken | Slot


def _check_length(chunks: Sequence[_Chunk], plans: Sequence[MediaPlan], max_tokens: int) -> None:
    total = slots = 0
    for chunk in chunks:
        if isinstance(chunk, Slot):
            total += _length(plans[chunk.item].run, slots)
            slots += 1
        else:
            total += 1 if isinstance(chunk, ControlToken) else len(chunk)
    if total > max_tokens:
        raise LimitExceeded(f"the prompt has {total} tokens; at most {max_tokens} are allowed", "messages")


def _write(chunks: Sequence[_Chunk], items: Sequence[MediaItem], plans: Sequence[MediaPlan]) -> Expanded:
    parts: list[IdArray] = []
    order: list[int] = []
    spans: list[ItemSpan] = []
    offset = 0
    for chunk in chunks:
        if isinstance(chunk, Slot):
            ids, span = _run(plans[chunk.item], len(order), offset, items[chunk.item].path)
            order.append(chunk.item)
            spans.append(span)
        else:
            ids = np.array([chunk.id] if isinstance(chunk, ControlToken) else chunk, np.int64)
        parts.append(ids)
        offset += len(ids)
    ids = np.concatenate(parts) if parts else np.empty(0, np.int64)
    return Expanded(ids, tuple(order), tuple(spans))


def _run(plan: MediaPlan, number: int, offset: int, path: str) -> tuple[IdArray, ItemSpan]:
    ids, relative = _written(plan.run, number)
    ranges = tuple((offset + at, length) for at, length in relative)
    found = sum(length for _, length in ranges)
    if found != plan.token_count or found == 0:
        raise ContractViolation(
            f"the run has {found} placeholder tokens, the plan counts {plan.token_count}", path
        )
    return ids, ItemSpan(offset, len(ids), ranges, plan)


@lru_cache(maxsize=256)
def _length(run: Run, number: int) -> int:
    return sum(token.count for token in run_tokens(run, number))


@lru_cache(maxsize=256)
def _written(run: Run, number: int) -> tuple[IdArray, tuple[tuple[int, int], ...]]:
    """The ids of the run of item `number`, read-only, and its placeholder ranges from its begin."""
    tokens = run_tokens(run, number)
    ids = np.repeat(np.array([token.id for token in tokens], np.int64), [token.count for token in tokens])
    ids.setflags(write=False)
    ranges: list[tuple[int, int]] = []
    at = 0
    for token in tokens:
        if token.placeholder and ranges and sum(ranges[-1]) == at:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + token.count)
        elif token.placeholder:
            ranges.append((at, token.count))
        at += token.count
    return ids, tuple(ranges)
