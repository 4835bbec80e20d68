"""Pixtral and Mistral 3: shape kept, a break token behind each row of patches, one padded batch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from patchloom_kernels.layout import PAD_ENTRY, Job, PatchLayout, Piece, Strides

from patchloom_service.errors import SizeRefused
from patchloom_service.models.base import (
    Checkpoint,
    Grid,
    GridKind,
    MediaPlan,
    ModelSpec,
    PixelTensor,
    Run,
    RunToken,
    Size,
    TensorLayout,
    TensorPiece,
    TensorSlice,
)
from patchloom_service.models.families import architecture_of
from patchloom_service.models.image_config import (
    CLIP_MEAN,
    CLIP_STD,
    ConfigRefused,
    ImageConfig,
    read_image_config,
)
from patchloom_service.models.size_options import refuse_pixel_bounds
from patchloom_service.models.tokens import require_token
from patchloom_service.types import ImageOptions, Modality

ARCHITECTURES = {
    "LlavaForConditionalGeneration": "llava",
    "Mistral3ForConditionalGeneration": "mistral3",
}
_DEFAULTS = {
    "resample": 3,
    "rescale_factor": 1 / 255,
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
    "size": {"longest_edge": 1024},
    "do_pad": True,
}


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Ids of a patch, of the end of a row and of the end of the image."""

    image: int
    row: int
    end: int


def match(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint has a Pixtral vision tower."""
    vision = config.get("vision_config") or {}
    return architecture_of(config, ARCHITECTURES) is not None and vision.get("model_type") == "pixtral"


def build(checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a checkpoint; ConfigRefused where its settings cannot be reproduced.

    The processor's patch size wins over the image processor's.
    """
    image = read_image_config(
        checkpoint.image_processor, _DEFAULTS, ("size", "do_pad"), inert=("patch_size",)
    )
    if not image.extra["do_pad"]:
        raise ConfigRefused("do_pad=false is not supported; it must be on")
    processor = checkpoint.processor
    factor = processor.get("patch_size", 16) * processor.get("spatial_merge_size", 1)
    spellings = [
        processor.get(f"image{part}_token", default)
        for part, default in (("", "[IMG]"), ("_break", "[IMG_BREAK]"), ("_end", "[IMG_END]"))
    ]
    tokens = _Tokens(
        require_token(checkpoint, spellings[0], "image_token_id", "image_token_index"),
        require_token(checkpoint, spellings[1]),
        require_token(checkpoint, spellings[2]),
    )
    limit = _limit(image.extra["size"])
    return ModelSpec(
        family="pixtral",
        architectures=checkpoint.architectures,
        placeholders={Modality.IMAGE: spellings[0]},
        structural=tuple(spellings[1:]),
        plan_image=partial(_plan, image, limit, factor, tokens),
        layout=_layout,
        table=image.table,
        settings={**image.settings(), "factor": factor},
        oracle="transformers PixtralProcessor (torchvision backend) and PixtralImageProcessorPil",
    )


def _limit(size: Mapping[str, Any] | int) -> Size:
    if isinstance(size, int):
        return size, size
    sides = size.get("longest_edge"), size.get("longest_edge")
    height, width = sides if sides[0] else (size.get("height"), size.get("width"))
    if not height or not width:
        raise ConfigRefused(f"size needs longest_edge, or height and width, got {dict(size)}")
    return height, width


def _plan(
    image: ImageConfig,
    limit: Size,
    factor: int,
    tokens: _Tokens,
    size: Size,
    options: ImageOptions,
    item_count: int,
) -> MediaPlan:
    refuse_pixel_bounds("Pixtral", options)
    target = _resized(size, limit, factor)
    down, across = target[0] // factor, target[1] // factor
    piece = Piece(size, target, target, PatchLayout(target), image.resample)
    return MediaPlan(
        modality=Modality.IMAGE,
        grid=Grid(GridKind.PATCHES, (1, down, across)),
        token_count=down * across,
        run=_run(tokens, down, across),
        size=size,
        resized=target,
        pieces=(TensorPiece("pixel_values", piece),),
    )


def _resized(size: Size, limit: Size, factor: int) -> Size:
    """Within `limit`, sides rounded up to multiples of `factor` (transformers' models/pixtral)."""
    height, width = size
    ratio = max(height / limit[0], width / limit[1])
    if ratio > 1:
        height, width = math.floor(height / ratio), math.floor(width / ratio)
    if min(height, width) < 1:
        raise SizeRefused(
            f"{size[0]}x{size[1]} (height x width) has no pixel left within {limit[0]}x{limit[1]}; "
            f"an aspect ratio up to {max(limit)} is allowed"
        )
    return ((height - 1) // factor + 1) * factor, ((width - 1) // factor + 1) * factor


def _run(tokens: _Tokens, down: int, across: int) -> Run:
    row = (RunToken(tokens.image, across), RunToken(tokens.row, placeholder=False))
    return (*(row * down)[:-1], RunToken(tokens.end, placeholder=False))


def _layout(plans: Sequence[MediaPlan]) -> TensorLayout:
    """pixel_values [images, 3, largest height, largest width], 0 beside smaller; image_sizes [images, 2]."""
    pieces = [placed.piece for plan in plans for placed in plan.pieces]
    if not pieces:
        return TensorLayout((), {}, ())
    height, width = (max(piece.canvas[axis] for piece in pieces) for axis in (0, 1))
    strides = Strides(row=0, c=height * width, t=0, y=width, x=1)
    jobs = tuple(Job(i, piece, i * 3 * height * width, strides) for i, piece in enumerate(pieces))
    tensor = PixelTensor("pixel_values", (len(plans), 3, height, width), jobs, fill=PAD_ENTRY)
    sizes = np.array([piece.canvas for piece in pieces], np.int64)
    slices = tuple(
        (TensorSlice("pixel_values", 0, i, 1), TensorSlice("image_sizes", 0, i, 1)) for i in range(len(plans))
    )
    return TensorLayout((tensor,), {"image_sizes": sizes}, slices)
