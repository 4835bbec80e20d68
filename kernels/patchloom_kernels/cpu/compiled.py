"""Resize, normalise and patchify of one job, compiled: the two passes, the rows, the patches.

A pixel is a 4-byte word here (red, green, blue and a byte nobody reads). The vertical pass has its lanes
along a row. The horizontal pass cannot: neighbours read from places that depend on the scale. So tiles
of ROWS rows are turned on their side first, and its lanes are ROWS pixels of one column. A weight is
used for all lanes, four taps at a time; weights are padded with zeros to whole groups of four.

What numba needs to be told: int32 at every operation, or it widens to int64, which has half the lanes;
unsigned indices, or it tests for negative ones. Helpers that take arrays are inlined by LLVM
(`forceinline`), not by numba (`inline`), which would count references in the innermost loops. All
compiled code stands in this one file, because numba's cache watches only the file of a function, not
those of the functions it calls.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

BAND = 16
"""Most canvas rows that are held before they are cut; a higher patch is cut in several bands."""

ROWS = 16
LANES = 4 * ROWS
TAPS = 4
BLOCK = 64

_HALF = np.int32(1 << 21)
_SHIFT = np.int32(22)
_ZERO = np.int32(0)
_FULL = np.int32(255)


@njit(nogil=True, forceinline=True)
def _level(total: Any) -> Any:
    return np.uint8(max(_ZERO, min(_FULL, np.int32(total >> _SHIFT))))


@njit(nogil=True, forceinline=True)
def _row(source: Any, at: int, size: int) -> Any:
    return source[at : at + size]


@njit(nogil=True)
def blend_rows(
    source: Any, start: Any, pitch: int, ring: int, first: int, weights: Any, total: Any, out: Any
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


@njit(nogil=True, forceinline=True)
def _three(source: Any, at: Any) -> Any:
    """The pixel at byte `at` as a word, without its fourth byte."""
    return (
        np.uint32(source[at])
        | np.uint32(source[at + np.uint64(1)]) << np.uint32(8)
        | np.uint32(source[at + np.uint64(2)]) << np.uint32(16)
    )


@njit(nogil=True, forceinline=True)
def _four(source: Any, at: Any) -> Any:
    """The four bytes from `at` on as a word: one load for the compiler."""
    return _three(source, at) | np.uint32(source[at + np.uint64(3)]) << np.uint32(24)


@njit(nogil=True)
def turn(source: Any, start: Any, pitch: int, step: int, width: int, rows: int, tile: Any) -> None:
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


@njit(nogil=True)
def widen(source: Any, step: int, words: Any) -> None:
    """The first pixels of `source`, `step` (3 or 4) bytes each, as `words` uint32 [width]."""
    last, at = words.shape[0] - 1, np.uint64(0)
    for x in range(last):
        words[x] = _four(source, at)
        at += np.uint64(step)
    words[last] = _three(source, at)


@njit(nogil=True)
def blend_columns(
    tile: Any, first: Any, weights: Any, total: Any, block: Any, words: Any, out: Any, out_row: Any
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


COLUMNS_FIRST = 0
ROWS_FIRST = 1
ROWS_ONLY = 2


class Axis(NamedTuple):
    """The seen part of one axis of the resized picture; source indices count from the first used."""

    first: Any  # int32 [seen]
    end: Any  # int32 [seen]
    weights: Any  # int32 [seen, groups of taps]
    copy: bool


class Source(NamedTuple):
    """The used part of a source: pixel (y, x) is at byte `start + y * pitch + x * step` of `flat`."""

    flat: Any
    start: int
    pitch: int
    step: int
    rows: int
    columns: int


class Scratch(NamedTuple):
    """What the passes hand to one another; small enough to stay in the caches."""

    ring: Any  # uint8, flat: the last rows out of the horizontal pass, 4 bytes a pixel
    ring_words: Any  # the same as uint32 [rows, seen columns]
    tile: Any  # uint32 [source columns + padding, ROWS]
    tile_bytes: Any  # the same as uint8 [source columns + padding, LANES]
    block: Any  # uint8 [ROWS, LANES]
    block_words: Any  # the same as uint32 [ROWS, ROWS]
    lane_total: Any  # int32 [LANES]
    tall: Any  # uint8, flat: ROWS rows out of the vertical pass
    line: Any  # uint8 [4 * seen columns]: the finished row
    words: Any  # the same as uint32 [seen columns]
    total: Any  # int32 [bytes of a line or of a source row]


@njit(nogil=True)
def scratch_for(mode: int, source: Source, vertical: Axis, horizontal: Axis) -> Any:
    """Buffers for one picture."""
    seen, bytes_in = horizontal.first.shape[0], source.step * source.columns
    reach = vertical.weights.shape[1] + ROWS if mode == COLUMNS_FIRST else ROWS
    ring_words = np.empty(((reach + ROWS - 1) // ROWS * ROWS, seen), np.uint32)
    tile = np.empty((source.columns + horizontal.weights.shape[1], ROWS), np.uint32)
    block = np.empty((ROWS, LANES), np.uint8)
    words = np.empty(seen, np.uint32)
    return Scratch(
        ring_words.view(np.uint8).reshape(-1),
        ring_words,
        tile,
        tile.view(np.uint8),
        block,
        block.view(np.uint32),
        np.empty(LANES, np.int32),
        np.empty(ROWS * bytes_in, np.uint8),
        words.view(np.uint8),
        words,
        np.empty(max(4 * seen, bytes_in), np.int32),
    )


@njit(nogil=True)
def finish_row(
    at: int, done: int, mode: int, source: Source, vertical: Axis, horizontal: Axis, scratch: Any
) -> int:
    """Leave row `at` of the seen picture in `scratch.line`; rows are asked for in rising order.

    `done` is what the previous call returned, 0 at first: how far the ring has got.
    """
    if mode == COLUMNS_FIRST:
        while done < vertical.end[at]:
            _columns_of_source(done, source, horizontal, scratch)
            done += ROWS
        _rows_of_ring(at, vertical, scratch)
    elif mode == ROWS_FIRST:
        if at >= done:
            _both_of_source(done, source, vertical, horizontal, scratch)
            done += ROWS
        scratch.words[:] = scratch.ring_words[at % ROWS]
    else:
        _rows_of_source(at, source, vertical, scratch.total, scratch.tall)
        widen(scratch.tall, source.step, scratch.words)
    return done


@njit(nogil=True)
def _columns_of_source(row: int, source: Source, horizontal: Axis, scratch: Any) -> None:
    """Horizontal pass of the ROWS source rows from `row` on, into the ring."""
    start, count = source.start + row * source.pitch, min(ROWS, source.rows - row)
    turn(source.flat, start, source.pitch, source.step, source.columns, count, scratch.tile)
    blend_columns(
        scratch.tile_bytes,
        horizontal.first,
        horizontal.weights,
        scratch.lane_total,
        scratch.block,
        scratch.block_words,
        scratch.ring_words,
        row % scratch.ring_words.shape[0],
    )


@njit(nogil=True)
def _rows_of_ring(at: int, vertical: Axis, scratch: Any) -> None:
    """Vertical pass of the ring's rows, into the line."""
    first, ring, size = vertical.first[at], scratch.ring_words.shape[0], scratch.line.shape[0]
    if vertical.copy:
        scratch.words[:] = scratch.ring_words[first % ring]
    else:
        weights = vertical.weights[at]
        blend_rows(scratch.ring, np.int64(0), size, ring, first, weights, scratch.total, scratch.line)


@njit(nogil=True)
def _rows_of_source(at: int, source: Source, vertical: Axis, total: Any, out: Any) -> None:
    """Vertical pass of source rows, into pixels of `source.step` bytes."""
    # the fourth byte of the very last pixel may not exist
    size, first = source.step * (source.columns - 1) + 3, vertical.first[at]
    if vertical.copy:
        begin = source.start + first * source.pitch
        out[:size] = source.flat[begin : begin + size]
    else:
        weights = vertical.weights[at]
        blend_rows(source.flat, source.start, source.pitch, source.rows, first, weights, total, out[:size])


@njit(nogil=True)
def _both_of_source(row: int, source: Source, vertical: Axis, horizontal: Axis, scratch: Any) -> None:
    """Both passes, vertical first, of the ROWS finished rows from `row` on, into the ring."""
    pitch, count = source.step * source.columns, min(ROWS, vertical.first.shape[0] - row)
    for y in range(count):
        line = scratch.tall[y * pitch : (y + 1) * pitch]
        _rows_of_source(row + y, source, vertical, scratch.total, line)
    turn(scratch.tall, np.int64(0), pitch, source.step, source.columns, count, scratch.tile)
    blend_columns(
        scratch.tile_bytes,
        horizontal.first,
        horizontal.weights,
        scratch.lane_total,
        scratch.block,
        scratch.block_words,
        scratch.ring_words,
        np.int64(0),
    )


LOOKUP, DIVIDE, MULTIPLY = 0, 1, 2
"""How a level becomes a value: by table, as (x - a) / b, or as x * a + b; see `formula_for`."""

EIGHT = 8


class Values(NamedTuple):
    """What a level becomes; `kind` says how, and the table holds for all kinds."""

    kind: int
    a: Any  # float32 [3]
    b: Any  # float32 [3]
    entries: Any  # [3, 257] of the output type


@njit(nogil=True)
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


@njit(nogil=True)
def _look_up(words: Any, shift: Any, entries: Any, row: Any) -> None:
    for x in range(words.shape[0]):
        row[x] = entries[np.uint32(words[x] >> shift) & np.uint32(255)]


@njit(nogil=True)
def _compute(words: Any, shift: Any, kind: int, a: Any, b: Any, row: Any) -> None:
    if kind == DIVIDE:
        for x in range(words.shape[0]):
            level = np.float32(np.int32(np.uint32(words[x] >> shift) & np.uint32(255)))
            _store((level - a) / b, row, x)
    else:
        for x in range(words.shape[0]):
            level = np.float32(np.int32(np.uint32(words[x] >> shift) & np.uint32(255)))
            _store(level * a + b, row, x)


@njit(nogil=True, forceinline=True)
def _store(value: Any, row: Any, x: int) -> None:
    """A float32 as an element of `row`; the untaken branch is gone once the type is known."""
    if row.itemsize == 2:
        row[x] = _round(value)
    else:
        row[x] = value


@njit(nogil=True, forceinline=True)
def _round(value: Any) -> Any:
    """bfloat16 bits, to nearest even."""
    bits = np.float32(value).view(np.uint32)
    odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))
    return np.uint16(np.uint32(np.uint32(bits + np.uint32(0x7FFF)) + odd) >> np.uint32(16))


@njit(nogil=True)
def fill_row(entries: Any, pad: Any, band: Any, pitch: int, begin: int, end: int) -> None:
    """Lay padding over the elements from `begin` to `end` of each channel of a flat band."""
    for channel in range(3):
        band[begin + channel * pitch : end + channel * pitch] = entries[channel, pad[channel]]


@njit(nogil=True)
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

    `band` is flat [3, rows, columns] with `pitch` elements a channel, `starts` int64 [patches across]
    is where patches begin, `offset` leads to the band within a patch, and `strides` int64 [5] along
    patch, channel, copy, y and x of the flat `out`.
    """
    to_y, columns = np.uint64(strides[3]), np.uint64(starts.shape[0] * patch_width)
    in_runs = strides[4] == 1 and patch_width >= EIGHT
    for patch in range(starts.shape[0]):
        for channel in range(3):
            for copy in range(copies):
                at = np.uint64(starts[patch] + offset + channel * strides[1] + copy * strides[2])
                source = np.uint64(channel * pitch + patch * patch_width)
                if in_runs:
                    _copy_runs(band, source, columns, out, at, to_y, height, patch_width)
                else:
                    to_x = np.uint64(strides[4])
                    _scatter_runs(band, source, columns, out, at, to_y, to_x, height, patch_width)


@njit(nogil=True, forceinline=True)
def _copy_runs(band: Any, i: Any, to_row: Any, out: Any, j: Any, to_y: Any, height: int, width: int) -> None:
    """Copy by eights, the last eight overlapping those before: no loop for a remainder."""
    eights = (width - 1) // EIGHT
    last = np.uint64(width - EIGHT)
    for _ in range(height):
        for eight in range(eights):
            step = np.uint64(eight * EIGHT)
            _copy8(band, i + step, out, j + step)
        _copy8(band, i + last, out, j + last)
        i += to_row
        j += to_y


@njit(nogil=True)
def _scatter_runs(
    band: Any, i: Any, to_row: Any, out: Any, j: Any, to_y: Any, to_x: Any, height: int, width: int
) -> None:
    for _ in range(height):
        for x in range(width):
            out[j + np.uint64(x) * to_x] = band[i + np.uint64(x)]
        i += to_row
        j += to_y


@njit(nogil=True, forceinline=True)
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


@njit(nogil=True, cache=True)
def run_job(
    mode: int,
    source: Source,
    vertical: Axis,
    horizontal: Axis,
    seen: Any,  # [first row, end row, first column, end column] of the picture on the canvas
    values: Values,
    pad: Any,
    sizes: Any,  # [canvas height, canvas width, patch height, patch width]
    starts: Any,  # int64 [patches down, patches across]
    copies: int,
    strides: Any,
    out: Any,
    kept: Any,  # uint32 [seen rows, seen columns]: the resized pixels too; [0, 0] for not
) -> None:
    top, bottom, left, right = seen[0], seen[1], seen[2], seen[3]
    height, width, patch_height, patch_width = sizes[0], sizes[1], sizes[2], sizes[3]
    scratch = scratch_for(mode, source, vertical, horizontal)
    pitch = min(BAND, patch_height) * width
    band = np.empty(3 * pitch, values.entries.dtype)
    done: Any = np.int64(0)  # a literal 0 would compile finish_row a second time
    for patch_row in range(height // patch_height):
        for band_top in range(0, patch_height, BAND):
            rows = min(BAND, patch_height - band_top)
            for y in range(rows):
                at = patch_row * patch_height + band_top + y
                begin, end = y * width, (y + 1) * width
                if at < top or at >= bottom or left >= right:
                    fill_row(values.entries, pad, band, pitch, begin, end)
                    continue
                done = finish_row(at - top, done, mode, source, vertical, horizontal, scratch)
                if kept.shape[0] > 0:
                    kept[at - top] = scratch.words
                fill_row(values.entries, pad, band, pitch, begin, begin + left)
                normalize_row(scratch.words, values, band, pitch, begin + left)
                fill_row(values.entries, pad, band, pitch, begin + right, end)
            offset = band_top * strides[3]
            cut(band, pitch, rows, patch_width, starts[patch_row], offset, copies, strides, out)
