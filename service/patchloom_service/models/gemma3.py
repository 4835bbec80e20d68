"""Gemma 3: every image squeezed into one square, a fixed run with newlines around it."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from patchloom_kernels.layout import PatchLayout, Piece

from patchloom_service.models.base import (
    Checkpoint,
    Grid,
    GridKind,
    MediaPlan,
    ModelSpec,
    Run,
    RunToken,
    Size,
    TensorLayout,
    TensorPiece,
)
from patchloom_service.models.families import architecture_of
from patchloom_service.models.image_config import HALF, ConfigRefused, ImageConfig, read_image_config
from patchloom_service.models.rows import concatenated_rows, picture_row
from patchloom_service.models.size_options import refuse_pixel_bounds
from patchloom_service.models.tokens import image_token_types, named_token, require_token
from patchloom_service.types import ImageOptions, Modality

ARCHITECTURES = {"Gemma3ForConditionalGeneration": "gemma3"}
_DEFAULTS = {
    "resample": 2,
    "rescale_factor": 1 / 255,
    "image_mean": HALF,
    "image_std": HALF,
    "size": {"height": 224, "width": 224},
}
# Gemma3Processor overrides these with do_pan_and_scan off.
_INERT = (
    "do_pan_and_scan",
    "pan_and_scan_min_crop_size",
    "pan_and_scan_max_num_crops",
    "pan_and_scan_min_ratio_to_activate",
)


def match(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's config is of this family."""
    return architecture_of(config, ARCHITECTURES) is not None


def build(checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a checkpoint; ConfigRefused where its settings cannot be reproduced."""
    image = read_image_config(checkpoint.image_processor, _DEFAULTS, ("size",), inert=_INERT)
    start = named_token(checkpoint, "boi_token", "<start_of_image>")
    end = named_token(checkpoint, "eoi_token", "<end_of_image>")
    soft = named_token(checkpoint, "image_token", "<image_soft_token>")
    count = checkpoint.processor.get("image_seq_length", 256)
    run = (
        "\n\n",
        RunToken(require_token(checkpoint, start, "boi_token_index"), placeholder=False),
        RunToken(require_token(checkpoint, soft, "image_token_index", "image_token_id"), count),
        RunToken(require_token(checkpoint, end, "eoi_token_index"), placeholder=False),
        "\n\n",
    )
    return ModelSpec(
        family="gemma3",
        architectures=checkpoint.architectures,
        placeholders={Modality.IMAGE: start},
        structural=(soft, end),
        plan_image=partial(_plan, image, _square(image.extra["size"]), run, count),
        layout=_layout,
        table=image.table,
        token_types_name="token_type_ids",
        token_types=image_token_types,
        settings={**image.settings(), "image_seq_length": count},
        oracle="transformers Gemma3Processor (torchvision backend) and Gemma3ImageProcessorPil",
    )


def _square(size: Mapping[str, Any]) -> Size:
    height, width = size.get("height"), size.get("width")
    if not height or not width:
        raise ConfigRefused(f"size needs height and width, got {dict(size)}")
    return height, width


def _plan(
    image: ImageConfig,
    target: Size,
    run: Run,
    count: int,
    size: Size,
    options: ImageOptions,
    item_count: int,
) -> MediaPlan:
    refuse_pixel_bounds("Gemma 3", options)
    piece = Piece(size, target, target, PatchLayout(target), image.resample)
    return MediaPlan(
        modality=Modality.IMAGE,
        grid=Grid(GridKind.TILES, (1, 1)),
        token_count=count,
        run=run,
        size=size,
        resized=target,
        pieces=(TensorPiece("pixel_values", piece),),
    )


def _layout(plans: Sequence[MediaPlan]) -> TensorLayout:
    return concatenated_rows(plans, "pixel_values", picture_row, {})
