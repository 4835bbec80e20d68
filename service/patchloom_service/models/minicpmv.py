"""MiniCPM-V 4.6 and 4.7: the whole image and slices of it, patches side by side in one long strip."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from patchloom_kernels.layout import Job, PatchLayout, Piece, Strides

from patchloom_service.models.base import (
    Checkpoint,
    Grid,
    GridKind,
    MediaPlan,
    ModelSpec,
    PixelTensor,
    RunNumber,
    RunToken,
    Size,
    TensorLayout,
    TensorPiece,
    TensorSlice,
)
from patchloom_service.models.families import architecture_of
from patchloom_service.models.image_config import HALF, ConfigRefused, ImageConfig, read_image_config
from patchloom_service.models.size_options import refuse_pixel_bounds
from patchloom_service.models.tokens import image_token_types, known_tokens, named_token, require_token
from patchloom_service.types import ImageOptions, Modality

ARCHITECTURES = {
    "MiniCPMV4_6ForConditionalGeneration": "minicpmv4_6",
    "MiniCPMV4_7ForConditionalGeneration": "minicpmv4_7",
}
_DEFAULTS = {
    "resample": 3,
    "rescale_factor": 1 / 255,
    "image_mean": HALF,
    "image_std": HALF,
    "max_slice_nums": 9,
    "scale_resolution": 448,
    "patch_size": 14,
    "slice_mode": True,
    "downsample_mode": "16x",
    "use_image_id": True,
}
_KEYS = (
    *("max_slice_nums", "scale_resolution", "patch_size"),
    *("slice_mode", "downsample_mode", "use_image_id"),
)
_MERGES = {"4x": 2, "16x": 4}
_STRUCTURAL = {
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
}


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Ids. `number` is the item's number in its frame, if any; `newline` stands between rows of slices."""

    image: int
    whole: tuple[int, int]  # start, end
    slice: tuple[int, int]  # start, end
    number: tuple[RunToken | RunNumber, ...]
    newline: int


def match(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's config is of this line."""
    return architecture_of(config, ARCHITECTURES) is not None


def build(checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a checkpoint; ConfigRefused where its settings cannot be reproduced."""
    family = ARCHITECTURES[architecture_of(checkpoint.config, ARCHITECTURES) or ""]
    image = read_image_config(checkpoint.image_processor, _DEFAULTS, _KEYS)
    if image.extra["downsample_mode"] not in _MERGES:
        raise ConfigRefused(f"downsample_mode={image.extra['downsample_mode']!r}; 16x and 4x are supported")
    placeholder = named_token(checkpoint, "image_token", "<|image_pad|>")
    structural = [named_token(checkpoint, name, default) for name, default in _STRUCTURAL.items()]
    return ModelSpec(
        family=family,
        architectures=checkpoint.architectures,
        placeholders={Modality.IMAGE: placeholder},
        structural=known_tokens(checkpoint, structural),
        plan_image=partial(_plan, image, _tokens(checkpoint, placeholder, structural, image)),
        layout=_layout,
        table=image.table,
        token_types=image_token_types if family == "minicpmv4_7" else None,
        settings=image.settings(),
        oracle="transformers MiniCPMV4_6Processor (torchvision backend) and MiniCPMV4_6ImageProcessorPil",
    )


def _tokens(
    checkpoint: Checkpoint, placeholder: str, structural: Sequence[str], image: ImageConfig
) -> _Tokens:
    ids = [require_token(checkpoint, spelling) for spelling in structural]
    numbered = checkpoint.processor.get("use_image_id")
    if numbered is None:
        numbered = image.extra["use_image_id"]
    start, end = (RunToken(id, placeholder=False) for id in ids[4:])
    return _Tokens(
        image=require_token(checkpoint, placeholder, "image_token_id"),
        whole=(ids[0], ids[1]),
        slice=(ids[2], ids[3]),
        number=(start, RunNumber(_digits(checkpoint)), end) if numbered else (),
        newline=_single(checkpoint, "\n"),
    )


def _digits(checkpoint: Checkpoint) -> tuple[int, ...]:
    """The ids of the digits; ConfigRefused where a number is not one token per digit."""
    digits = tuple(_single(checkpoint, digit) for digit in "0123456789")
    for number in ("10", "105", "9876543210"):
        if list(_encode(checkpoint, number)) != [digits[int(digit)] for digit in number]:
            raise ConfigRefused(f"the tokenizer does not write {number} digit by digit; image ids need that")
    return digits


def _single(checkpoint: Checkpoint, text: str) -> int:
    ids = _encode(checkpoint, text)
    if len(ids) != 1:
        raise ConfigRefused(f"the tokenizer writes {text!r} as {len(ids)} tokens; the run needs one")
    return ids[0]


def _encode(checkpoint: Checkpoint, text: str) -> Sequence[int]:
    assert checkpoint.encode is not None
    return checkpoint.encode(text)


def _plan(
    image: ImageConfig,
    tokens: _Tokens,
    size: Size,
    options: ImageOptions,
    item_count: int,
) -> MediaPlan:
    refuse_pixel_bounds("MiniCPM-V", options)
    extra = image.extra
    patch, merge = extra["patch_size"], _MERGES[extra["downsample_mode"]]
    grid = (
        slice_grid(size, extra["max_slice_nums"], extra["scale_resolution"]) if extra["slice_mode"] else None
    )
    layout = PatchLayout((patch, patch))
    whole = _best_size(size, extra["scale_resolution"], patch * merge, enlarge=grid is None)
    pieces = [Piece(size, whole, whole, layout, image.resample)]
    pieces += _slices(image, size, grid, layout) if grid else ()
    counts = [piece.rows // merge**2 for piece in pieces]
    return MediaPlan(
        modality=Modality.IMAGE,
        grid=Grid(GridKind.TILES, grid or (0, 0)),
        token_count=sum(counts),
        run=tuple(_run(tokens, grid, counts)),
        size=size,
        resized=pieces[-1].target,
        pieces=tuple(TensorPiece("pixel_values", piece) for piece in pieces),
    )


def slice_grid(size: Size, most: int, side: int) -> tuple[int, int] | None:
    """Slices down and across, None where the image is not sliced.

    About one slice per `side`^2 pixels, `most` at most, and of those grids the one nearest to the image's
    shape (get_sliced_grid in transformers' models/minicpmv4_6).
    """
    height, width = size
    wanted = min(math.ceil(width * height / (side * side)), most)
    if wanted <= 1:
        return None
    shape = math.log(width / height)
    best, least = (1, 1), math.inf
    for down, across in _grids(wanted, most):
        error = abs(shape - math.log(across / down))
        if error < least or (error == least and down > best[0]):
            best, least = (down, across), error
    return best


def _grids(wanted: int, most: int) -> Iterator[tuple[int, int]]:
    for count in (wanted - 1, wanted, wanted + 1):
        if count != 1 and count <= most:
            yield from ((down, count // down) for down in range(1, count + 1) if count % down == 0)


def _rounded(length: float, step: int) -> int:
    return max(round(length / step) * step, step)


def _best_size(size: tuple[float, float], side: int, step: int, enlarge: bool) -> Size:
    """About `side`^2 pixels where the image is larger or may be enlarged; sides are multiples of `step`."""
    height, width = size
    if height * width > side * side or enlarge:
        ratio = width / height
        height = int(side / math.sqrt(ratio))
        width = int(height * ratio)
    return _rounded(height, step), _rounded(width, step)


def _slices(image: ImageConfig, size: Size, grid: tuple[int, int], layout: PatchLayout) -> Iterator[Piece]:
    """Slices of one enlarged image, in raster order."""
    extra = image.extra
    step = extra["patch_size"] * _MERGES[extra["downsample_mode"]]
    cell = (_rounded(size[0], grid[0]) / grid[0], _rounded(size[1], grid[1]) / grid[1])
    side = _best_size(cell, extra["scale_resolution"], step, enlarge=True)
    target = (side[0] * grid[0], side[1] * grid[1])
    for row in range(grid[0]):
        for column in range(grid[1]):
            offset = (-row * side[0], -column * side[1])
            yield Piece(size, target, side, layout, image.resample, offset)


def _run(
    tokens: _Tokens, grid: tuple[int, int] | None, counts: Sequence[int]
) -> Iterator[RunToken | RunNumber]:
    yield from tokens.number
    yield from _framed(tokens, tokens.whole, counts[0])
    for index, count in enumerate(counts[1:]):
        if grid and index and index % grid[1] == 0:
            yield RunToken(tokens.newline, placeholder=False)
        yield from _framed(tokens, tokens.slice, count)


def _framed(tokens: _Tokens, frame: tuple[int, int], count: int) -> tuple[RunToken, ...]:
    start, end = (RunToken(id, placeholder=False) for id in frame)
    return start, RunToken(tokens.image, count), end


def _layout(plans: Sequence[MediaPlan]) -> TensorLayout:
    """pixel_values [1, 3, patch, patches x patch], target_sizes int32 [slices, 2] in patches."""
    pieces = [placed.piece for plan in plans for placed in plan.pieces]
    if not pieces:
        return TensorLayout((), {}, ())
    height, width = pieces[0].layout.patch
    length = sum(piece.rows for piece in pieces) * width
    strides = Strides(row=width, c=height * length, t=0, y=length, x=1)
    jobs: list[Job] = []
    slices: list[tuple[TensorSlice, ...]] = []
    column = 0
    for index, plan in enumerate(plans):
        first, job = column, len(jobs)
        for placed in plan.pieces:
            jobs.append(Job(index, placed.piece, column, strides))
            column += placed.piece.rows * width
        own = TensorSlice("pixel_values", 3, first, column - first)
        slices.append((own, TensorSlice("target_sizes", 0, job, len(jobs) - job)))
    tensor = PixelTensor("pixel_values", (1, 3, height, length), tuple(jobs))
    sizes = np.array([piece.grid for piece in pieces], np.int32)
    return TensorLayout((tensor,), {"target_sizes": sizes}, tuple(slices))
