"""Kimi K2.5: shrunk to a patch budget, padded to merge groups, patches as pictures in raster order."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from patchloom_kernels.layout import PatchLayout, Piece

from patchloom_service.models.base import Checkpoint, MediaPlan, ModelSpec, Size
from patchloom_service.models.families import architecture_of
from patchloom_service.models.image_config import HALF, ConfigRefused, ImageConfig, read_image_config
from patchloom_service.models.patch_plan import patch_plan
from patchloom_service.models.rows import picture_row, rows_with_grids
from patchloom_service.models.size_options import refuse_pixel_bounds
from patchloom_service.models.tokens import known_tokens, named_token, require_token
from patchloom_service.types import ImageOptions, Modality

ARCHITECTURES = {"Kimi_K25ForConditionalGeneration": "kimi_k25"}
STRUCTURAL = ("<|media_begin|>", "<|media_content|>", "<|media_end|>")
_DEFAULTS = {
    "resample": 3,
    "rescale_factor": 1 / 255,
    "image_mean": HALF,
    "image_std": HALF,
    "size": {"max_height": 512, "max_width": 512},
    "max_patches": 16384,
    "patch_size": 14,
    "merge_size": 2,
}
_KEYS = ("size", "max_patches", "patch_size", "merge_size")


def match(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's config is of this family."""
    return architecture_of(config, ARCHITECTURES) is not None


def build(checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a checkpoint; ConfigRefused where its settings cannot be reproduced."""
    image = read_image_config(checkpoint.image_processor, _DEFAULTS, _KEYS)
    size = image.extra["size"]
    side = size.get("max_height")
    if not side or side != size.get("max_width"):
        raise ConfigRefused(f"size needs equal max_height and max_width, got {dict(size)}")
    placeholder = named_token(checkpoint, "image_token", "<|media_pad|>")
    token = require_token(checkpoint, placeholder, "image_token_id")
    return ModelSpec(
        family="kimi_k25",
        architectures=checkpoint.architectures,
        placeholders={Modality.IMAGE: placeholder},
        structural=known_tokens(checkpoint, STRUCTURAL),
        plan_image=partial(_plan, image, side, token),
        layout=partial(rows_with_grids, picture_row),
        table=image.table,
        settings=image.settings(),
        oracle="transformers Kimi_K25Processor (torchvision backend)",
    )


def _plan(
    image: ImageConfig,
    side: int,
    token: int,
    size: Size,
    options: ImageOptions,
    item_count: int,
) -> MediaPlan:
    refuse_pixel_bounds("Kimi K2.5", options)
    patch, merge = image.extra["patch_size"], image.extra["merge_size"]
    target = navit_resize(size, patch, image.extra["max_patches"], side)
    factor = patch * merge
    canvas = (-(-target[0] // factor) * factor, -(-target[1] // factor) * factor)
    piece = Piece(size, target, canvas, PatchLayout((patch, patch)), image.resample)
    return patch_plan(piece, token, merge)


def navit_resize(size: Size, patch: int, max_patches: int, max_side: int) -> Size:
    """The (height, width) that transformers' navit_resize (models/kimi_k25) gives, without the padding.

    At most `max_patches` patches in all and `max_side` patches a side; never enlarged.
    """
    patches = max(1.0, size[0] // patch) * max(1.0, size[1] // patch)
    limit = max_side * patch
    scale = min(1.0, math.sqrt(max_patches / patches), limit / size[0], limit / size[1])
    return min(max(1, int(size[0] * scale)), limit), min(max(1, int(size[1] * scale)), limit)
