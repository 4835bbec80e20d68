"""Reads an image processor's settings from a checkpoint: honoured or refused, never ignored.

A key that is absent takes the default of the transformers class that the checkpoint names, as
transformers itself does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from patchloom_kernels.layout import Parity, Resample
from patchloom_kernels.normalize import NormalizeFormula, NormalizeTable

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)

_RESAMPLE = {1: Resample.LANCZOS, 2: Resample.BILINEAR, 3: Resample.BICUBIC}
_COMMON = frozenset(
    [
        "do_resize",
        "resample",
        "do_rescale",
        "rescale_factor",
        "do_normalize",
        "image_mean",
        "image_std",
        "do_convert_rgb",
        "size",
    ]
)
# Keys that change no pixel of an image given as encoded bytes.
_INERT = frozenset(
    [
        "image_processor_type",
        "feature_extractor_type",
        "processor_class",
        "auto_map",
        "data_format",
        "input_data_format",
        "device",
        "return_tensors",
        "disable_grouping",
        "default_to_square",
        "use_fast",
        "backend",
        "image_seq_length",
        "image_seq_len",
        "transformers_version",
        "_processor_class",
        "_valid_processor_keys",
    ]
)
# Keys that change pixels and that no family here implements: allowed only when off.
_OFF = frozenset(["do_center_crop", "crop_size", "do_pad", "pad_size"])


class ConfigRefused(ValueError):
    """A checkpoint whose settings this service cannot reproduce exactly."""


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The settings that every image processor has; `extra` holds the family's own keys."""

    resample: Resample
    rescale_factor: float | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    extra: Mapping[str, Any]

    def table(self, parity: Parity, padding: float = 0.0) -> NormalizeTable:
        """The normalise table: transformers' torchvision formula in aten_u8, its PIL formula otherwise."""
        torchvision = parity is Parity.ATEN_U8
        formula = NormalizeFormula.HF_TORCHVISION if torchvision else NormalizeFormula.HF_PIL
        return NormalizeTable.build(formula, self.mean, self.std, self.rescale_factor, padding)

    def settings(self) -> dict[str, Any]:
        """Everything that changes a pixel, for the fingerprint."""
        return {
            "resample": self.resample.value,
            "rescale_factor": self.rescale_factor,
            "mean": self.mean,
            "std": self.std,
            **self.extra,
        }


def read_image_config(
    values: Mapping[str, Any],
    defaults: Mapping[str, Any],
    family_keys: Sequence[str],
    inert: Sequence[str] = (),
) -> ImageConfig:
    """The settings of `values` over `defaults`; a key that is not known is refused by name.

    `family_keys` are read into `extra`; `inert` are further keys that change no pixel of an image.
    """
    known = _COMMON | _INERT | frozenset(family_keys) | frozenset(inert)
    given = {key: value for key, value in values.items() if value is not None}
    for key, value in given.items():
        if key in _OFF and key not in family_keys:
            if value not in (False, {}, []) and not (key == "crop_size" and not given.get("do_center_crop")):
                raise ConfigRefused(f"{key}={value!r} is not supported; it must be off")
        elif key not in known:
            raise ConfigRefused(
                f"unknown image processor setting {key}={value!r}; known are {', '.join(sorted(known))}"
            )
    merged = {**defaults, **given}
    _require_on(merged, "do_resize")
    _require_on(merged, "do_convert_rgb")
    return ImageConfig(
        resample=_resample(merged["resample"]),
        rescale_factor=float(merged["rescale_factor"]) if merged.get("do_rescale", True) else None,
        mean=_triple(merged, "image_mean"),
        std=_triple(merged, "image_std"),
        extra={key: merged[key] for key in family_keys if key in merged},
    )


def _require_on(merged: Mapping[str, Any], key: str) -> None:
    if not merged.get(key, True):
        raise ConfigRefused(f"{key}=false is not supported; it must be on")


def _resample(value: int) -> Resample:
    if value not in _RESAMPLE:
        raise ConfigRefused(
            f"resample={value!r} is not supported; use 1 (Lanczos), 2 (bilinear) or 3 (bicubic)"
        )
    return _RESAMPLE[value]


def _triple(merged: Mapping[str, Any], key: str) -> tuple[float, ...] | None:
    if not merged.get("do_normalize", True):
        return None
    value = merged[key]
    values = tuple(float(v) for v in value) if isinstance(value, list | tuple) else (float(value),) * 3
    if len(values) != 3:
        raise ConfigRefused(f"{key} needs 3 values, got {len(values)}")
    return values
