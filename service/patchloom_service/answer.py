"""A request whose ids are ready, and the results made of it: without tensors, and with them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from patchloom_service.batching import PixelOutcome
from patchloom_service.chat.expand import Expanded
from patchloom_service.chat.normalize import unmatched_results
from patchloom_service.intake import MediaWork
from patchloom_service.result import BoundItem, Counters, Result, Tensor
from patchloom_service.served import Fingerprints, PixelSettings, ServedModel
from patchloom_service.shards import balance
from patchloom_service.types import Conversation, Detail, ImagePart, Prompt, Request, Warning


@dataclass(slots=True)
class Stopwatch:
    """Milliseconds by stage."""

    ms: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the time of the block to `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.ms[name] = self.ms.get(name, 0.0) + (time.perf_counter() - start) * 1000


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request up to its ids: everything that a count needs, and the work that its pixels will be."""

    request: Request
    model: ServedModel
    settings: PixelSettings
    fingerprints: Fingerprints
    conversation: Conversation | None
    prompt: Prompt
    expanded: Expanded
    works: tuple[MediaWork, ...]  # in prompt order
    segments: tuple[int, int]  # hits, misses
    watch: Stopwatch


def token_result(prepared: Prepared) -> Result:
    """The result without tensors."""
    spec, ids = prepared.model.spec, prepared.expanded.ids
    conversation = prepared.conversation
    output = prepared.request.output
    show = output.show_messages and conversation is not None
    return Result(
        model=prepared.model.name,
        ids=ids,
        items=_bound(prepared, None),
        fingerprint=prepared.fingerprints.whole,
        token_types_name=spec.token_types_name if spec.token_types else "",
        token_types=spec.token_types(ids, prepared.expanded.spans) if spec.token_types else None,
        warnings=(*prepared.request.warnings, *prepared.prompt.warnings, *_notices(prepared)),
        timings_ms=prepared.watch.ms,
        counters=Counters(
            renders=prepared.prompt.renders,
            segment_hits=prepared.segments[0],
            segment_misses=prepared.segments[1],
        ),
        shards=balance([_patches(w) for w in prepared.works], output.shards) if output.shards else (),
        messages=conversation.messages if show and conversation else (),
    )


def pixel_result(prepared: Prepared, outcome: PixelOutcome) -> Result:
    """The whole result."""
    result = token_result(prepared)
    counters = replace(
        result.counters, decodes=outcome.decodes, cache_hits=outcome.hits, cache_misses=outcome.misses
    )
    return replace(
        result,
        items=_bound(prepared, outcome),
        tensors={**outcome.tensors, **_positions(prepared)},
        counters=counters,
        buffers=outcome.buffers,
    )


def _bound(prepared: Prepared, outcome: PixelOutcome | None) -> tuple[BoundItem, ...]:
    """The items in prompt order, with their slices where their pixels were computed."""
    known = prepared.request.output.known_content_keys
    slices = iter(outcome.layout.slices) if outcome else iter(())
    items = []
    for index, (work, span) in enumerate(zip(prepared.works, prepared.expanded.spans, strict=True)):
        is_known = work.key in known
        items.append(
            BoundItem(
                index=index,
                modality=work.item.modality,
                path=work.item.path,
                tool_call_id=work.item.tool_call_id,
                content_key=work.key,
                grid=work.plan.grid,
                token_count=work.plan.token_count,
                span=(span.offset, span.length),
                ranges=span.ranges,
                slices=next(slices) if outcome and not is_known else (),
                size=work.plan.size,
                resized=work.plan.resized,
                known=is_known,
            )
        )
    return tuple(items)


def _notices(prepared: Prepared) -> Iterator[Warning]:
    if prepared.conversation is not None:
        yield from unmatched_results(prepared.conversation)
        yield from _calls_left_out(prepared.conversation)
    yield from _ignored_details(prepared)
    asked, only = prepared.request.output.dtype, prepared.model.spec.dtype
    if asked and only and asked != only:
        text = f"the pixels of {prepared.model.spec.family} are {only} always"
        yield Warning("DTYPE_IGNORED", "output.dtype", text)


def _calls_left_out(conversation: Conversation) -> Iterator[Warning]:
    """A final message that is left open ends before its calls."""
    if conversation.options.continue_final_message and conversation.messages[-1].tool_calls:
        path = f"messages[{len(conversation.messages) - 1}].tool_calls"
        yield Warning("CALLS_LEFT_OUT", path, "the final message is left open behind its text")


def _ignored_details(prepared: Prepared) -> Iterator[Warning]:
    """One warning per image whose detail changes nothing: no family has levels of detail."""
    for work in prepared.works:
        part = work.item.part
        own = part.options.detail if isinstance(part, ImagePart) and part.options else None
        detail = own or prepared.request.image_options.detail
        if isinstance(part, ImagePart) and detail not in (None, Detail.AUTO):
            family = prepared.model.spec.family
            yield Warning("DETAIL_IGNORED", work.item.path, f"{family} has no levels of detail")


def _patches(work: MediaWork) -> int:
    return sum(placed.piece.rows for placed in work.plan.pieces) or work.plan.token_count


def _positions(prepared: Prepared) -> dict[str, Tensor]:
    """M-RoPE positions where they were asked for."""
    compute = prepared.model.spec.positions
    if not prepared.request.output.positions or compute is None:
        return {}
    positions, deltas = compute(prepared.expanded.ids, prepared.expanded.spans)
    return {"position_ids": Tensor("int64", positions), "rope_deltas": Tensor("int64", deltas)}
