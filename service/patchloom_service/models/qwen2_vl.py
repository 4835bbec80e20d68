"""The Qwen-VL line and what shares its images: smart_resize, merged patches, one run per image."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from patchloom_kernels.layout import PatchLayout, Piece

from patchloom_service.models.base import (
    Checkpoint,
    MediaPlan,
    ModelSpec,
    Size,
)
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
from patchloom_service.models.tokens import image_token_types, known_tokens, require_token
from patchloom_service.types import ImageOptions, Modality

ARCHITECTURES = {
    "Qwen2VLForConditionalGeneration": "qwen2_vl",
    "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl",
    "Qwen3VLForConditionalGeneration": "qwen3_vl",
    "Qwen3VLMoeForConditionalGeneration": "qwen3_vl",
    "Qwen3_5ForConditionalGeneration": "qwen3_5",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5",
    "Qwen3OmniMoeForConditionalGeneration": "qwen3_omni",
    "InternS1ProForConditionalGeneration": "intern_s1_pro",
}
_MODEL_TYPES = {
    "qwen2_vl": "qwen2_vl",
    "qwen2_5_vl": "qwen2_5_vl",
    "qwen3_vl": "qwen3_vl",
    "qwen3_vl_moe": "qwen3_vl",
    "qwen3_5": "qwen3_5",
    "qwen3_5_moe": "qwen3_5",
    "qwen3_omni_moe": "qwen3_omni",
}
_DEFAULTS = {
    "resample": 3,
    "rescale_factor": 1 / 255,
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
}
_KEYS = ("patch_size", "temporal_patch_size", "merge_size", "size", "min_pixels", "max_pixels")
IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
STRUCTURAL = ("<|vision_start|>", "<|vision_end|>", VIDEO)


def match(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's config is of this line."""
    return _family(config) is not None


def build(checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a checkpoint; ConfigRefused where its settings cannot be reproduced."""
    family = _family(checkpoint.config) or "qwen2_vl"
    if family == "intern_s1_pro":
        _require_qwen_images(checkpoint)
    image = read_image_config(checkpoint.image_processor, _DEFAULTS, _KEYS)
    bounds = _bounds(image.extra)
    token = require_token(checkpoint, IMAGE, "image_token_id")
    patch, merge = image.extra["patch_size"], image.extra["merge_size"]
    layout = PatchLayout((patch, patch), merge=merge, temporal=image.extra["temporal_patch_size"])
    return ModelSpec(
        family=family,
        architectures=checkpoint.architectures,
        placeholders={Modality.IMAGE: IMAGE},
        structural=known_tokens(checkpoint, STRUCTURAL),
        plan_image=partial(_plan, image, layout, bounds, token),
        layout=partial(rows_with_grids, flat_row),
        table=image.table,
        token_types=None if family == "qwen3_omni" else image_token_types,
        positions=partial(mrope_positions, merge),
        settings=image.settings(),
        oracle="transformers Qwen2VLImageProcessor (torchvision backend) and Qwen2VLImageProcessorPil",
    )


def _family(config: Mapping[str, Any]) -> str | None:
    for name in config.get("architectures") or ():
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    return _MODEL_TYPES.get(str(config.get("model_type"))) if not config.get("architectures") else None


def _require_qwen_images(checkpoint: Checkpoint) -> None:
    """Intern-S1-Pro is remote code; its images are known where it names the image processor of Qwen-VL."""
    kind = str(checkpoint.image_processor.get("image_processor_type"))
    if kind.removesuffix("Fast") != "Qwen2VLImageProcessor":
        raise ConfigRefused(f"image_processor_type={kind} is not supported; use Qwen2VLImageProcessor")


def _bounds(extra: Mapping[str, Any]) -> tuple[int, int]:
    size = dict(extra["size"])
    low = extra.get("min_pixels", size.get("shortest_edge"))
    high = extra.get("max_pixels", size.get("longest_edge"))
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
    low, high = pixel_bounds(bounds, options)
    target = smart_resize(size, layout.patch[0] * layout.merge, low, high)
    return patch_plan(Piece(size, target, target, layout, image.resample), token, layout.merge)
