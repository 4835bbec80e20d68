"""GLM-5.3-Flash: a canvas within a token budget, the image at its top left, never enlarged without need."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from patchloom_kernels.layout import PatchLayout, Piece

from patchloom_service.models.base import Checkpoint, MediaPlan, ModelSpec, Size
from patchloom_service.models.families import architecture_of
from patchloom_service.models.image_config import (
    CLIP_MEAN,
    CLIP_STD,
    ConfigRefused,
    ImageConfig,
    read_image_config,
)
from patchloom_service.models.patch_plan import patch_plan
from patchloom_service.models.rows import flat_row, rows_with_grids
from patchloom_service.models.size_options import refuse_pixel_bounds
from patchloom_service.models.tokens import image_token_types, known_tokens, named_token, require_token
from patchloom_service.types import ImageOptions, Modality

ARCHITECTURES = {"Glm5NextForConditionalGeneration": "glm5_next"}
STRUCTURAL = (
    *("<|begin_of_image|>", "<|end_of_image|>"),
    *("<|begin_of_video|>", "<|end_of_video|>", "<|video|>"),
)
_DEFAULTS = {
    "resample": 3,
    "rescale_factor": 1 / 255,
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "patch_expand_factor": 1,
    "min_image_tokens": 16,
    "max_image_tokens": 8000,
}
_KEYS = (
    *("patch_size", "temporal_patch_size", "merge_size", "patch_expand_factor"),
    *("min_image_tokens", "max_image_tokens"),
)


@dataclass(frozen=True, slots=True)
class _Budget:
    """Pixels of all frames of an image; canvas sides are multiples of `factor`."""

    factor: int
    frames: int
    low: int
    high: int

    def area(self, size: Size) -> int:
        return self.frames * size[0] * size[1]

    def aligned(self, size: Size) -> Size:
        return -(-size[0] // self.factor) * self.factor, -(-size[1] // self.factor) * self.factor


def match(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's config is of this family."""
    return architecture_of(config, ARCHITECTURES) is not None


def build(checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a checkpoint; ConfigRefused where its settings cannot be reproduced.

    `size` is a key that the image processor has and does not use.
    """
    image = read_image_config(checkpoint.image_processor, _DEFAULTS, _KEYS)
    patch, merge = image.extra["patch_size"], image.extra["merge_size"]
    layout = PatchLayout((patch, patch), merge=merge, temporal=image.extra["temporal_patch_size"])
    placeholder = named_token(checkpoint, "image_token", "<|image|>")
    token = require_token(checkpoint, placeholder, "image_token_id")
    return ModelSpec(
        family="glm5_next",
        architectures=checkpoint.architectures,
        placeholders={Modality.IMAGE: placeholder},
        structural=known_tokens(checkpoint, STRUCTURAL),
        plan_image=partial(_plan, image, layout, _budget(image.extra), token),
        layout=partial(rows_with_grids, flat_row),
        table=image.table,
        token_types=image_token_types,
        settings=image.settings(),
        oracle="transformers Glm5NextProcessor (torchvision backend) and Glm5NextImageProcessorPil",
    )


def _budget(extra: Mapping[str, Any]) -> _Budget:
    factor = extra["patch_size"] * extra["merge_size"] * extra["patch_expand_factor"]
    frames, low, high = extra["temporal_patch_size"], extra["min_image_tokens"], extra["max_image_tokens"]
    if not 1 <= low <= high:
        raise ConfigRefused(f"1 <= min_image_tokens <= max_image_tokens is needed, got {low} and {high}")
    token = frames * factor**2
    return _Budget(factor, frames, low * token, high * token)


def _plan(
    image: ImageConfig,
    layout: PatchLayout,
    budget: _Budget,
    token: int,
    size: Size,
    options: ImageOptions,
    item_count: int,
) -> MediaPlan:
    refuse_pixel_bounds("GLM-5.3-Flash", options)
    canvas = _canvas(budget, size)
    target = _content(budget, size, canvas)
    return patch_plan(Piece(size, target, canvas, layout, image.resample), token, layout.merge)


def _canvas(budget: _Budget, size: Size) -> Size:
    """The canvas of smart_resize in transformers' models/glm5_next."""
    canvas = budget.aligned(size)
    if budget.area(canvas) < budget.low:
        scale = math.sqrt(budget.low / budget.area(size))
        canvas = budget.aligned((math.ceil(size[0] * scale), math.ceil(size[1] * scale)))
    return _largest(budget, size) if budget.area(canvas) > budget.high else canvas


def _largest(budget: _Budget, size: Size) -> Size:
    """The canvas of the largest content of the image's shape that keeps the budget, by bisection."""
    low, high = 1, size[0]
    best = (budget.factor, budget.factor)
    while low <= high:
        height = (low + high) // 2
        width = max(1, math.floor(size[1] * height / size[0]))
        canvas = budget.aligned((height, width))
        if budget.area(canvas) <= budget.high:
            best, low = canvas, height + 1
        else:
            high = height - 1
    return best


def _content(budget: _Budget, size: Size, canvas: Size) -> Size:
    """The size of the image on its canvas: in shape, and not enlarged unless it is below the budget."""
    scale = min(canvas[0] / size[0], canvas[1] / size[1])
    if budget.area(size) >= budget.low:
        scale = min(1.0, scale)
    height, width = (
        max(1, min(limit, math.floor(side * scale))) for side, limit in zip(size, canvas, strict=True)
    )
    return height, width
