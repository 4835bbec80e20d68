"""Normalisation as a table: a float32 entry per channel and level, built by a declared formula.

A table has 257 entries per channel: the levels 0..255 and, at PAD_ENTRY, the value of padding that
is added after normalisation. A kernel that looks up does no float arithmetic, so it cannot round
otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patchloom_kernels.layout import PAD_ENTRY

ENTRIES = PAD_ENTRY + 1


class NormalizeFormula(StrEnum):
    """Whose rounding the entries equal (transformers' image_processing_backends.py and Llama 4)."""

    HF_TORCHVISION = "hf_torchvision"
    """Rescale fused into the constants: (x - m * (1 / r)) / (s * (1 / r)), all float32."""

    HF_PIL = "hf_pil"
    """Rescale in float64, rounded to float32; then (x - m) / s in float32."""

    HF_BFLOAT16 = "hf_bfloat16"
    """x * r, - m, / s, each rounded to bfloat16 (Llama 4)."""


class Dtype(StrEnum):
    """Element type of patches, by the name that the wire uses."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    UINT8 = "uint8"

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy type of a buffer; bfloat16 has none and is held as its uint16 bits."""
        return np.dtype("uint16" if self is Dtype.BFLOAT16 else self.value)


@dataclass(frozen=True, slots=True, eq=False)
class NormalizeTable:
    """float32 [channels, 257], read-only; the bits of another dtype come from `to`."""

    values: NDArray[np.float32]
    quotient: tuple[float, NDArray[np.float32], NDArray[np.float32]] | None = None
    """factor and (shift, scale) [channels] where entries are (level * factor - shift) / scale, float32."""

    def __post_init__(self) -> None:
        if self.values.dtype != np.float32 or self.values.shape[1:] != (ENTRIES,):
            raise ValueError(
                f"a table is float32 [channels, {ENTRIES}], got {self.values.dtype} {list(self.values.shape)}"
            )
        self.values.setflags(write=False)

    @classmethod
    def build(
        cls,
        formula: NormalizeFormula,
        mean: Sequence[float] | None,
        std: Sequence[float] | None,
        rescale_factor: float | None = 1 / 255,
        padding: float = 0.0,
        channels: int = 3,
    ) -> "NormalizeTable":
        """The table of an image processor's settings.

        `mean` and `std` are None where do_normalize is off, `rescale_factor` where do_rescale is.
        HF_BFLOAT16 holds for both on; Llama 4 itself leaves bfloat16 when rescaling alone.
        """
        if (mean is None) != (std is None):
            raise ValueError("mean and std are given together or not at all")
        if std is not None and 0.0 in std:
            raise ValueError("std must not be 0")
        settings = [None if values is None else tuple(values) for values in (mean, std)]
        # a plain string and -0.0 equal what they are not, to a cache
        formula, padding = NormalizeFormula(formula), padding + 0.0
        return _build(formula, settings[0], settings[1], rescale_factor, padding, channels)

    def to(self, dtype: Dtype) -> NDArray[Any]:
        """The entries rounded to nearest even in `dtype`, as `dtype.numpy` [channels, 257]."""
        match dtype:
            case Dtype.FLOAT32:
                return self.values
            case Dtype.FLOAT16:
                return self.values.astype(np.float16)
            case Dtype.BFLOAT16:
                return bfloat16_bits(self.values)
            case Dtype.UINT8:
                raise ValueError("a uint8 output holds levels and has no table")


@lru_cache(maxsize=64)
def _build(
    formula: NormalizeFormula,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
    factor: float | None,
    padding: float,
    channels: int,
) -> NormalizeTable:
    levels = np.tile(np.arange(256, dtype=np.float32), (channels, 1))
    values = _compute(formula, levels, _column(mean, channels), _column(std, channels), factor)
    last = np.full((channels, 1), padding, np.float32)
    entries = np.ascontiguousarray(np.concatenate([values, last], axis=1), np.float32)
    return NormalizeTable(entries, _quotient(formula, mean, std, factor))


def bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of finite float32 values rounded to nearest even in bfloat16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _quotient(
    formula: NormalizeFormula,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    factor: float | None,
) -> tuple[float, NDArray[np.float32], NDArray[np.float32]] | None:
    """The constants of a formula in float32, where it has them."""
    if mean is None or std is None or formula is NormalizeFormula.HF_BFLOAT16:
        return None
    shift, scale = np.array(mean, np.float32), np.array(std, np.float32)
    if formula is NormalizeFormula.HF_PIL:
        return 1.0 if factor is None else factor, shift, scale
    fused = _fused_scale(factor)
    return 1.0, shift * fused, scale * fused


def _column(values: Sequence[float] | None, channels: int) -> NDArray[np.float32] | None:
    if values is None:
        return None
    if len(values) != channels:
        raise ValueError(f"mean and std need {channels} values, got {len(values)}")
    return np.array(values, np.float64).astype(np.float32)[:, None]


def _compute(
    formula: NormalizeFormula,
    levels: NDArray[np.float32],
    mean: NDArray[np.float32] | None,
    std: NDArray[np.float32] | None,
    factor: float | None,
) -> NDArray[np.float32]:
    if mean is None or std is None:
        return _rescale(formula, levels, factor)
    match formula:
        case NormalizeFormula.HF_TORCHVISION:
            scale = _fused_scale(factor)
            return np.asarray((levels - mean * scale) / (std * scale), np.float32)
        case NormalizeFormula.HF_PIL:
            rescaled = _rescale(formula, levels, factor)
            return np.asarray((rescaled - mean) / std, np.float32)
        case NormalizeFormula.HF_BFLOAT16:
            scaled = _to_bfloat16(levels * np.float32(1.0 if factor is None else factor))
            return _to_bfloat16(_to_bfloat16(scaled - _to_bfloat16(mean)) / _to_bfloat16(std))


def _fused_scale(factor: float | None) -> np.float32:
    return np.float32(1.0 if factor is None else 1.0 / factor)


def _rescale(
    formula: NormalizeFormula, levels: NDArray[np.float32], factor: float | None
) -> NDArray[np.float32]:
    if factor is None:
        return levels
    if formula is NormalizeFormula.HF_PIL:
        return (levels.astype(np.float64) * factor).astype(np.float32)
    return levels * np.float32(factor)


def _to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return (bfloat16_bits(values).astype(np.uint32) << 16).view(np.float32)
