"""Gemma 4: shape kept within a patch budget, patches in raster order, each image padded to the budget."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from patchloom_kernels.layout import PAD_ENTRY, Job, PatchLayout, Piece

from patchloom_service.errors import SizeRefused
from patchloom_service.models.base import (
    Checkpoint,
    Grid,
    GridKind,
    MediaPlan,
    ModelSpec,
    PixelTensor,
    RunToken,
    Size,
    TensorLayout,
    TensorPiece,
    TensorSlice,
)
from patchloom_service.models.families import architecture_of
from patchloom_service.models.image_config import ConfigRefused, ImageConfig, read_image_config
from patchloom_service.models.size_options import refuse_pixel_bounds
from patchloom_service.models.tokens import image_token_types, known_tokens, named_token, require_token
from patchloom_service.types import ImageOptions, Modality

ARCHITECTURES = {"Gemma4ForConditionalGeneration": "gemma4"}
SOFT_TOKENS = (70, 140, 280, 560, 1120)
_DEFAULTS = {
    "resample": 3,
    "rescale_factor": 1 / 255,
    "do_normalize": False,
    "image_mean": (0.0, 0.0, 0.0),
    "image_std": (1.0, 1.0, 1.0),
    "patch_size": 16,
    "max_soft_tokens": 280,
    "pooling_kernel_size": 3,
}
_KEYS = ("patch_size", "max_soft_tokens", "pooling_kernel_size")


@dataclass(frozen=True, slots=True)
class _Tokens:
    start: int
    image: int
    end: int


def match(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's config is of this family."""
    return architecture_of(config, ARCHITECTURES) is not None


def build(checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a checkpoint; ConfigRefused where its settings cannot be reproduced."""
    image = read_image_config(checkpoint.image_processor, _DEFAULTS, _KEYS)
    if image.extra["max_soft_tokens"] not in SOFT_TOKENS:
        raise ConfigRefused(f"max_soft_tokens={image.extra['max_soft_tokens']}; {SOFT_TOKENS} are supported")
    start, soft, end = (
        named_token(checkpoint, name, default)
        for name, default in (
            ("boi_token", "<|image>"),
            ("image_token", "<|image|>"),
            ("eoi_token", "<image|>"),
        )
    )
    tokens = _Tokens(
        require_token(checkpoint, start, "boi_token_id"),
        require_token(checkpoint, soft, "image_token_id"),
        require_token(checkpoint, end, "eoi_token_id"),
    )
    most = image.extra["max_soft_tokens"] * image.extra["pooling_kernel_size"] ** 2
    return ModelSpec(
        family="gemma4",
        architectures=checkpoint.architectures,
        placeholders={Modality.IMAGE: soft},
        structural=known_tokens(checkpoint, (start, end, "<|video|>")),
        plan_image=partial(_plan, image, most, tokens),
        layout=partial(_layout, most),
        table=image.table,
        token_types=image_token_types,
        settings=image.settings(),
        oracle="transformers Gemma4Processor (torchvision backend) and Gemma4ImageProcessorPil",
    )


def _plan(
    image: ImageConfig,
    most: int,
    tokens: _Tokens,
    size: Size,
    options: ImageOptions,
    item_count: int,
) -> MediaPlan:
    refuse_pixel_bounds("Gemma 4", options)
    patch, pool = image.extra["patch_size"], image.extra["pooling_kernel_size"]
    target = _resized(size, patch, pool, most)
    piece = Piece(size, target, target, PatchLayout((patch, patch), columns="tyxc"), image.resample)
    count = piece.rows // pool**2
    return MediaPlan(
        modality=Modality.IMAGE,
        grid=Grid(GridKind.PATCHES, (1, *piece.grid)),
        token_count=count,
        run=(
            RunToken(tokens.start, placeholder=False),
            RunToken(tokens.image, count),
            RunToken(tokens.end, placeholder=False),
        ),
        size=size,
        resized=target,
        pieces=(TensorPiece("pixel_values", piece),),
    )


def _resized(size: Size, patch: int, pool: int, most: int) -> Size:
    """The size that get_aspect_ratio_preserving_size (transformers' models/gemma4) gives.

    The most whole pools of patches that `most` patches allow in the image's shape, at least one a side.
    """
    height, width = size
    pixels, step = most * patch**2, pool * patch
    factor = math.sqrt(pixels / (height * width))
    down, across = math.floor(factor * height / step), math.floor(factor * width / step)
    if down == 0:
        down, across = 1, min(math.floor(width / height), most // pool**2)
    elif across == 0:
        down, across = min(math.floor(height / width), most // pool**2), 1
    if down * across * step**2 > pixels:
        raise SizeRefused(
            f"{height}x{width} (height x width) becomes {down * step}x{across * step}, "
            f"more than {most} patches of {patch}; at most {most} are allowed"
        )
    return down * step, across * step


def _layout(most: int, plans: Sequence[MediaPlan]) -> TensorLayout:
    """pixel_values [images, most, row], image_position_ids [images, most, 2]; behind the patches 0 and -1."""
    pieces = [placed.piece for plan in plans for placed in plan.pieces]
    if not pieces:
        return TensorLayout((), {}, ())
    row = pieces[0].layout.row_size()
    jobs = tuple(Job.contiguous(i, piece, i * most * row) for i, piece in enumerate(pieces))
    tensor = PixelTensor("pixel_values", (len(plans), most, row), jobs, fill=PAD_ENTRY)
    positions = np.stack([_positions(piece.grid, most) for piece in pieces])
    names = ("pixel_values", "image_position_ids")
    slices = tuple(tuple(TensorSlice(name, 0, i, 1) for name in names) for i in range(len(plans)))
    return TensorLayout((tensor,), {"image_position_ids": positions}, slices)


def _positions(grid: tuple[int, int], most: int) -> npt.NDArray[np.int64]:
    """(x, y) of every patch in raster order, -1 behind them, int64 [most, 2]."""
    positions = np.full((most, 2), -1, np.int64)
    y, x = np.mgrid[: grid[0], : grid[1]]
    positions[: y.size] = np.stack([x.ravel(), y.ravel()], axis=-1)
    return positions
