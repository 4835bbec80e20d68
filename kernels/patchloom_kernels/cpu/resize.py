"""Resize and patchify of one image after the other in compiled code: the CPU twin of the kernels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from patchloom_kernels.cpu.compiled import (
    COLUMNS_FIRST,
    DIVIDE,
    LOOKUP,
    MULTIPLY,
    ROWS_FIRST,
    ROWS_ONLY,
    TAPS,
    Axis,
    Source,
    Values,
    run_job,
)
from patchloom_kernels.filters import axis_table, vertical_first
from patchloom_kernels.layout import PAD_ENTRY, Job, Parity, PatchLayout, Piece, Resample
from patchloom_kernels.normalize import Dtype, NormalizeTable, bfloat16_bits

_NOTHING = np.empty((0, 0), np.uint32)


def resize_patchify(
    sources: Sequence[NDArray[np.uint8]],
    jobs: Sequence[Job],
    table: NormalizeTable | None,
    out: NDArray[Any],
    dtype: Dtype,
    parity: Parity,
    keep: Sequence[NDArray[np.uint8]] = (),
) -> None:
    """Write every job's patches into the flat `out` [elements] of `dtype.numpy`.

    The same bytes as `reference.resize_patchify`. Runs on the calling thread without the GIL; sources
    whose rows are whole pixels of three or four bytes are read where they are, others are copied.
    `keep` has one array uint8 [h, w, 4] per job, or none at all, for the resized image itself with an
    arbitrary fourth byte; the canvas of such a job shows the whole image.
    """
    if out.ndim != 1 or not out.flags.c_contiguous or out.dtype != dtype.numpy:
        raise ValueError(f"out must be flat, contiguous and {dtype.numpy}, got {out.dtype}")
    values = _values(table, dtype)
    words = out.view(values.entries.dtype)
    for index, job in enumerate(jobs):
        _check(job, sources[job.source].shape, len(out))
        kept = keep[index].view(np.uint32)[..., 0] if keep else _NOTHING
        if keep and not (job.piece.shows_all and kept.shape == job.piece.target):
            raise ValueError(f"keep[{index}] must be {job.piece.target} and the canvas show it all")
        _run(sources[job.source], job, values, words, parity, kept)


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


def _values(table: NormalizeTable | None, dtype: Dtype) -> Values:
    """The lookup table in the output type, and the arithmetic that gives the same where one does."""
    none = np.zeros(3, np.float32)
    if table is None:
        if dtype is not Dtype.UINT8:
            raise ValueError(f"{dtype} patches need a table")
        levels = np.append(np.arange(PAD_ENTRY, dtype=np.uint8), np.uint8(0))
        return Values(MULTIPLY, none + np.float32(1), none, np.tile(levels, (3, 1)))
    entries = table.to(dtype)
    if dtype is Dtype.FLOAT16:
        return Values(LOOKUP, none, none, entries.view(np.uint16))
    if table.affine is None:
        return Values(LOOKUP, none, none, entries)
    shift, scale = table.affine
    one = np.float32(1)
    for kind, a, b in ((MULTIPLY, one / scale, -shift / scale), (DIVIDE, shift, scale)):
        if np.array_equal(_by_formula(kind, a, b, dtype), entries[:, :PAD_ENTRY]):
            return Values(kind, a, b, entries)
    return Values(LOOKUP, none, none, entries)


def _by_formula(kind: int, a: NDArray[np.float32], b: NDArray[np.float32], dtype: Dtype) -> NDArray[Any]:
    """What the compiled arithmetic gives for every channel and level."""
    levels = np.arange(PAD_ENTRY, dtype=np.float32)
    column_a, column_b = a[:, None], b[:, None]
    values = levels * column_a + column_b if kind == MULTIPLY else (levels - column_a) / column_b
    return bfloat16_bits(values) if dtype is Dtype.BFLOAT16 else values


def _check(job: Job, shape: tuple[int, ...], size: int) -> None:
    """Refuse a job that would read or write outside its buffers."""
    piece, strides = job.piece, job.strides
    if shape[:2] != piece.source or len(shape) != 3 or shape[2] not in (3, 4):
        raise ValueError(f"source must be [{piece.source[0]}, {piece.source[1]}, 3 or 4], got {shape}")
    layout = piece.layout
    steps = (strides.row, strides.c, strides.t, strides.y, strides.x)
    counts = (piece.rows, 3, layout.temporal, *layout.patch)
    spans = [step * (count - 1) for step, count in zip(steps, counts, strict=True)]
    low, high = (job.start + sum(f(span, 0) for span in spans) for f in (min, max))
    if low < 0 or high >= size:
        raise ValueError(f"job writes elements {low}..{high} of an output of {size}")


def _run(
    source: NDArray[np.uint8],
    job: Job,
    values: Values,
    out: NDArray[Any],
    parity: Parity,
    kept: NDArray[np.uint32],
) -> None:
    piece, strides = job.piece, job.strides
    (seen_rows, rows), (seen_columns, columns) = (_window(piece, axis, parity) for axis in (0, 1))
    steps = [strides.row, strides.c, strides.t, strides.y, strides.x]
    run_job(
        _mode(piece, columns, parity),
        _used(source, rows, columns),
        _from_zero(rows),
        _from_zero(columns),
        np.array([*seen_rows, *seen_columns], np.int64),
        values,
        np.array(piece.pad, np.int64),
        np.array([*piece.canvas, *piece.layout.patch], np.int64),
        _starts(job),
        piece.layout.temporal,
        np.array(steps, np.int64),
        out,
        kept,
    )


def _starts(job: Job) -> NDArray[np.int64]:
    """Where patches begin, [down, across]; those of a merge group stand together."""
    (down, across), merge = job.piece.grid, job.piece.layout.merge
    order = np.arange(down * across).reshape(down // merge, across // merge, merge, merge)
    raster = order.transpose(0, 2, 1, 3).reshape(down, across)
    return job.start + raster * job.strides.row


def _window(piece: Piece, axis: int, parity: Parity) -> tuple[tuple[int, int], Axis]:
    """Where on the canvas the picture is seen along one axis, and the table of that part."""
    table = axis_table(piece.source[axis], piece.target[axis], piece.resample, parity)
    offset = piece.offset[axis]
    begin, end = max(0, offset), min(piece.canvas[axis], piece.target[axis] + offset)
    end = max(begin, end)
    bounds = table.bounds[begin - offset : end - offset]
    weights = _grouped(table.weights[begin - offset : end - offset])
    first, behind = np.ascontiguousarray(bounds[:, 0]), bounds.sum(axis=1, dtype=np.int32)
    return (begin, end), Axis(first, behind, weights, table.identity)


def _from_zero(axis: Axis) -> Axis:
    """The same with source indices that count from the first used one."""
    origin = axis.first[:1].sum(dtype=np.int32)
    return axis._replace(first=axis.first - origin, end=axis.end - origin)


def _used(source: NDArray[np.uint8], rows: Axis, columns: Axis) -> Source:
    """A flat view of the source and which part of it is needed."""
    height, width, channels = source.shape
    pitch, step, byte = source.strides
    if byte != 1 or step not in (3, 4) or pitch < step * width or source.dtype != np.uint8:
        source = np.ascontiguousarray(source, np.uint8)
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


def _grouped(weights: NDArray[np.int32]) -> NDArray[np.int32]:
    """Weights padded with zeros to whole groups of taps."""
    missing = -weights.shape[1] % TAPS
    return np.ascontiguousarray(np.pad(weights, ((0, 0), (0, missing))))
