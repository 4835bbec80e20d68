"""Resize and patchify of one image after the other in compiled code: the CPU twin of the kernels."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from patchloom_kernels.cpu.compiled import (
    AFFINE,
    AFFINE_HALF,
    COLUMNS,
    COLUMNS_FIRST,
    LEVEL,
    LOAD,
    LOOKUP,
    PART,
    QUOTIENT,
    QUOTIENT_HALF,
    ROWS,
    ROWS_FIRST,
    ROWS_ONLY,
    TAPS,
    WINDOW,
    Axis,
    Scratch,
    Source,
    Values,
    run_job,
)
from patchloom_kernels.filters import SHIFT, axis_table, vertical_first
from patchloom_kernels.layout import PAD_ENTRY, Job, Parity, PatchLayout, Piece, Resample, Strides
from patchloom_kernels.normalize import Dtype, NormalizeTable

Assist: TypeAlias = Callable[[Callable[[], object]], Callable[[], object] | None]
"""Begins a call on another thread and returns what waits for its end, or None where no thread is free."""

_NOTHING = np.empty(0, np.uint8)
_LARGE = 1 << 20  # bytes written by a job that is worth a second thread


def resize_patchify(
    sources: Sequence[NDArray[np.uint8]],
    jobs: Sequence[Job],
    table: NormalizeTable | None,
    out: NDArray[Any],
    dtype: Dtype,
    parity: Parity,
    keep: Sequence[NDArray[np.uint8]] = (),
    assist: Assist | None = None,
) -> None:
    """Write every job's patches into the flat `out` [elements] of `dtype.numpy`.

    The same bytes as `reference.resize_patchify`. Runs on the calling thread without the GIL; sources
    whose rows are whole pixels of three or four bytes are read where they are, others are copied.
    `keep` has one array uint8 [h, w, 4] per job, or none at all, for the resized image itself with an
    arbitrary fourth byte; the canvas of such a job shows the whole image. `assist` is asked for another
    thread for half of a large job.
    """
    if out.ndim != 1 or not out.flags.carray or out.dtype != dtype.numpy:
        raise ValueError(f"out must be flat, contiguous, writable and {dtype.numpy}, got {out.dtype}")
    values, parity = _values(table, dtype), Parity(parity)
    words = out.view(values.entries.dtype)
    for index, job in enumerate(jobs):
        _check(job, sources[job.source].shape, len(out))
        kept = _kept(keep[index], job.piece, index) if keep else _NOTHING
        _run(sources[job.source], job, values, words, parity, kept, assist)


def _kept(keep: NDArray[np.uint8], piece: Piece, index: int) -> NDArray[np.uint8]:
    if not piece.shows_all or keep.shape != (*piece.target, 4):
        raise ValueError(f"keep[{index}] must be {piece.target} and the canvas show it all")
    if keep.dtype != np.uint8 or not keep.flags.carray:
        raise ValueError(f"keep[{index}] must be contiguous, writable and uint8, got {keep.dtype}")
    return keep.reshape(-1)


def warm(dtypes: Sequence[Dtype] = tuple(Dtype)) -> None:
    """Compile what `resize_patchify` needs for these output types, before the first request does."""
    source = np.zeros((32, 32, 3), np.uint8)
    layout = PatchLayout((8, 8))
    piece = Piece((32, 32), (24, 24), (24, 24), layout, Resample.BICUBIC)
    for dtype in dtypes:
        out = np.empty(piece.rows * layout.row_size(), dtype.numpy)
        values = np.zeros((3, PAD_ENTRY + 1), np.float32)
        table = None if dtype is Dtype.UINT8 else NormalizeTable(values)
        resize_patchify([source], [Job.contiguous(0, piece, 0)], table, out, dtype, Parity.ATEN_U8)


@lru_cache(maxsize=256)
def _values(table: NormalizeTable | None, dtype: Dtype) -> Values:
    """The lookup table in the output type, and the arithmetic that gives the same where one does."""
    nothing = np.zeros((3, 5), np.float32)
    if table is None:
        if dtype is not Dtype.UINT8:
            raise ValueError(f"{dtype} patches need a table")
        levels = np.append(np.arange(PAD_ENTRY, dtype=np.uint8), np.uint8(0))
        return Values(LEVEL, nothing, np.tile(levels, (3, 1)))
    if len(table.values) != 3:
        raise ValueError(f"the table must have 3 channels, got {len(table.values)}")
    entries = np.ascontiguousarray(table.to(dtype))
    half = dtype is Dtype.FLOAT16
    entries = entries.view(np.uint16) if half else entries
    for kind, constants in _candidates(table, half):
        values = Values(kind, constants, entries)
        if _every_level(values).tobytes() == entries[:, :PAD_ENTRY].tobytes():  # zeros have signs
            return values
    return Values(LOOKUP, nothing, entries)


def _candidates(table: NormalizeTable, half: bool) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Arithmetic that may give a table's entries: x * a + b first, then the quotient of its formula."""
    if table.quotient is None:
        return
    factor, shift, scale = table.quotient
    none = np.zeros(3)
    affine = np.stack([factor / scale, -np.float64(shift) / scale, none, none, none], axis=1)
    yield AFFINE_HALF if half else AFFINE, affine.astype(np.float32)
    upper = np.float32(factor)
    parts = np.full(3, upper), np.full(3, factor - np.float64(upper))
    quotient = np.stack([*parts, shift, np.float32(1) / scale, -scale], axis=1)
    yield QUOTIENT_HALF if half else QUOTIENT, quotient.astype(np.float32)


def _every_level(values: Values) -> NDArray[Any]:
    """What the compiled arithmetic gives for every channel and level, [3, 256]."""
    levels = np.repeat(np.arange(PAD_ENTRY, dtype=np.uint8), 4).reshape(1, PAD_ENTRY, 4)
    piece = Piece((1, PAD_ENTRY), (1, PAD_ENTRY), (1, PAD_ENTRY), PatchLayout((1, PAD_ENTRY)))
    out = np.empty(3 * PAD_ENTRY, values.entries.dtype)
    _run(levels, Job.contiguous(0, piece, 0), values, out, Parity.ATEN_U8, _NOTHING)
    return out.reshape(3, PAD_ENTRY)


def _check(job: Job, shape: tuple[int, ...], size: int) -> None:
    """Refuse a job that would read or write outside its buffers."""
    piece, strides = job.piece, job.strides
    if shape[:2] != piece.source or len(shape) != 3 or shape[2] not in (3, 4):
        raise ValueError(f"source must be [{piece.source[0]}, {piece.source[1]}, 3 or 4], got {shape}")
    layout = piece.layout
    steps = (strides.row, strides.c, strides.t, strides.y, strides.x)
    counts = (piece.rows, 3, layout.temporal, *layout.patch)
    spans = [int(step) * (int(count) - 1) for step, count in zip(steps, counts, strict=True)]
    low, high = (int(job.start) + sum(f(span, 0) for span in spans) for f in (min, max))
    if low < 0 or high >= size:
        raise ValueError(f"job writes elements {low}..{high} of an output of {size}")


def _run(
    source: NDArray[np.uint8],
    job: Job,
    values: Values,
    out: NDArray[Any],
    parity: Parity,
    kept: NDArray[np.uint8],
    assist: Assist | None = None,
) -> None:
    piece, strides = job.piece, job.strides
    (seen_rows, rows), (seen_columns, columns) = (_window(piece, axis, parity) for axis in (0, 1))
    steps = [strides.row, strides.c, strides.t, strides.y, strides.x]
    rows_held, windows, patches = _windows(piece, job.start, strides)
    used, mode = _used(source, rows, columns), _mode(piece, columns, parity)
    rows, columns = _from_zero(rows), _from_zero(columns)

    def run(first: int, end: int) -> None:
        run_job(
            mode,
            used,
            rows,
            columns,
            np.array([*seen_rows, *seen_columns], np.int64),
            (int(piece.canvas[0]), int(piece.canvas[1])),
            values,
            np.array(piece.pad, np.int64),
            windows,
            (first, end),
            patches,
            int(piece.layout.patch[1]),
            int(piece.layout.temporal),
            np.array(steps, np.int64),
            _scratch(mode, used, rows, columns),
            np.empty(4 * rows_held * piece.canvas[1], np.uint8),
            kept,
            out,
        )

    count, half = len(windows), len(windows) // 2
    large = half and piece.rows * piece.layout.row_size() * out.itemsize >= _LARGE
    wait = assist(partial(run, half, count)) if large and assist is not None else None
    try:
        run(0, count if wait is None else half)
    finally:  # the other thread writes to the same memory
        if wait is not None:
            wait()


def _scratch(mode: int, source: Source, rows: Axis, columns: Axis) -> Scratch:
    """Buffers for one picture."""
    line = 4 * len(columns.first)
    ring_rows = ROWS
    if mode == COLUMNS_FIRST:
        ring_rows = -(-(rows.weights.shape[1] + ROWS) // ROWS) * ROWS
    last = int(columns.first[-1]) if len(columns.first) else 0
    reach = source.step * max(last + columns.weights.shape[1], source.columns) + LOAD
    return Scratch(
        np.empty(ring_rows * line, np.uint8),
        ring_rows,
        np.empty(ROWS * reach, np.uint8),
        np.zeros(ROWS * reach, np.uint8),
        reach,
        np.empty(2 * rows.pairs.shape[1], np.int64),
    )


@lru_cache(maxsize=32)
def _windows(piece: Piece, start: int, strides: Strides) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """The rows of a window, its [first canvas row, rows of a patch] and its patches, see `Place`.

    A window is a row of merge groups, or a part of a row of patches where that would be too high.
    """
    (height, width), merge = piece.layout.patch, piece.layout.merge
    down, across = piece.grid
    starts = start + np.arange(down * across, dtype=np.int64) * strides.row
    group, y, x = np.indices((across // merge, merge, merge)).reshape(3, -1)
    left = (group * merge + x) * width
    if merge * height <= WINDOW:
        tops = np.arange(0, down * height, merge * height)
        rows = np.full(len(tops), height)
        patches = _patches(starts.reshape(len(tops), -1), y * height, left)
        return merge * height, np.stack([tops, rows], axis=1), patches
    cuts = np.arange(0, height, WINDOW)
    tops = np.add.outer(np.arange(0, down * height, height), cuts).reshape(-1)
    rows = np.tile(np.minimum(WINDOW, height - cuts), down)
    grouped = starts.reshape(down // merge, across // merge, merge, merge)
    raster = grouped.transpose(0, 2, 1, 3).reshape(down, 1, across)
    places = raster + cuts[:, None] * strides.y
    lefts = np.arange(0, across * width, width)
    return WINDOW, np.stack([tops, rows], axis=1), _patches(places.reshape(-1, across), 0, lefts)


def _patches(
    starts: NDArray[np.int64], top: NDArray[np.int64] | int, left: NDArray[np.int64]
) -> NDArray[np.int64]:
    """[windows, patches, 3] of starts [windows, patches] and places that are the same in every window."""
    patches = np.empty((*starts.shape, 3), np.int64)
    patches[..., 0], patches[..., 1], patches[..., 2] = starts, top, left
    return patches


@lru_cache(maxsize=256)
def _window(piece: Piece, axis: int, parity: Parity) -> tuple[tuple[int, int], Axis]:
    """Where on the canvas the picture is seen along one axis, and the table of that part."""
    table = axis_table(piece.source[axis], piece.target[axis], piece.resample, parity)
    offset = piece.offset[axis]
    begin, end = max(0, offset), min(piece.canvas[axis], piece.target[axis] + offset)
    end = max(begin, end)
    bounds = table.bounds[begin - offset : end - offset]
    weights, first = table.weights[begin - offset : end - offset], bounds[:, 0]
    behind = bounds.sum(axis=1, dtype=np.int32)
    spare = _spare_bits(weights)
    weights, first = np.ascontiguousarray(weights >> spare), np.ascontiguousarray(first)
    pairs = _pairs(weights, (COLUMNS, TAPS) if axis == 1 else (1, 2))
    if axis == 1 and len(first):
        first = np.pad(first, (0, -len(first) % COLUMNS), "edge")
    return (begin, end), Axis(first, behind, weights, pairs, SHIFT - spare, table.identity)


def _pairs(weights: NDArray[np.int32], whole: tuple[int, int]) -> NDArray[np.int32]:
    """Weights [seen, taps] as `Axis.pairs`, filled up to `whole` numbers of both."""
    padded = np.pad(weights, [(0, -size % unit) for size, unit in zip(weights.shape, whole, strict=True)])
    narrow = np.abs(padded).max(initial=0) < 1 << 15
    parts = [padded] if narrow else [padded >> PART, padded & ((1 << PART) - 1)]
    shape = (len(padded), padded.shape[1] // whole[1], whole[1])
    grouped = [part.reshape(shape) for part in parts]
    return np.stack(grouped, axis=2).astype(np.int16).view(np.int32)


def _spare_bits(weights: NDArray[np.int32]) -> int:
    """By how much weights can be shifted right to be int16 without loss; 0 where they cannot."""
    together = int(np.bitwise_or.reduce(weights, axis=None))
    spare = (together & -together).bit_length() - 1 if together else 0
    largest = int(np.abs(weights).max(initial=0)) >> spare
    return spare if 0 < spare < SHIFT and largest < 1 << 15 else 0


def _from_zero(axis: Axis) -> Axis:
    """The same with source indices that count from the first used one."""
    origin = axis.first[:1].sum(dtype=np.int32)
    return axis._replace(first=axis.first - origin, end=axis.end - origin)


def _used(source: NDArray[np.uint8], rows: Axis, columns: Axis) -> Source:
    """A flat view of the source and which part of it is needed."""
    height, width, channels = source.shape
    pitch, step, byte = source.strides
    if byte != 1 or step not in (3, 4) or pitch < step * width or source.dtype != np.uint8:
        # a copy even where one axis of length 1 makes numpy call it contiguous, whatever its stride
        source = np.array(source, np.uint8, order="C")
        pitch, step, byte = source.strides
    size = (height - 1) * pitch + (width - 1) * step + channels
    flat = as_strided(source, (size,), (1,), writeable=False)
    if not len(rows.first) or not len(columns.first):
        return Source(flat, 0, pitch, step, 0, 0)
    start = int(rows.first[0]) * pitch + int(columns.first[0]) * step
    height, width = (int(axis.end[-1] - axis.first[0]) for axis in (rows, columns))
    return Source(flat, start, pitch, step, height, width)


def _mode(piece: Piece, columns: Axis, parity: Parity) -> int:
    if columns.copy:
        return ROWS_ONLY
    return ROWS_FIRST if vertical_first(piece.source, piece.target, parity) else COLUMNS_FIRST
