"""What the pipeline answers: ids, bound items and tensors, before any transport has touched them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from patchloom_service.models.base import Grid, IdArray, Size, TensorSlice
from patchloom_service.types import Message, Modality, Warning


@dataclass(frozen=True, slots=True)
class Expansion:
    """How a uint8 tensor becomes the model's: see the message Expansion of the contract."""

    dtype: str
    shape: tuple[int, ...]
    columns: str
    patch: tuple[int, int]
    merge: int
    temporal: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A C-ordered array and the name of its element type; bfloat16 is held as uint16 bits."""

    dtype: str
    array: npt.NDArray[Any]
    expansion: Expansion | None = None


@dataclass(frozen=True, slots=True)
class BoundItem:
    """One media item and its place; `index` counts in prompt order."""

    index: int
    modality: Modality
    path: str
    tool_call_id: str
    content_key: str
    grid: Grid
    token_count: int
    span: tuple[int, int]
    ranges: tuple[tuple[int, int], ...]
    slices: tuple[TensorSlice, ...] = ()
    size: Size | None = None
    resized: Size | None = None
    known: bool = False


@dataclass(frozen=True, slots=True)
class Counters:
    """What was computed and what was not."""

    decodes: int = 0
    renders: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    segment_hits: int = 0
    segment_misses: int = 0


@dataclass(frozen=True, slots=True)
class Shard:
    """The items of one rank and their patches."""

    items: tuple[int, ...]
    patches: int


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to one request; `tensors` is empty where pixels were not asked for.

    `buffers` is the memory behind the tensors, to be given back when nothing uses them any more.
    """

    model: str
    ids: IdArray
    items: tuple[BoundItem, ...]
    fingerprint: str
    token_types_name: str = ""
    token_types: npt.NDArray[Any] | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    warnings: tuple[Warning, ...] = ()
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    counters: Counters = Counters()
    shards: tuple[Shard, ...] = ()
    messages: tuple[Message, ...] = ()
    buffers: tuple[npt.NDArray[Any], ...] = ()
