"""LLaVA-OneVision: a lone image in tiles on a centred canvas, several images as one square each."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from patchloom_kernels.layout import PAD_ENTRY, Job, PatchLayout, Piece

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
from patchloom_service.models.image_config import (
    CLIP_MEAN,
    CLIP_STD,
    ConfigRefused,
    ImageConfig,
    read_image_config,
)
from patchloom_service.models.size_options import refuse_pixel_bounds
from patchloom_service.models.squares import padded_to_square
from patchloom_service.models.tokens import known_tokens, named_token, require_token
from patchloom_service.types import ImageOptions, Modality

ARCHITECTURES = {"LlavaOnevisionForConditionalGeneration": "llava_onevision"}
_PINPOINTS = tuple((down * 384, across * 384) for down in range(1, 7) for across in range(1, 7))
_DEFAULTS = {
    "resample": 3,
    "rescale_factor": 1 / 255,
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
    "size": {"height": 384, "width": 384},
    "image_grid_pinpoints": _PINPOINTS,
    "do_pad": True,
}
_KEYS = ("size", "image_grid_pinpoints", "do_pad")


@dataclass(frozen=True, slots=True)
class _Features:
    """How features are counted: `side` x `side` a tile, shrunk to `most` tiles' worth, less `dropped`."""

    side: int
    tile: int
    most: int
    dropped: int


def match(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's config is of this family."""
    return architecture_of(config, ARCHITECTURES) is not None


def build(checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a checkpoint; ConfigRefused where its settings cannot be reproduced."""
    image = read_image_config(checkpoint.image_processor, _DEFAULTS, _KEYS)
    if not image.extra["do_pad"]:
        raise ConfigRefused("do_pad=false is not supported; it must be on")
    side = _side(image)
    placeholder = named_token(checkpoint, "image_token", checkpoint.processor.get("image_token", "<image>"))
    token = require_token(checkpoint, placeholder, "image_token_index", "image_token_id")
    features = _features(checkpoint.processor)
    return ModelSpec(
        family="llava_onevision",
        architectures=checkpoint.architectures,
        placeholders={Modality.IMAGE: placeholder},
        structural=known_tokens(checkpoint, (checkpoint.processor.get("video_token", "<video>"),)),
        plan_image=partial(_plan, image, side, features, token),
        layout=_layout,
        table=image.table,
        settings={**image.settings(), "features": (features.tile, features.most, features.dropped)},
        oracle="transformers LlavaOnevisionProcessor (torchvision backend) and its PIL image processor",
    )


def _side(image: ImageConfig) -> int:
    """The side of a tile, of which all pinpoints must be multiples."""
    size = image.extra["size"]
    height, width = size.get("height"), size.get("width")
    if not height or height != width:
        raise ConfigRefused(f"size needs equal height and width, got {dict(size)}")
    for pinpoint in image.extra["image_grid_pinpoints"]:
        if any(length % height for length in pinpoint):
            raise ConfigRefused(f"the pinpoint {tuple(pinpoint)} is no whole number of {height} pixel tiles")
    return int(height)


def _features(processor: Mapping[str, Any]) -> _Features:
    count = processor.get("num_image_tokens")
    if not count:
        raise ConfigRefused("processor_config.json needs num_image_tokens")
    ratio = str(processor.get("vision_aspect_ratio", "anyres_max_9"))
    most = ratio.removeprefix("anyres_max_")
    if not most.isdigit():
        raise ConfigRefused(f"vision_aspect_ratio={ratio!r} is not supported; use anyres_max_N")
    dropped = int(processor.get("vision_feature_select_strategy") == "default")
    return _Features(int(math.sqrt(count)), count, int(most), dropped)


def _plan(
    image: ImageConfig,
    side: int,
    features: _Features,
    token: int,
    size: Size,
    options: ImageOptions,
    item_count: int,
) -> MediaPlan:
    refuse_pixel_bounds("LLaVA-OneVision", options)
    if item_count > 1:
        return _square_plan(image, side, features, token, size)
    canvas = best_pinpoint(size, image.extra["image_grid_pinpoints"])
    target = _fitted(size, canvas)
    layout = PatchLayout((side, side))
    offset = ((canvas[0] - target[0]) // 2, (canvas[1] - target[1]) // 2)
    pieces = (
        Piece(size, (side, side), (side, side), layout, image.resample),
        Piece(size, target, canvas, layout, image.resample, offset),
    )
    grid = (canvas[0] // side, canvas[1] // side)
    count = _feature_count(features, size, grid) - features.dropped
    return _media_plan(grid, count, token, size, target, pieces)


def _square_plan(image: ImageConfig, side: int, features: _Features, token: int, size: Size) -> MediaPlan:
    red, green, blue = (int(value * 255) for value in image.mean or CLIP_MEAN)
    via = padded_to_square(size, (red, green, blue), centred=True)
    square = (side, side)
    source = via[-1].canvas if via else size
    piece = Piece(source, square, square, PatchLayout(square), image.resample, via=via)
    return _media_plan((0, 0), features.tile + 1 - features.dropped, token, size, square, (piece,))


def _media_plan(
    grid: tuple[int, int], count: int, token: int, size: Size, target: Size, pieces: tuple[Piece, ...]
) -> MediaPlan:
    return MediaPlan(
        modality=Modality.IMAGE,
        grid=Grid(GridKind.TILES, grid),
        token_count=count,
        run=(RunToken(token, count),),
        size=size,
        resized=target,
        pieces=tuple(TensorPiece("pixel_values", piece) for piece in pieces),
    )


def best_pinpoint(size: Size, pinpoints: Sequence[Size]) -> Size:
    """The pinpoint that keeps most pixels of the image, then wastes least (select_best_resolution)."""
    best, kept, wasted = None, 0, math.inf
    for height, width in pinpoints:
        scale = min(width / size[1], height / size[0])
        effective = min(int(size[1] * scale) * int(size[0] * scale), size[0] * size[1])
        waste = height * width - effective
        if effective > kept or (effective == kept and waste < wasted):
            best, kept, wasted = (height, width), effective, waste
    return best or (pinpoints[0][0], pinpoints[0][1])


def _fitted(size: Size, canvas: Size) -> Size:
    """The largest size of the image's shape on `canvas`, its shorter side rounded up."""
    scale_h, scale_w = canvas[0] / size[0], canvas[1] / size[1]
    if scale_w < scale_h:
        return min(math.ceil(size[0] * scale_w), canvas[0]), canvas[1]
    return canvas[0], min(math.ceil(size[1] * scale_h), canvas[1])


def _feature_count(features: _Features, size: Size, grid: tuple[int, int]) -> int:
    """Features of the tiles without padding, one more a row for its newline, and those of the base."""
    height, width = size
    down, across = features.side * grid[0], features.side * grid[1]
    if width / height > across / down:
        down -= (down - int(round(height * (across / width), 7))) // 2 * 2
    else:
        across -= (across - int(round(width * (down / height), 7))) // 2 * 2
    ratio = math.sqrt(down * across / (features.most * features.side**2))
    if ratio > 1.1:
        down, across = int(down // ratio), int(across // ratio)
    return down * across + down + features.tile


def _layout(plans: Sequence[MediaPlan]) -> TensorLayout:
    """pixel_values [images, most tiles, 3, side, side], 0 behind an image's tiles, and the source sizes.

    batch_num_images int64 [1] counts the images of the request and belongs to no item.
    """
    if not plans:
        return TensorLayout((), {}, ())
    rows = [sum(placed.piece.rows for placed in plan.pieces) for plan in plans]
    layout = plans[0].pieces[0].piece.layout
    size = layout.row_size()
    jobs: list[Job] = []
    for index, plan in enumerate(plans):
        row = index * max(rows)
        for placed in plan.pieces:
            jobs.append(Job.contiguous(index, placed.piece, row * size))
            row += placed.piece.rows
    shape = (len(plans), max(rows), 3, *layout.patch)
    tensor = PixelTensor("pixel_values", shape, tuple(jobs), fill=PAD_ENTRY)
    sizes = np.array([plan.size for plan in plans], np.int64)
    names = ("pixel_values", "image_sizes")
    slices = tuple(tuple(TensorSlice(name, 0, i, 1) for name in names) for i in range(len(plans)))
    constants = {"image_sizes": sizes, "batch_num_images": np.array([len(plans)], np.int64)}
    return TensorLayout((tensor,), constants, slices)
