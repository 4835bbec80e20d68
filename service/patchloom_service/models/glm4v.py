"""GLM-4.1V, 4.5V, 4.6V and GLM-OCR: smart_resize that counts frames, merged patches, one run per image."""

from collections.abc import Mapping
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
from patchloom_service.models.mrope import mrope_positions
from patchloom_service.models.patch_plan import patch_plan
from patchloom_service.models.rows import flat_row, rows_with_grids
from patchloom_service.models.size_options import pixel_bounds
from patchloom_service.models.smart_resize import smart_resize
from patchloom_service.models.tokens import image_token_types, known_tokens, named_token, require_token
from patchloom_service.types import ImageOptions, Modality

ARCHITECTURES = {
    "Glm4vForConditionalGeneration": "glm4v",
    "Glm4vMoeForConditionalGeneration": "glm4v_moe",
    "Glm46VForConditionalGeneration": "glm46v",
    "GlmOcrForConditionalGeneration": "glm_ocr",
}
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
    "size": {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 15000},
}
_KEYS = ("patch_size", "temporal_patch_size", "merge_size", "size")


def match(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's config is of this line."""
    return architecture_of(config, ARCHITECTURES) is not None


def build(checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a checkpoint; ConfigRefused where its settings cannot be reproduced."""
    image = read_image_config(checkpoint.image_processor, _DEFAULTS, _KEYS)
    patch, merge = image.extra["patch_size"], image.extra["merge_size"]
    layout = PatchLayout((patch, patch), merge=merge, temporal=image.extra["temporal_patch_size"])
    placeholder = named_token(checkpoint, "image_token", "<|image|>")
    token = require_token(checkpoint, placeholder, "image_token_id")
    return ModelSpec(
        family=ARCHITECTURES[architecture_of(checkpoint.config, ARCHITECTURES) or ""],
        architectures=checkpoint.architectures,
        placeholders={Modality.IMAGE: placeholder},
        structural=known_tokens(checkpoint, STRUCTURAL),
        plan_image=partial(_plan, image, layout, _bounds(image.extra["size"]), token),
        layout=partial(rows_with_grids, flat_row),
        table=image.table,
        token_types=image_token_types,
        positions=partial(mrope_positions, merge),
        settings=image.settings(),
        oracle="transformers Glm4vProcessor and Glm46VProcessor (torchvision backend), and their PIL classes",
    )


def _bounds(size: Mapping[str, Any]) -> tuple[int, int]:
    low, high = size.get("shortest_edge"), size.get("longest_edge")
    if not low or not high or low > high:
        raise ConfigRefused(f"size needs 0 < shortest_edge <= longest_edge, got {low} and {high}")
    return int(low), int(high)


def _plan(
    image: ImageConfig,
    layout: PatchLayout,
    bounds: tuple[int, int],
    token: int,
    size: Size,
    options: ImageOptions,
    item_count: int,
) -> MediaPlan:
    """The bounds count the pixels of every frame of a patch, in `options` as in `size` of the checkpoint."""
    factor = layout.patch[0] * layout.merge
    low, high = pixel_bounds(bounds, options)
    target = smart_resize(_enlarged(size, factor), factor, low, high, frames=layout.temporal)
    return patch_plan(Piece(size, target, target, layout, image.resample), token, layout.merge)


def _enlarged(size: Size, factor: int) -> Size:
    """The size whose sides reach `factor`, as transformers' smart_resize (models/glm4v) starts from."""
    if min(size) >= factor:
        return size
    scale = max(factor / size[0], factor / size[1])
    return int(size[0] * scale), int(size[1] * scale)
