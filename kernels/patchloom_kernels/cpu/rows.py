"""Resized rows one after the other, in compiled code: the two passes in either order."""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from patchloom_kernels.cpu.passes import LANES, ROWS, blend_columns, blend_rows, turn

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
    line: Any  # uint8: the finished row
    line_total: Any  # int32 [bytes of line]


@njit(nogil=True, cache=True)
def scratch_for(mode: int, source: Source, vertical: Axis, horizontal: Axis) -> Any:
    """Buffers for one picture."""
    seen, bytes_in = horizontal.first.shape[0], source.step * source.columns
    reach = vertical.weights.shape[1] + ROWS if mode == COLUMNS_FIRST else ROWS
    ring_words = np.empty(((reach + ROWS - 1) // ROWS * ROWS, seen), np.uint32)
    tile = np.empty((source.columns + horizontal.weights.shape[1], ROWS), np.uint32)
    block = np.empty((ROWS, LANES), np.uint8)
    line = np.empty(max(4 * seen, bytes_in), np.uint8)
    return Scratch(
        ring_words.view(np.uint8).reshape(-1),
        ring_words,
        tile,
        tile.view(np.uint8),
        block,
        block.view(np.uint32),
        np.empty(LANES, np.int32),
        np.empty(ROWS * bytes_in, np.uint8),
        line,
        np.empty(line.shape[0], np.int32),
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
        _rows_of_ring(at, vertical, horizontal, scratch)
    elif mode == ROWS_FIRST:
        if at >= done:
            _both_of_source(done, source, vertical, horizontal, scratch)
            done += ROWS
        size = 4 * horizontal.first.shape[0]
        begin = at % ROWS * size
        scratch.line[:size] = scratch.ring[begin : begin + size]
    else:
        _rows_of_source(at, source, vertical, scratch.line_total, scratch.line)
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
def _rows_of_ring(at: int, vertical: Axis, horizontal: Axis, scratch: Any) -> None:
    """Vertical pass of the ring's rows, into the line."""
    size, ring, first = 4 * horizontal.first.shape[0], scratch.ring_words.shape[0], vertical.first[at]
    line = scratch.line[:size]
    if vertical.copy:
        begin = first % ring * size
        line[:] = scratch.ring[begin : begin + size]
    else:
        weights = vertical.weights[at]
        blend_rows(scratch.ring, 0, size, ring, first, weights, scratch.line_total, line)


@njit(nogil=True, cache=True)
def _rows_of_source(at: int, source: Source, vertical: Axis, total: Any, line: Any) -> None:
    """Vertical pass of source rows, into a line of pixels of `source.step` bytes."""
    # the fourth byte of the very last pixel may not exist
    size, first = source.step * (source.columns - 1) + 3, vertical.first[at]
    if vertical.copy:
        begin = source.start + first * source.pitch
        line[:size] = source.flat[begin : begin + size]
    else:
        weights = vertical.weights[at]
        blend_rows(source.flat, source.start, source.pitch, source.rows, first, weights, total, line[:size])


@njit(nogil=True, cache=True)
def _both_of_source(row: int, source: Source, vertical: Axis, horizontal: Axis, scratch: Any) -> None:
    """Both passes, vertical first, of the ROWS finished rows from `row` on, into the ring."""
    pitch, count = source.step * source.columns, min(ROWS, vertical.first.shape[0] - row)
    for y in range(count):
        line = scratch.tall[y * pitch : (y + 1) * pitch]
        _rows_of_source(row + y, source, vertical, scratch.line_total, line)
    turn(scratch.tall, 0, pitch, source.step, source.columns, count, scratch.tile)
    _columns_of_tile(0, horizontal, scratch)
