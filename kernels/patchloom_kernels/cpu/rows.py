"""Resized rows one after the other, in compiled code: the two passes in either order."""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from patchloom_kernels.cpu.passes import LANES, ROWS, blend_columns, blend_rows, turn, widen

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


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def _columns_of_source(row: int, source: Source, horizontal: Axis, scratch: Any) -> None:
    """Horizontal pass of the ROWS source rows from `row` on, into the ring."""
    start, count = source.start + row * source.pitch, min(ROWS, source.rows - row)
    turn(source.flat, start, source.pitch, source.step, source.columns, count, scratch.tile)
    _columns_of_tile(row % scratch.ring_words.shape[0], horizontal, scratch)


@njit(nogil=True, cache=True)
def _columns_of_tile(ring_row: int, horizontal: Axis, scratch: Any) -> None:
    blend_columns(
        scratch.tile_bytes,
        horizontal.first,
        horizontal.weights,
        scratch.lane_total,
        scratch.block,
        scratch.block_words,
        scratch.ring_words,
        ring_row,
    )


@njit(nogil=True, cache=True)
def _rows_of_ring(at: int, vertical: Axis, scratch: Any) -> None:
    """Vertical pass of the ring's rows, into the line."""
    first, ring, size = vertical.first[at], scratch.ring_words.shape[0], scratch.line.shape[0]
    if vertical.copy:
        scratch.words[:] = scratch.ring_words[first % ring]
    else:
        weights = vertical.weights[at]
        blend_rows(scratch.ring, 0, size, ring, first, weights, scratch.total, scratch.line)


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def _both_of_source(row: int, source: Source, vertical: Axis, horizontal: Axis, scratch: Any) -> None:
    """Both passes, vertical first, of the ROWS finished rows from `row` on, into the ring."""
    pitch, count = source.step * source.columns, min(ROWS, vertical.first.shape[0] - row)
    for y in range(count):
        line = scratch.tall[y * pitch : (y + 1) * pitch]
        _rows_of_source(row + y, source, vertical, scratch.total, line)
    turn(scratch.tall, 0, pitch, source.step, source.columns, count, scratch.tile)
    _columns_of_tile(0, horizontal, scratch)
