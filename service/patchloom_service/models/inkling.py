"""Inkling: optional upscaling, one token per patch, one patch column more than needed, padding below black.

Images follow transformers' models/inkling. Audio is planned here, its features are in inkling_audio.py.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from patchloom_kernels.layout import PAD_ENTRY, Parity, PatchLayout, Piece
from patchloom_kernels.normalize import NormalizeTable

from patchloom_service.errors import InvalidAudio, InvalidMessage, UnsupportedContent
from patchloom_service.media.resample import check_rate, resampled_length
from patchloom_service.models.base import (
    AudioInfo,
    Checkpoint,
    Grid,
    GridKind,
    MediaPlan,
    ModelSpec,
    RunToken,
    Size,
    TensorLayout,
    TensorPiece,
)
from patchloom_service.models.image_config import (
    CLIP_MEAN,
    CLIP_STD,
    ConfigRefused,
    ImageConfig,
    read_image_config,
)
from patchloom_service.models.inkling_audio import (
    DmelSettings,
    features_of,
    missing_settings,
    read_settings,
)
from patchloom_service.models.rows import concatenated_rows
from patchloom_service.types import ImageOptions, Modality

ARCHITECTURE = "InklingForConditionalGeneration"
TEMPORAL = 2
STRUCTURAL = ("<|content_image|>", "<|content_audio_input|>", "<|audio_end|>")

_DEFAULTS = {
    "resample": 1,
    "rescale_factor": 1 / 255,
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
    "size": {"height": 40, "width": 40},
}
_FRACTION, _CAP = "rescale_image_frac", "rescale_image_max_upscaled_long_edge"
_KEYS = ("size", _FRACTION, _CAP)


@dataclass(frozen=True, slots=True)
class _Rescale:
    """The long edge times `fraction`, growing to `cap` at most; None means no rescaling, no cap."""

    fraction: float | None
    cap: int | None


def match(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's config is of this family."""
    architectures = config.get("architectures")
    if architectures:
        return ARCHITECTURE in architectures
    return config.get("model_type") == "inkling_mm_model"


def build(checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a checkpoint; ConfigRefused where its settings cannot be reproduced."""
    image = read_image_config(checkpoint.image_processor, _DEFAULTS, _KEYS)
    if image.mean is None or image.std is None or image.rescale_factor is None:
        raise ConfigRefused("Inkling needs do_rescale and do_normalize on")
    patch = _patch(checkpoint, image)
    rescale = _rescale(checkpoint.image_processor)
    missing = missing_settings(checkpoint.processor)
    audio = None if missing else read_settings(checkpoint.processor, checkpoint.config)
    picture = _token(checkpoint, "image", "<|unused_200054|>")
    clip = _token(checkpoint, "audio", "<|unused_200053|>")
    layout = PatchLayout((patch, patch), temporal=TEMPORAL, columns="tyxc")
    return ModelSpec(
        family="inkling",
        architectures=checkpoint.architectures,
        placeholders={Modality.IMAGE: picture[0], Modality.AUDIO: clip[0]},
        structural=STRUCTURAL,
        plan_image=partial(_plan_image, image, layout, rescale, picture[1]),
        plan_audio=partial(_plan_audio, audio, clip[1]) if audio else partial(_refuse_audio, missing),
        audio=features_of(audio) if audio else None,
        layout=_layout,
        table=partial(_table, image),
        settings={
            **image.settings(),
            "patch_size": patch,
            "temporal_patch_size": TEMPORAL,
            _FRACTION: rescale.fraction,
            _CAP: rescale.cap,
            "audio": audio.settings() if audio else None,
        },
        renderer="inkling",
        oracle="transformers InklingImageProcessor (torchvision backend) and InklingFeatureExtractor",
    )


def _patch(checkpoint: Checkpoint, image: ImageConfig) -> int:
    size = image.extra["size"]
    vision = checkpoint.config.get("vision_config") or {}
    patch = int(size.get("height", 0))
    found = {
        "size.width": size.get("width"),
        "vision_config.patch_size": vision.get("patch_size", patch),
    }
    for name, value in found.items():
        if value != patch or patch < 1:
            raise ConfigRefused(f"size.height is {patch}, {name} is {value}; they must be equal")
    if vision.get("temporal_patch_size", TEMPORAL) != TEMPORAL:
        raise ConfigRefused(
            f"temporal_patch_size={vision['temporal_patch_size']} is not supported; it must be {TEMPORAL}"
        )
    return patch


def _rescale(values: Mapping[str, Any]) -> _Rescale:
    fraction, cap = values.get(_FRACTION), values.get(_CAP, 2048)
    if fraction is not None and not (math.isfinite(fraction) and fraction > 0):
        raise ConfigRefused(f"{_FRACTION}={fraction} is not supported; it must be null or above 0")
    if cap is not None and cap < 1:
        raise ConfigRefused(f"{_CAP}={cap} is not supported; it must be null or at least 1")
    return _Rescale(fraction, cap)


def _token(checkpoint: Checkpoint, modality: str, default: str) -> tuple[str, int]:
    """The spelling and id of a modality's placeholder."""
    spelling = checkpoint.processor.get(f"{modality}_token") or default
    id = checkpoint.token_id(spelling)
    declared = checkpoint.config.get(f"{modality}_token_id", id)
    if id is None or id != declared:
        raise ConfigRefused(f"the tokenizer gives {spelling} the id {id}, config.json says {declared}")
    return spelling, id


def _resized(rescale: _Rescale, size: Size) -> Size:
    """The size after InklingImageProcessor's rescaling: float64, sides rounded half up, at least 1."""
    if rescale.fraction is None:
        return size
    long = max(size)
    target = long * rescale.fraction
    if rescale.cap is not None:
        target = min(target, max(rescale.cap, long))
    ratio = target / long
    return (
        max(1, math.floor(size[0] * ratio + 0.5)),
        max(1, math.floor(size[1] * ratio + 0.5)),
    )


def _plan_image(
    image: ImageConfig,
    layout: PatchLayout,
    rescale: _Rescale,
    token: int,
    size: Size,
    options: ImageOptions,
    item_count: int,
) -> MediaPlan:
    if options.min_pixels is not None or options.max_pixels is not None:
        raise InvalidMessage(
            "min_pixels and max_pixels are no options of Inkling; leave them out, its size rule is fixed"
        )
    target = _resized(rescale, size)
    patch = layout.patch[0]
    down, across = math.ceil(target[0] / patch), target[1] // patch + 1
    canvas = (down * patch, across * patch)
    piece = Piece(size, target, canvas, layout, image.resample, pad=(PAD_ENTRY,) * 3)
    return MediaPlan(
        modality=Modality.IMAGE,
        grid=Grid(GridKind.PATCHES, (1, down, across)),
        token_count=down * across,
        run=(RunToken(token, down * across),),
        size=size,
        resized=target,
        pieces=(TensorPiece("pixel_values", piece),),
    )


def _plan_audio(audio: DmelSettings, token: int, info: AudioInfo) -> MediaPlan:
    if info.frames < 1:
        raise InvalidAudio("the clip has no samples; at least 1 is needed")
    check_rate(info.sample_rate, audio.sample_rate)
    count = -(-resampled_length(info.frames, info.sample_rate, audio.sample_rate) // audio.hop)
    return MediaPlan(
        modality=Modality.AUDIO,
        grid=Grid(GridKind.FRAMES, (count,)),
        token_count=count,
        run=(RunToken(token, count),),
    )


def _refuse_audio(missing: Sequence[str], info: AudioInfo) -> MediaPlan:
    raise UnsupportedContent(
        f"processor_config.json lacks {', '.join(missing)}, which audio needs; send text and images"
    )


def _layout(plans: Sequence[MediaPlan]) -> TensorLayout:
    """pixel_values [patches of all images, T, patch, patch, 3]; an audio item has no slice of it."""
    layout = concatenated_rows(plans, "pixel_values", _row, {})
    slices = (own if plan.pieces else () for plan, own in zip(plans, layout.slices, strict=True))
    return replace(layout, slices=tuple(slices))


def _row(layout: PatchLayout) -> tuple[int, ...]:
    return (layout.temporal, *layout.patch, 3)


def _table(image: ImageConfig, parity: Parity) -> NormalizeTable:
    """The image's table with padding as a pixel of level -1 becomes by the same formula."""
    table = image.table(parity)
    values = table.values.copy()
    values[:, PAD_ENTRY] = _padding(image, parity)
    return replace(table, values=values)


def _padding(image: ImageConfig, parity: Parity) -> npt.NDArray[np.float32]:
    assert image.mean is not None
    assert image.std is not None
    assert image.rescale_factor is not None
    mean, std = np.array(image.mean, np.float32), np.array(image.std, np.float32)
    if parity is Parity.ATEN_U8:
        scale = np.float32(1.0 / image.rescale_factor)
        return (np.float32(-1.0) - mean * scale) / (std * scale)
    return (np.float32(-1.0 * image.rescale_factor) - mean) / std
