"""Resampling tables in fixed point: which source pixels make an output pixel, with what weights.

A separable uint8 resize is two passes of the same rule, each with its own axis table:
`clip8((2 ** 21 + sum(weight * level)) >> 22)` in int32. The tables are those of Pillow
(src/libImaging/Resample.c) and of torch's native uint8 antialias kernel
(aten/src/ATen/native/cpu/UpSampleKernelAVXAntialias.h). Torch rounds its weights to int16 with a
shift of its own; they are kept as multiples of a power of two here, so that all shifts are 22.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from patchloom_kernels.layout import Parity, Resample

SHIFT = 22
"""Fraction bits of a weight (32 bits less 8 of the level and 2 of headroom)."""

_SUPPORT = {Resample.BILINEAR: 1.0, Resample.BICUBIC: 2.0, Resample.LANCZOS: 3.0}

_Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class AxisTable:
    """The weights of one axis; arrays are read-only and shared.

    Output i is made of `bounds[i, 1]` source pixels from `bounds[i, 0]` on with `weights[i]`;
    weights behind the count are 0. Both ends are monotone in i. Zero weights at the
    ends are cut off.
    """

    bounds: NDArray[np.int32]  # [out, 2]
    weights: NDArray[np.int32]  # [out, taps], in units of 2 ** -22
    identity: bool = False
    """Whether the pass copies: every output is its own source."""

    @property
    def taps(self) -> int:
        """The largest count."""
        return int(self.weights.shape[1])


def vertical_first(source: tuple[int, int], target: tuple[int, int], parity: Parity) -> bool:
    """Whether the pass along the columns runs before the one along the rows; (height, width).

    The levels between the passes are rounded, so the order shows. Pillow 12.3 turns it for extreme
    heights (Image.py), Pillow 13.0 where that shrinks more (ImagingResampleInner), torch never.
    """
    height, width = source
    drop_rows, drop_columns = height - target[0], width - target[1]
    match parity:
        case Parity.ATEN_U8:
            return False
        case Parity.PILLOW12:
            return height > 100 * width and drop_rows > 0
        case Parity.PILLOW13:
            return drop_rows > 0 and drop_rows > 2 * drop_columns


@lru_cache(maxsize=256)
def axis_table(in_size: int, out_size: int, resample: Resample, parity: Parity) -> AxisTable:
    """The table from `in_size` to `out_size` pixels; an unchanged size copies, as there."""
    if min(in_size, out_size) < 1:
        raise ValueError(f"sizes must be at least 1, got {in_size} -> {out_size}")
    if in_size == out_size:
        return _identity(in_size)
    first, count, weights = _real_weights(in_size, out_size, resample)
    bits = _fraction_bits(weights, parity)
    fixed = _round_away(weights * float(1 << bits)) << (SHIFT - bits)
    return _frozen(*_trim(first, count, fixed))


def _identity(size: int) -> AxisTable:
    first = np.arange(size)
    ones = np.full((size, 1), 1 << SHIFT, np.int64)
    return _frozen(first, np.ones_like(first), ones, identity=True)


def _real_weights(
    in_size: int, out_size: int, resample: Resample
) -> tuple[NDArray[np.int64], NDArray[np.int64], _Float64]:
    """First index, count and normalised float64 weights, summed in the order of the C loops."""
    scale = in_size / out_size
    stretch = max(scale, 1.0)
    support = _SUPPORT[resample] * stretch
    center = (np.arange(out_size) + 0.5) * scale
    first = np.maximum((center - support + 0.5).astype(np.int64), 0)
    count = np.minimum((center + support + 0.5).astype(np.int64), in_size) - first
    taps = np.arange(count.max())
    position = (taps[None, :] + first[:, None] - center[:, None] + 0.5) * (1.0 / stretch)
    weights = np.where(taps[None, :] < count[:, None], _FILTERS[resample](position), 0.0)
    total = np.zeros(out_size)
    for tap in taps:
        total += weights[:, tap]
    return first, count, weights / np.where(total == 0.0, 1.0, total)[:, None]


def _bilinear(x: _Float64) -> _Float64:
    return np.maximum(1.0 - np.abs(x), 0.0)


def _bicubic(x: _Float64) -> _Float64:
    a = -0.5
    x = np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def _lanczos(x: _Float64) -> _Float64:
    inside = (x >= -3.0) & (x < 3.0)
    return np.where(inside, _sinc(x) * _sinc(x / 3.0), 0.0)


def _sinc(x: _Float64) -> _Float64:
    angle = x * math.pi
    # libm's sine, as the C code calls it; numpy's vector sine may differ in the last bit
    sine = np.fromiter(map(math.sin, angle.flat), np.float64, angle.size).reshape(angle.shape)
    return np.where(x == 0.0, 1.0, sine / np.where(x == 0.0, 1.0, angle))


_FILTERS: dict[Resample, Callable[[_Float64], _Float64]] = {
    Resample.BILINEAR: _bilinear,
    Resample.BICUBIC: _bicubic,
    Resample.LANCZOS: _lanczos,
}


def _fraction_bits(weights: _Float64, parity: Parity) -> int:
    """Pillow's constant, or the most that keep every weight of the axis within int16."""
    if parity is not Parity.ATEN_U8:
        return SHIFT
    largest, bits = float(weights.max()), 0
    while bits < SHIFT and int(0.5 + largest * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    return bits


def _round_away(values: _Float64) -> NDArray[np.int64]:
    return np.trunc(values + np.copysign(0.5, values)).astype(np.int64)


def _trim(
    first: NDArray[np.int64], count: NDArray[np.int64], weights: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Cut zero weights off both ends where that keeps the bounds monotone."""
    taps = weights.shape[1]
    used = weights != 0
    lead = np.where(used.any(1), used.argmax(1), 0)
    tail = np.where(used.any(1), used[:, ::-1].argmax(1), taps - 1)
    begin, end = first + lead, first + np.minimum(count, taps - tail)
    begin = np.minimum.accumulate(begin[::-1])[::-1]
    end = np.maximum.accumulate(end)
    columns = (begin - first)[:, None] + np.arange((end - begin).max())[None, :]
    inside = (columns >= 0) & (columns < taps)
    moved = np.take_along_axis(weights, np.clip(columns, 0, taps - 1), axis=1)
    return begin, end - begin, np.where(inside, moved, 0)


def _frozen(
    first: NDArray[np.int64],
    count: NDArray[np.int64],
    weights: NDArray[np.int64],
    identity: bool = False,
) -> AxisTable:
    bounds = np.stack([first, count], axis=1).astype(np.int32)
    fixed = np.ascontiguousarray(weights, np.int32)
    bounds.setflags(write=False)
    fixed.setflags(write=False)
    return AxisTable(bounds, fixed, identity)
