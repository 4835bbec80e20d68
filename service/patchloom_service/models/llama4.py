"""Llama 4: a canvas of square tiles with the image at its top left, the whole image last, in bfloat16."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from patchloom_kernels.layout import Parity, PatchLayout, Piece
from patchloom_kernels.normalize import NormalizeFormula, NormalizeTable

from patchloom_service.models.base import (
    Checkpoint,
    Grid,
    GridKind,
    MediaPlan,
    ModelSpec,
    RunToken,
    Size,
    TensorLayout,
    TensorPiece,
)
from patchloom_service.models.families import architecture_of
from patchloom_service.models.image_config import HALF, ConfigRefused, ImageConfig, read_image_config
from patchloom_service.models.rows import concatenated_rows, picture_row
from patchloom_service.models.size_options import refuse_pixel_bounds
from patchloom_service.models.tokens import require_token
from patchloom_service.types import ImageOptions, Modality

ARCHITECTURES = {"Llama4ForConditionalGeneration": "llama4"}
IMAGE, START, END = "<|image|>", "<|image_start|>", "<|image_end|>"
PATCH, BESIDE, BELOW = "<|patch|>", "<|tile_x_separator|>", "<|tile_y_separator|>"
_DEFAULTS = {
    "resample": 2,
    "rescale_factor": 1 / 255,
    "image_mean": HALF,
    "image_std": HALF,
    "size": {"height": 336, "width": 336},
    "max_patches": 16,
    "resize_to_max_canvas": False,
}
_KEYS = ("size", "max_patches", "resize_to_max_canvas")


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Ids, and how many patch tokens a tile has."""

    image: RunToken
    start: RunToken
    end: RunToken
    beside: RunToken
    below: RunToken
    tile: RunToken


def match(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's config is of this family."""
    return architecture_of(config, ARCHITECTURES) is not None


def build(checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a checkpoint; ConfigRefused where its settings cannot be reproduced."""
    image = read_image_config(checkpoint.image_processor, _DEFAULTS, _KEYS)
    if image.mean is None or image.std is None or image.rescale_factor is None:
        raise ConfigRefused("Llama 4 needs do_rescale and do_normalize on")
    size = image.extra["size"]
    side = size.get("height")
    if not side or side != size.get("width"):
        raise ConfigRefused(f"size needs equal height and width, got {dict(size)}")
    count = _tile_tokens(side, checkpoint.processor)
    return ModelSpec(
        family="llama4",
        architectures=checkpoint.architectures,
        placeholders={Modality.IMAGE: IMAGE},
        structural=(START, END, PATCH, BESIDE, BELOW),
        plan_image=partial(_plan, image, side, _tokens(checkpoint, count)),
        layout=_layout,
        table=partial(_table, image),
        settings={**image.settings(), "tile_tokens": count},
        oracle="transformers Llama4Processor (torchvision backend)",
        dtype="bfloat16",
    )


def _tile_tokens(side: int, processor: Mapping[str, Any]) -> int:
    patch, ratio = processor.get("patch_size", 14), processor.get("pixel_shuffle_ratio", 0.5)
    return int((side // patch) ** 2 // round(1.0 / ratio**2))


def _tokens(checkpoint: Checkpoint, count: int) -> _Tokens:
    image, start, end, beside, below = (
        RunToken(require_token(checkpoint, spelling), placeholder=False)
        for spelling in (IMAGE, START, END, BESIDE, BELOW)
    )
    tile = RunToken(require_token(checkpoint, PATCH, "image_token_index"), count)
    return _Tokens(image, start, end, beside, below, tile)


def _table(image: ImageConfig, parity: Parity) -> NormalizeTable:
    return NormalizeTable.build(NormalizeFormula.HF_BFLOAT16, image.mean, image.std, image.rescale_factor)


def _plan(
    image: ImageConfig,
    side: int,
    tokens: _Tokens,
    size: Size,
    options: ImageOptions,
    item_count: int,
) -> MediaPlan:
    refuse_pixel_bounds("Llama 4", options)
    largest = bool(image.extra["resize_to_max_canvas"])
    down, across = tile_canvas(size, side, image.extra["max_patches"], largest)
    canvas = (down * side, across * side)
    target = _content(size, canvas, None if largest else side)
    layout = PatchLayout((side, side))
    pieces = [Piece(size, target, canvas, layout, image.resample)]
    if down * across > 1:
        pieces.append(Piece(size, (side, side), (side, side), layout, image.resample))
    return MediaPlan(
        modality=Modality.IMAGE,
        grid=Grid(GridKind.TILES, (down, across)),
        token_count=sum(piece.rows for piece in pieces) * tokens.tile.count,
        run=tuple(_run(tokens, down, across)),
        size=size,
        resized=target,
        pieces=tuple(TensorPiece("pixel_values", piece) for piece in pieces),
    )


def tile_canvas(size: Size, side: int, most: int, largest: bool) -> tuple[int, int]:
    """Tiles down and across: least enlarged (or, if `largest`, most), else least shrunk, then least area.

    Scales are compared in float32, as get_best_fit in transformers' models/llama4 does.
    """
    grids, sides = _grids(most), _sides(most, side)
    scales = (sides / np.array(size, np.float32)).min(axis=1)
    enlarging = scales[scales >= 1]
    chosen = scales.max() if largest or not len(enlarging) else enlarging.min()
    return min(
        (grids[index] for index in np.flatnonzero(scales == chosen)),
        key=lambda grid: grid[0] * grid[1],
    )


@cache
def _sides(most: int, side: int) -> npt.NDArray[np.float32]:
    """Height and width of the canvas of every grid, float32 [grids, 2]."""
    return np.array(_grids(most), np.float32) * np.float32(side)


@cache
def _grids(most: int) -> tuple[tuple[int, int], ...]:
    """All grids of up to `most` tiles; of equal ratios the larger first, else from `most` downwards."""
    by_ratio: dict[float, list[tuple[int, int]]] = {}
    for count in range(most, 0, -1):
        for down in range(1, count + 1):
            if count % down == 0:
                across = count // down
                by_ratio.setdefault(down / across, []).append((down, across))
    return tuple(grid for grids in by_ratio.values() for grid in grids)


def _content(size: Size, canvas: Size, side: int | None) -> Size:
    """The size of the image on its canvas, shape kept; without enlarging beyond a tile unless `side` is None.

    A scale that the canvas bounds is float32 and one that the image or the tile bounds float64, as in
    transformers, where the canvas is a tensor.
    """
    limits, scales = [], []
    for own, most in zip(size, canvas, strict=True):
        free = side is not None and max(own, side) <= most
        limit = max(own, side or 0) if free else most
        limits.append(limit)
        scales.append(limit / own if free else np.float32(limit) / np.float32(own))
    if scales[1] < scales[0]:
        return max(1, min(math.floor(size[0] * scales[1]), limits[0])), limits[1]
    return limits[0], max(1, min(math.floor(size[1] * scales[0]), limits[1]))


def _run(tokens: _Tokens, down: int, across: int) -> Iterator[RunToken]:
    yield tokens.start
    if down * across > 1:
        for _ in range(down):
            for column in range(across):
                yield tokens.tile
                if column < across - 1:
                    yield tokens.beside
            yield tokens.below
    yield from (tokens.image, tokens.tile, tokens.end)


def _layout(plans: Sequence[MediaPlan]) -> TensorLayout:
    """pixel_values [tiles of all images, 3, side, side], the whole image behind its tiles."""
    return concatenated_rows(plans, "pixel_values", picture_row, {})
