"""Normalise and cut in compiled code: finished rows of pixels become runs of patch values."""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

LOOKUP, DIVIDE, MULTIPLY = 0, 1, 2
"""How a level becomes a value: by table, as (x - a) / b, or as x * a + b; see `formula_for`."""

EIGHT = 8


class Values(NamedTuple):
    """What a level becomes; `kind` says how, and the table holds for all kinds."""

    kind: int
    a: Any  # float32 [3]
    b: Any  # float32 [3]
    entries: Any  # [3, 257] of the output type


@njit(nogil=True, cache=True)
def normalize_row(words: Any, values: Values, band: Any, pitch: int, at: int) -> None:
    """Lay the values of one row of pixels into a flat band [3, rows, columns].

    `words` is uint32 [width], red in the low byte; the row of channel c begins at `at + c * pitch`.
    """
    for channel in range(3):
        begin = at + channel * pitch
        row = band[begin : begin + words.shape[0]]
        if values.kind == LOOKUP:
            _look_up(words, np.uint32(8 * channel), values.entries[channel], row)
        else:
            a, b = values.a[channel], values.b[channel]
            _compute(words, np.uint32(8 * channel), values.kind, a, b, row)


@njit(nogil=True, cache=True)
def _look_up(words: Any, shift: Any, entries: Any, row: Any) -> None:
    for x in range(words.shape[0]):
        row[x] = entries[np.uint32(words[x] >> shift) & np.uint32(255)]


@njit(nogil=True, cache=True)
def _compute(words: Any, shift: Any, kind: int, a: Any, b: Any, row: Any) -> None:
    if kind == DIVIDE:
        for x in range(words.shape[0]):
            level = np.float32(np.int32(np.uint32(words[x] >> shift) & np.uint32(255)))
            _store((level - a) / b, row, x)
    else:
        for x in range(words.shape[0]):
            level = np.float32(np.int32(np.uint32(words[x] >> shift) & np.uint32(255)))
            _store(level * a + b, row, x)


@njit(nogil=True, cache=True, inline="always")
def _store(value: Any, row: Any, x: int) -> None:
    """A float32 as an element of `row`; the untaken branch is gone once the type is known."""
    if row.itemsize == 2:
        row[x] = _round(value)
    else:
        row[x] = value


@njit(nogil=True, cache=True, inline="always")
def _round(value: Any) -> Any:
    """bfloat16 bits, to nearest even."""
    bits = np.float32(value).view(np.uint32)
    odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))
    return np.uint16(np.uint32(np.uint32(bits + np.uint32(0x7FFF)) + odd) >> np.uint32(16))


@njit(nogil=True, cache=True)
def fill_row(entries: Any, pad: Any, band: Any, pitch: int, begin: int, end: int) -> None:
    """Lay padding over the elements from `begin` to `end` of each channel of a flat band."""
    for channel in range(3):
        band[begin + channel * pitch : end + channel * pitch] = entries[channel, pad[channel]]


@njit(nogil=True, cache=True)
def patch_starts(patch_row: int, merge: int, start: int, to_patch: int, starts: Any) -> None:
    """Where each patch of one row of patches begins: patches of a merge group stand together."""
    across = starts.shape[0]
    for column in range(across):
        group = patch_row // merge * (across // merge) + column // merge
        number = (group * merge + patch_row % merge) * merge + column % merge
        starts[column] = start + number * to_patch


@njit(nogil=True, cache=True)
def cut(
    band: Any,
    pitch: int,
    height: int,
    patch_width: int,
    starts: Any,
    offset: int,
    copies: int,
    strides: Any,
    out: Any,
) -> None:
    """Write the first `height` rows of a band, which lie within one row of patches, to their places.

    `band` is flat [3, rows, columns] with `pitch` elements a channel, `starts` is what `patch_starts`
    wrote, `offset` leads to the band within a patch, and `strides` int64 [5] along patch, channel,
    copy, y and x of the flat `out`.
    """
    to_channel, to_copy, to_y, to_x = strides[1], strides[2], strides[3], strides[4]
    columns = np.uint64(starts.shape[0] * patch_width)
    for patch in range(starts.shape[0]):
        for channel in range(3):
            for copy in range(copies):
                source = np.uint64(channel * pitch + patch * patch_width)
                at = np.uint64(starts[patch] + offset + channel * to_channel + copy * to_copy)
                for _ in range(height):
                    if to_x == 1 and patch_width >= EIGHT:
                        _copy_run(band, source, out, at, patch_width)
                    else:
                        _scatter_run(band, source, out, at, patch_width, to_x)
                    source += columns
                    at += np.uint64(to_y)


@njit(nogil=True, cache=True, inline="always")
def _copy_run(source: Any, i: Any, out: Any, j: Any, count: int) -> None:
    """Copy by eights, the last eight overlapping those before: no loop for a remainder."""
    for _ in range((count - 1) // EIGHT):
        _copy8(source, i, out, j)
        i += np.uint64(EIGHT)
        j += np.uint64(EIGHT)
    back = np.uint64(-count % EIGHT)
    _copy8(source, i - back, out, j - back)


@njit(nogil=True, cache=True, inline="always")
def _copy8(source: Any, i: Any, out: Any, j: Any) -> None:
    """All loads before all stores, at unsigned indices: the compiler makes one vector move of it."""
    a, b = source[i], source[i + np.uint64(1)]
    c, d = source[i + np.uint64(2)], source[i + np.uint64(3)]
    e, f = source[i + np.uint64(4)], source[i + np.uint64(5)]
    g, h = source[i + np.uint64(6)], source[i + np.uint64(7)]
    out[j], out[j + np.uint64(1)] = a, b
    out[j + np.uint64(2)], out[j + np.uint64(3)] = c, d
    out[j + np.uint64(4)], out[j + np.uint64(5)] = e, f
    out[j + np.uint64(6)], out[j + np.uint64(7)] = g, h


@njit(nogil=True, cache=True, inline="always")
def _scatter_run(source: Any, i: Any, out: Any, j: Any, count: int, step: int) -> None:
    for _ in range(count):
        out[j] = source[i]
        i += np.uint64(1)
        j += np.uint64(step)
