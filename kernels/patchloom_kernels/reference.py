"""Plain numpy: slow, obvious, right by definition. Other kernels equal it bit for bit."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patchloom_kernels.filters import SHIFT, AxisTable, axis_table, vertical_first
from patchloom_kernels.layout import PAD_ENTRY, Job, Parity, Piece, Resample
from patchloom_kernels.normalize import Dtype, NormalizeTable

CHANNELS = 3


def resize(
    image: NDArray[np.uint8], target: tuple[int, int], resample: Resample, parity: Parity
) -> NDArray[np.uint8]:
    """[H, W, C] uint8 to [h, w, C] uint8, rounded and clamped after each of the two passes."""
    source = (image.shape[0], image.shape[1])
    axes = (0, 1) if vertical_first(source, target, parity) else (1, 0)
    for axis in axes:
        image = _pass(image, axis_table(source[axis], target[axis], resample, parity), axis)
    return image


def resize_patchify(
    sources: Sequence[NDArray[np.uint8]],
    jobs: Sequence[Job],
    table: NormalizeTable | None,
    out: NDArray[Any],
    dtype: Dtype,
    parity: Parity,
) -> None:
    """Write every job's patches into the flat `out` [elements] of `dtype.numpy`.

    Sources are uint8 [H, W, 3] or [H, W, 4] whose fourth byte is ignored. Without a table `dtype`
    is UINT8 and the levels themselves are written, padding outside the levels as 0. Elements that
    no job covers stay as they are.
    """
    entries = None if table is None else table.to(dtype)
    for job in jobs:
        piece = job.piece
        resized = resize(sources[job.source][..., :CHANNELS], piece.target, piece.resample, parity)
        index = _canvas(resized, piece)
        for channel in range(CHANNELS):
            levels = index[..., channel]
            if entries is None:
                values = np.where(levels < PAD_ENTRY, levels, 0).astype(np.uint8)
            else:
                values = entries[channel][levels]
            places = _places(job, channel)  # [canvas height, canvas width]
            for copy in range(piece.layout.temporal):
                out[places + copy * job.strides.t] = values


def _pass(image: NDArray[np.uint8], table: AxisTable, axis: int) -> NDArray[np.uint8]:
    if table.identity:
        return image
    lines = np.moveaxis(image, axis, 0).astype(np.int64)
    out = np.empty((len(table.bounds), *lines.shape[1:]), np.uint8)
    for i, (first, count) in enumerate(table.bounds):
        weights = table.weights[i, :count].astype(np.int64)
        total = np.tensordot(weights, lines[first : first + count], axes=1)
        rounded = (total + (1 << (SHIFT - 1))) >> SHIFT
        out[i] = np.clip(rounded, 0, 255)
    return np.ascontiguousarray(np.moveaxis(out, 0, axis))


def _canvas(resized: NDArray[np.uint8], piece: Piece) -> NDArray[np.int64]:
    """Table index of every canvas pixel and channel: the picture at its offset, padding around."""
    canvas = np.empty((*piece.canvas, CHANNELS), np.int64)
    canvas[...] = piece.pad
    y, x = (np.arange(side) - offset for side, offset in zip(piece.canvas, piece.offset, strict=True))
    rows = np.flatnonzero((y >= 0) & (y < piece.target[0]))
    columns = np.flatnonzero((x >= 0) & (x < piece.target[1]))
    canvas[np.ix_(rows, columns)] = resized[np.ix_(y[rows], x[columns])]
    return canvas


def _places(job: Job, channel: int) -> NDArray[np.int64]:
    """Output index of every canvas pixel's first temporal copy."""
    layout, strides, merge = job.piece.layout, job.strides, job.piece.layout.merge
    patch_y, y = np.divmod(np.arange(job.piece.canvas[0])[:, None], layout.patch[0])
    patch_x, x = np.divmod(np.arange(job.piece.canvas[1])[None, :], layout.patch[1])
    group = (patch_y // merge) * (job.piece.grid[1] // merge) + patch_x // merge
    patch = (group * merge + patch_y % merge) * merge + patch_x % merge
    places: NDArray[np.int64] = (
        job.start + patch * strides.row + channel * strides.c + y * strides.y + x * strides.x
    )
    return places
