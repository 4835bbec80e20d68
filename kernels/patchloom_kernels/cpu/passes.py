"""The two resize passes in compiled code, arranged so that the compiler finds contiguous lanes.

A pixel is a 4-byte word here (red, green, blue and a byte nobody reads). The vertical pass has its lanes
along a row. The horizontal pass cannot: neighbours read from places that depend on the scale. So tiles
of ROWS rows are turned on their side first, and its lanes are ROWS pixels of one column. A weight is
used for all lanes, four taps at a time; weights are padded with zeros to whole groups of four.
int32 is spelled out at every operation because numba widens to int64, which has half the lanes.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

ROWS = 16
LANES = 4 * ROWS
TAPS = 4
BLOCK = 64

_HALF = np.int32(1 << 21)
_SHIFT = np.int32(22)
_ZERO = np.int32(0)
_FULL = np.int32(255)


@njit(nogil=True, cache=True, inline="always")
def _level(total: Any) -> Any:
    return np.uint8(max(_ZERO, min(_FULL, np.int32(total >> _SHIFT))))


@njit(nogil=True, cache=True, inline="always")
def _row(source: Any, at: int, size: int) -> Any:
    return source[at : at + size]


@njit(nogil=True, cache=True)
def blend_rows(
    source: Any, start: int, pitch: int, ring: int, first: int, weights: Any, total: Any, out: Any
) -> None:
    """One output row of the vertical pass: `out` [bytes] from the rows `first` onwards.

    Row i begins at byte `start + (i % ring) * pitch` of the flat `source`; `total` int32 [bytes] is
    scratch.
    """
    size = out.shape[0]
    groups = weights.shape[0] // TAPS
    for group in range(groups):
        tap = group * TAPS
        a = _row(source, start + (first + tap) % ring * pitch, size)
        b = _row(source, start + (first + tap + 1) % ring * pitch, size)
        c = _row(source, start + (first + tap + 2) % ring * pitch, size)
        d = _row(source, start + (first + tap + 3) % ring * pitch, size)
        wa, wb, wc, wd = weights[tap], weights[tap + 1], weights[tap + 2], weights[tap + 3]
        if groups == 1:
            for i in range(size):
                s = np.int32(_HALF + np.int32(wa * np.int32(a[i])))
                s = np.int32(s + np.int32(wb * np.int32(b[i])))
                s = np.int32(s + np.int32(wc * np.int32(c[i])))
                s = np.int32(s + np.int32(wd * np.int32(d[i])))
                out[i] = _level(s)
        elif group == 0:
            for i in range(size):
                s = np.int32(_HALF + np.int32(wa * np.int32(a[i])))
                s = np.int32(s + np.int32(wb * np.int32(b[i])))
                s = np.int32(s + np.int32(wc * np.int32(c[i])))
                total[i] = np.int32(s + np.int32(wd * np.int32(d[i])))
        elif group < groups - 1:
            for i in range(size):
                s = np.int32(total[i] + np.int32(wa * np.int32(a[i])))
                s = np.int32(s + np.int32(wb * np.int32(b[i])))
                s = np.int32(s + np.int32(wc * np.int32(c[i])))
                total[i] = np.int32(s + np.int32(wd * np.int32(d[i])))
        else:
            for i in range(size):
                s = np.int32(total[i] + np.int32(wa * np.int32(a[i])))
                s = np.int32(s + np.int32(wb * np.int32(b[i])))
                s = np.int32(s + np.int32(wc * np.int32(c[i])))
                s = np.int32(s + np.int32(wd * np.int32(d[i])))
                out[i] = _level(s)


@njit(nogil=True, cache=True, inline="always")
def _three(source: Any, at: Any) -> Any:
    """The pixel at byte `at` as a word, without its fourth byte."""
    return (
        np.uint32(source[at])
        | np.uint32(source[at + np.uint64(1)]) << np.uint32(8)
        | np.uint32(source[at + np.uint64(2)]) << np.uint32(16)
    )


@njit(nogil=True, cache=True, inline="always")
def _four(source: Any, at: Any) -> Any:
    """The four bytes from `at` on as a word: one load for the compiler."""
    return _three(source, at) | np.uint32(source[at + np.uint64(3)]) << np.uint32(24)


@njit(nogil=True, cache=True)
def turn(source: Any, start: int, pitch: int, step: int, width: int, rows: int, tile: Any) -> None:
    """Turn `rows` rows of `width` pixels on their side: `tile` [width + padding, ROWS] uint32.

    Row y begins at byte `start + y * pitch` of the flat `source`; pixels are `step` (3 or 4) bytes.
    """
    for left in range(0, width, BLOCK):
        right = min(width, left + BLOCK)
        for y in range(rows):
            at = np.uint64(start + y * pitch + left * step)
            for x in range(left, right - 1):
                tile[x, y] = _four(source, at)
                at += np.uint64(step)
            tile[right - 1, y] = _three(source, at)


@njit(nogil=True, cache=True)
def widen(source: Any, step: int, words: Any) -> None:
    """The first pixels of `source`, `step` (3 or 4) bytes each, as `words` uint32 [width]."""
    last, at = words.shape[0] - 1, np.uint64(0)
    for x in range(last):
        words[x] = _four(source, at)
        at += np.uint64(step)
    words[last] = _three(source, at)


@njit(nogil=True, cache=True)
def blend_columns(
    tile: Any, first: Any, weights: Any, total: Any, block: Any, words: Any, out: Any, out_row: int
) -> None:
    """The horizontal pass of one tile, turned back: ROWS rows of `out` [rows, width] uint32.

    `tile` is uint8 [source width + padding, LANES], `weights` [width, groups of TAPS]; `block` uint8
    [ROWS, LANES], its uint32 view `words` [ROWS, ROWS] and `total` int32 [LANES] are scratch.
    """
    width, groups = first.shape[0], weights.shape[1] // TAPS
    for left in range(0, width, ROWS):
        count = min(ROWS, width - left)
        for column in range(count):
            x = left + column
            for group in range(groups):
                tap = group * TAPS
                at = first[x] + tap
                wa, wb = weights[x, tap], weights[x, tap + 1]
                wc, wd = weights[x, tap + 2], weights[x, tap + 3]
                if groups == 1:
                    for i in range(LANES):
                        s = np.int32(_HALF + np.int32(wa * np.int32(tile[at, i])))
                        s = np.int32(s + np.int32(wb * np.int32(tile[at + 1, i])))
                        s = np.int32(s + np.int32(wc * np.int32(tile[at + 2, i])))
                        s = np.int32(s + np.int32(wd * np.int32(tile[at + 3, i])))
                        block[column, i] = _level(s)
                    continue
                if group == 0:
                    total[:] = _HALF
                for i in range(LANES):
                    s = np.int32(total[i] + np.int32(wa * np.int32(tile[at, i])))
                    s = np.int32(s + np.int32(wb * np.int32(tile[at + 1, i])))
                    s = np.int32(s + np.int32(wc * np.int32(tile[at + 2, i])))
                    total[i] = np.int32(s + np.int32(wd * np.int32(tile[at + 3, i])))
                if group == groups - 1:
                    for i in range(LANES):
                        block[column, i] = _level(total[i])
        for y in range(ROWS):
            for column in range(count):
                out[out_row + y, left + column] = words[column, y]


def grouped(weights: NDArray[np.int32]) -> NDArray[np.int32]:
    """Weights padded with zeros to whole groups of taps."""
    missing = -weights.shape[1] % TAPS
    return np.ascontiguousarray(np.pad(weights, ((0, 0), (0, missing))))
