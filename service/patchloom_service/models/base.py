"""What one model family is to the pipeline: data and a few pure functions, no class hierarchy.

A family file offers `match(config) -> bool` and `build(checkpoint) -> ModelSpec`. Everything that differs by
model stands in the ModelSpec; the pipeline asks nothing else. It knows nothing of requests and transports.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from patchloom_kernels.layout import Job, Parity, Piece
from patchloom_kernels.normalize import NormalizeTable

from patchloom_service.types import ImageOptions, Modality

Size: TypeAlias = tuple[int, int]
"""(height, width) in pixels."""


class GridKind(StrEnum):
    """What a grid counts: patches [temporal, down, across], tiles, or feature frames [frames]."""

    PATCHES = "patches"
    TILES = "tiles"
    FRAMES = "frames"


@dataclass(frozen=True, slots=True)
class Grid:
    """How an item is cut."""

    kind: GridKind
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunToken:
    """`count` copies of token `id` in a placeholder run; structural tokens are not placeholders."""

    id: int
    count: int = 1
    placeholder: bool = True


@dataclass(frozen=True, slots=True)
class RunNumber:
    """The number of the item in prompt order, from 0, in decimal; `digits` are the ids of 0 to 9."""

    digits: tuple[int, ...]


Run: TypeAlias = tuple[RunToken | RunNumber | str, ...]
"""What replaces a slot. A string (only first or last) is text that merges with the text around the slot."""


def run_tokens(run: Run, number: int) -> list[RunToken]:
    """The tokens of the run of item `number`, without the text at its ends."""
    tokens: list[RunToken] = []
    for part in run:
        if isinstance(part, RunToken):
            tokens.append(part)
        elif isinstance(part, RunNumber):
            tokens += [RunToken(part.digits[int(digit)], placeholder=False) for digit in str(number)]
    return tokens


@dataclass(frozen=True, slots=True)
class TensorPiece:
    """A piece and the tensor it is written to."""

    tensor: str
    piece: Piece


@dataclass(frozen=True, slots=True)
class MediaPlan:
    """Everything about an item but its pixels, computed from its header.

    `token_count` is the number of placeholder tokens in `run`. `facts` are per-item values that the
    family's `layout` turns into further tensors (for example the grid). Images only: `size` is the
    oriented source size, `resized` the size of the content after resizing.
    """

    modality: Modality
    grid: Grid
    token_count: int
    run: Run
    size: Size | None = None
    resized: Size | None = None
    pieces: tuple[TensorPiece, ...] = ()
    facts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counted = sum(t.count for t in self.run if isinstance(t, RunToken) and t.placeholder)
        assert counted == self.token_count, (counted, self.token_count)


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """The part of a tensor that belongs to an item."""

    tensor: str
    axis: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class PixelTensor:
    """A tensor that the kernels write.

    `jobs` write it, flat and C-ordered; a job's `source` is the index of its item. `fill` is the table
    entry of the elements that no job writes, None where jobs write every element.
    """

    name: str
    shape: tuple[int, ...]
    jobs: tuple[Job, ...]
    fill: int | None = None


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """The tensors of one response: those the kernels write, those known already, and each item's slices."""

    pixels: tuple[PixelTensor, ...]
    constants: Mapping[str, npt.NDArray[Any]]
    slices: tuple[tuple[TensorSlice, ...], ...]  # one tuple per item


@dataclass(frozen=True, slots=True)
class AudioInfo:
    """What the header of a clip says: frames per channel and their rate in Hz."""

    frames: int
    sample_rate: int


@dataclass(frozen=True, slots=True)
class AudioFeatures:
    """What a family makes of audio clips.

    `compute(samples, rate)` gives the features of one mono clip, one row for each frame of its plan, small
    enough to be kept. `stack(clips)` joins those of at least one clip to tensors with one row per clip, of at
    most `frame_bytes` for each frame of the longest. Both run in any thread. `cost(frames)` is about the
    memory, in bytes, that `compute` takes for a clip of so many frames.
    """

    compute: Callable[[npt.NDArray[np.float32], int], npt.NDArray[Any]]
    stack: Callable[[Sequence[npt.NDArray[Any]]], Mapping[str, npt.NDArray[Any]]]
    frame_bytes: int
    cost: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class ItemSpan:
    """Where an expanded item stands in the ids, and its plan."""

    offset: int
    length: int
    ranges: tuple[tuple[int, int], ...]  # (offset, length), placeholder tokens only
    plan: MediaPlan


IdArray: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model, ready to plan.

    `placeholders` maps a modality to the control token that the template writes per item; `structural`
    lists the spellings of further media tokens (start, end, break). `plan_image(size, options,
    item_count)` refuses a size that the rule does not allow with SizeRefused. `layout(plans)` lays the
    items of one response out. `table(parity)` is the normalise table of the pixel tensors.
    `token_types(ids, spans)` gives one value per token or is None where the processor returns none.
    `positions(ids, spans)` gives M-RoPE positions [3, tokens] and their deltas [1, 1]. `dtype` overrides
    the requested one where the reference computes in another. `renderer` names a built-in
    renderer, "" means the checkpoint's template. `settings` is everything that goes into the fingerprint.
    """

    family: str
    placeholders: Mapping[Modality, str]
    plan_image: Callable[[Size, ImageOptions, int], MediaPlan]
    layout: Callable[[Sequence[MediaPlan]], TensorLayout]
    table: Callable[[Parity], NormalizeTable]
    settings: Mapping[str, Any]
    oracle: str
    structural: tuple[str, ...] = ()
    plan_audio: Callable[[AudioInfo], MediaPlan] | None = None
    audio: AudioFeatures | None = None
    token_types_name: str = "mm_token_type_ids"
    token_types: Callable[[IdArray, Sequence[ItemSpan]], npt.NDArray[np.uint8]] | None = None
    positions: Callable[[IdArray, Sequence[ItemSpan]], tuple[IdArray, IdArray]] | None = None
    dtype: str | None = None
    renderer: str = ""
    architectures: tuple[str, ...] = ()
    reference: "ReferenceProcessor | None" = None


@dataclass(frozen=True, slots=True)
class ReferenceProcessor:
    """The generic row: pixels by the checkpoint's own transformers image processor, on the CPU.

    `run(images)` takes RGB arrays uint8 [H, W, 3] in item order and returns the processor's tensors.
    """

    run: Callable[[Sequence[npt.NDArray[np.uint8]]], Mapping[str, npt.NDArray[Any]]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The files of a model directory, parsed; `token_id` knows the tokenizer's added tokens.

    `image_processor` is preprocessor_config.json, over which the "image_processor" of
    processor_config.json wins, as in transformers. `token_id(spelling)` is None for an unknown token;
    `encode` gives the ids of ordinary text.
    """

    path: Path
    config: Mapping[str, Any]
    image_processor: Mapping[str, Any]
    processor: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]
    template: str | None
    token_id: Callable[[str], int | None]
    encode: Callable[[str], Sequence[int]] | None = None

    @property
    def architectures(self) -> tuple[str, ...]:
        """The architectures that config.json names."""
        return tuple(self.config.get("architectures") or ())


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, {} where there is no such file."""
    if not path.is_file():
        return {}
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError(f"{path}: must hold a JSON object")
    return value
