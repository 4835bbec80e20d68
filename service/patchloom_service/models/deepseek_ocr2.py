"""DeepSeek-OCR 2: tiles of a large image, and the whole of it on a grey square."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from patchloom_kernels.layout import PatchLayout, Piece

from patchloom_service.errors import SizeRefused
from patchloom_service.models.base import (
    Checkpoint,
    Grid,
    GridKind,
    MediaPlan,
    ModelSpec,
    RunToken,
    Size,
    TensorPiece,
)
from patchloom_service.models.families import architecture_of
from patchloom_service.models.image_config import HALF, ConfigRefused, ImageConfig, read_image_config
from patchloom_service.models.internvl import tile_grid
from patchloom_service.models.size_options import refuse_pixel_bounds
from patchloom_service.models.tile_rows import tiles_with_counts
from patchloom_service.models.tokens import named_token, require_token
from patchloom_service.types import ImageOptions, Modality

ARCHITECTURES = {"DeepseekOcr2ForConditionalGeneration": "deepseek_ocr2"}
MIN_TILES, MAX_TILES = 2, 6
"""DeepseekOcr2Processor sets these, whatever the image processor's settings say."""
_DEFAULTS = {
    "resample": 3,
    "rescale_factor": 1 / 255,
    "image_mean": HALF,
    "image_std": HALF,
    "size": {"height": 1024, "width": 1024},
    "tile_size": 768,
    "background_color": (127, 127, 127),
}
_KEYS = ("size", "tile_size", "background_color")


@dataclass(frozen=True, slots=True)
class _Views:
    """Sides of a tile and of the whole, and the placeholders of each."""

    tile: int
    whole: int
    tile_tokens: int
    whole_tokens: int


def match(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's config is of this family."""
    return architecture_of(config, ARCHITECTURES) is not None


def build(checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a checkpoint; ConfigRefused where its settings cannot be reproduced."""
    image = read_image_config(
        checkpoint.image_processor,
        _DEFAULTS,
        _KEYS,
        inert=("crop_to_patches", "min_patches", "max_patches"),
    )
    views = _views(image, checkpoint.processor)
    placeholder = named_token(checkpoint, "image_token", "<image>")
    token = require_token(checkpoint, placeholder, "image_token_id")
    return ModelSpec(
        family="deepseek_ocr2",
        architectures=checkpoint.architectures,
        placeholders={Modality.IMAGE: placeholder},
        plan_image=partial(_plan, image, views, token),
        layout=tiles_with_counts,
        table=image.table,
        settings={**image.settings(), "tokens": (views.tile_tokens, views.whole_tokens)},
        oracle="transformers DeepseekOcr2Processor (torchvision backend) and DeepseekOcr2ImageProcessorPil",
    )


def _views(image: ImageConfig, processor: Mapping[str, Any]) -> _Views:
    size = image.extra["size"]
    whole = size.get("height")
    if not whole or whole != size.get("width"):
        raise ConfigRefused(f"size needs equal height and width, got {dict(size)}")
    patch, ratio = processor.get("patch_size", 16), processor.get("downsample_ratio", 4)
    tile = image.extra["tile_size"]
    tile_tokens, whole_tokens = (math.ceil(side / patch / ratio) ** 2 for side in (tile, whole))
    return _Views(tile, whole, tile_tokens, whole_tokens)


def _plan(
    image: ImageConfig,
    views: _Views,
    token: int,
    size: Size,
    options: ImageOptions,
    item_count: int,
) -> MediaPlan:
    refuse_pixel_bounds("DeepSeek-OCR 2", options)
    pieces = [TensorPiece("pixel_values", _whole(image, views.whole, size))]
    grid = (0, 0)
    if max(size) > views.tile:
        tile = (views.tile, views.tile)
        grid = tile_grid(size, tile, MIN_TILES, MAX_TILES)
        target = (grid[0] * views.tile, grid[1] * views.tile)
        piece = Piece(size, target, target, PatchLayout(tile), image.resample)
        pieces.append(TensorPiece("pixel_values_local", piece))
    count = views.whole_tokens + views.tile_tokens * grid[0] * grid[1] + 1
    return MediaPlan(
        modality=Modality.IMAGE,
        grid=Grid(GridKind.TILES, grid),
        token_count=count,
        run=(RunToken(token, count),),
        size=size,
        resized=pieces[-1].piece.target,
        pieces=tuple(pieces),
    )


def _whole(image: ImageConfig, side: int, size: Size) -> Piece:
    """The image at its full shape in the middle of a square."""
    scale = side / max(size)
    target = round(size[0] * scale), round(size[1] * scale)
    if min(target) < 1:
        raise SizeRefused(
            f"{size[0]}x{size[1]} (height x width) has no pixel left at {side} pixels on the longer side; "
            f"an aspect ratio under {2 * side} is allowed"
        )
    square = max(target)
    offset = ((square - target[0]) // 2, (square - target[1]) // 2)
    red, green, blue = image.extra["background_color"]
    layout = PatchLayout((square, square))
    return Piece(size, target, (square, square), layout, image.resample, offset, (red, green, blue))
