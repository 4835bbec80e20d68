"""A ragged batch for one launch: the bytes of all images in one buffer, and a table that says the rest.

The table has one row of int64 fields per job. A launch covers the canvases of all jobs with tiles;
`FIRST_TILE` is the running count of tiles, in which a program finds the job of its tile by bisection.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from patchloom_kernels.filters import AxisTable, axis_table, vertical_first
from patchloom_kernels.layout import Job, Parity, Piece
from patchloom_kernels.packing import aligned

TILE_ROWS, TILE_COLUMNS = 32, 128
"""Most canvas pixels of a tile. More columns than rows, since rows are where memory is contiguous."""

READ_ROWS = 96
"""About how many source rows a tile may need besides the filter's reach; bounds the intermediate."""

SCRATCH_WORDS = 16384
"""About the size of a tile's intermediate, in pixels."""


class Field(IntEnum):
    """Columns of the descriptor table; the kernel reads the same names."""

    FIRST_TILE = 0
    SOURCE = 1
    PITCH = 2
    STEP = 3
    SOURCE_H = 4
    SOURCE_W = 5
    TARGET_H = 6
    TARGET_W = 7
    OFFSET_Y = 8
    OFFSET_X = 9
    CANVAS_H = 10
    CANVAS_W = 11
    ROWS_TABLE = 12
    ROWS_TAPS = 13
    COLUMNS_TABLE = 14
    COLUMNS_TAPS = 15
    ROWS_FIRST = 16
    PATCH_H = 17
    PATCH_W = 18
    MERGE = 19
    COPIES = 20
    GROUPS_ACROSS = 21
    START = 22
    TO_PATCH = 23
    TO_CHANNEL = 24
    TO_COPY = 25
    TO_Y = 26
    TO_X = 27
    PAD_RED = 28
    PAD_GREEN = 29
    PAD_BLUE = 30
    TILES_ACROSS = 31
    CELL_H = 32
    CELL_W = 33
    CELLS_DOWN = 34
    CELLS_ACROSS = 35
    BY_PATCH_H = 36
    BY_PATCH_W = 37
    BY_MERGE = 38
    BY_CELL_SIZE = 39
    BY_CELL_W = 40
    BY_CELLS_ACROSS = 41


FIELDS = 48


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """Where an image lies in the byte buffer: pixel (y, x) at `offset + y * pitch + x * step`."""

    offset: int
    size: tuple[int, int]
    pitch: int
    step: int  # 3 or 4 bytes a pixel


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a job's canvas is tiled: cells are patches, or parts of them, written one after the other."""

    cell: tuple[int, int]
    cells: tuple[int, int]

    @property
    def size(self) -> tuple[int, int]:
        """Canvas pixels of a tile."""
        return self.cell[0] * self.cells[0], self.cell[1] * self.cells[1]

    def count(self, canvas: tuple[int, int]) -> tuple[int, int]:
        """Tiles down and across, the last ones cut off by the canvas."""
        return math.ceil(canvas[0] / self.size[0]), math.ceil(canvas[1] / self.size[1])


@dataclass(frozen=True, slots=True, eq=False)
class ImageBatch:
    """Everything a launch reads but the normalise table; all tensors on one device."""

    data: torch.Tensor  # uint8 [bytes]
    descriptors: torch.Tensor  # int64 [jobs, FIELDS]
    tables: torch.Tensor  # int32 [words]: per axis table first [out], then weights [taps, out]
    tiles: int
    scratch_words: int
    """The largest intermediate of a tile, in pixels of one int32 word."""

    @classmethod
    def from_arrays(
        cls,
        sources: Sequence[NDArray[np.uint8]],
        jobs: Sequence[Job],
        parity: Parity,
        device: torch.device,
    ) -> "ImageBatch":
        """Copy uint8 [H, W, 3] or [H, W, 4] arrays into one buffer on `device`."""
        places, size = [], 0
        for source in sources:
            height, width, step = source.shape
            places.append(SourcePlace(size, (height, width), width * step, step))
            size += aligned(source.size)
        data = np.empty(max(size, 1), np.uint8)
        for source, place in zip(sources, places, strict=True):
            view = data[place.offset : place.offset + source.size]
            np.copyto(view.reshape(source.shape), source)
        return cls.from_buffer(torch.from_numpy(data).to(device), places, jobs, parity)

    @classmethod
    def from_buffer(
        cls,
        data: torch.Tensor,
        places: Sequence[SourcePlace],
        jobs: Sequence[Job],
        parity: Parity,
    ) -> "ImageBatch":
        """Describe images that are in a byte buffer already."""
        description = Description.of(places, jobs, parity)
        table, words = (torch.from_numpy(array).to(data.device) for array in description.arrays)
        return description.on(data, table, words)


@dataclass(frozen=True, slots=True, eq=False)
class Description:
    """A batch before it is on a device: the numpy arrays that a launch reads beside the images."""

    descriptors: NDArray[np.int64]  # [jobs, FIELDS]
    tables: NDArray[np.int32]  # [words]
    tiles: int
    scratch_words: int

    @classmethod
    def of(cls, places: Sequence[SourcePlace], jobs: Sequence[Job], parity: Parity) -> "Description":
        """The images stand, or will stand, at `places` of one buffer; a job's source indexes them."""
        pool = _TablePool()
        table = np.zeros((len(jobs), FIELDS), np.int64)
        tiles = scratch = 0
        for row, job in zip(table, jobs, strict=True):
            place = places[job.source]
            if place.size != job.piece.source:
                raise ValueError(f"source is {place.size}, its piece expects {job.piece.source}")
            axes = [
                axis_table(s, t, job.piece.resample, parity)
                for s, t in zip(job.piece.source, job.piece.target, strict=True)
            ]
            rows_first = vertical_first(job.piece.source, job.piece.target, parity)
            tiling = tiling_of(job.piece, axes[0].taps, axes[1].taps, rows_first)
            _describe(row, job, place, axes, pool, tiling, rows_first)
            row[Field.FIRST_TILE] = tiles
            tiles += math.prod(tiling.count(job.piece.canvas))
            scratch = max(scratch, _scratch_words(job.piece, axes, tiling, rows_first))
        return cls(table, pool.words(), tiles, scratch)

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """What `on` wants on the device, in its order."""
        return self.descriptors, self.tables

    def on(self, data: torch.Tensor, descriptors: torch.Tensor, tables: torch.Tensor) -> ImageBatch:
        """The batch, once its arrays are on the device of the buffer `data`."""
        return ImageBatch(data, descriptors, tables, self.tiles, self.scratch_words)


def tiling_of(piece: Piece, row_taps: int, column_taps: int, rows_first: bool) -> Tiling:
    """Tiles of about TILE_ROWS x TILE_COLUMNS whole patches, smaller where a tile would read much."""
    down, across = (max(s / t, 1 / 64) for s, t in zip(piece.source, piece.target, strict=True))
    rows = max(1, min(TILE_ROWS, int(READ_ROWS / down)))
    if rows_first:
        columns = (SCRATCH_WORDS / rows - column_taps) / max(across, 1.0)
    else:
        columns = SCRATCH_WORDS / (rows * down + row_taps)
    limits = (rows, max(8, min(TILE_COLUMNS, int(columns))))
    cell, cells = zip(
        *(
            _cells(patch, limit, side)
            for patch, limit, side in zip(piece.layout.patch, limits, piece.canvas, strict=True)
        ),
        strict=True,
    )
    return Tiling((cell[0], cell[1]), (cells[0], cells[1]))


def _cells(patch: int, limit: int, side: int) -> tuple[int, int]:
    """Side of a cell and how many make a tile: whole patches if one fits."""
    if patch > limit:
        return limit, 1
    return patch, min(limit // patch, side // patch)


class _TablePool:
    """Axis tables back to back, each once."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._parts: list[NDArray[np.int32]] = [np.zeros(0, np.int32)]
        self._size = 0

    def place(self, table: AxisTable) -> int:
        """Where a table begins, in words."""
        if id(table) not in self._places:
            part = np.concatenate([table.bounds[:, 0], table.weights.T.reshape(-1)])
            self._places[id(table)] = self._size
            self._parts.append(part)
            self._size += len(part)
        return self._places[id(table)]

    def words(self) -> NDArray[np.int32]:
        return np.concatenate(self._parts)


def _describe(
    row: NDArray[np.int64],
    job: Job,
    place: SourcePlace,
    axes: Sequence[AxisTable],
    pool: _TablePool,
    tiling: Tiling,
    rows_first: bool,
) -> None:
    piece, layout, strides = job.piece, job.piece.layout, job.strides
    cell, cells = tiling.cell, tiling.cells
    values: dict[Field, Any] = {
        Field.SOURCE: place.offset,
        Field.PITCH: place.pitch,
        Field.STEP: place.step,
        Field.SOURCE_H: piece.source[0],
        Field.SOURCE_W: piece.source[1],
        Field.TARGET_H: piece.target[0],
        Field.TARGET_W: piece.target[1],
        Field.OFFSET_Y: piece.offset[0],
        Field.OFFSET_X: piece.offset[1],
        Field.CANVAS_H: piece.canvas[0],
        Field.CANVAS_W: piece.canvas[1],
        Field.ROWS_TABLE: pool.place(axes[0]),
        Field.ROWS_TAPS: axes[0].taps,
        Field.COLUMNS_TABLE: pool.place(axes[1]),
        Field.COLUMNS_TAPS: axes[1].taps,
        Field.ROWS_FIRST: rows_first,
        Field.PATCH_H: layout.patch[0],
        Field.PATCH_W: layout.patch[1],
        Field.MERGE: layout.merge,
        Field.COPIES: layout.temporal,
        Field.GROUPS_ACROSS: piece.grid[1] // layout.merge,
        Field.START: job.start,
        Field.TO_PATCH: strides.row,
        Field.TO_CHANNEL: strides.c,
        Field.TO_COPY: strides.t,
        Field.TO_Y: strides.y,
        Field.TO_X: strides.x,
        Field.PAD_RED: piece.pad[0],
        Field.PAD_GREEN: piece.pad[1],
        Field.PAD_BLUE: piece.pad[2],
        Field.TILES_ACROSS: tiling.count(piece.canvas)[1],
        Field.CELL_H: cell[0],
        Field.CELL_W: cell[1],
        Field.CELLS_DOWN: cells[0],
        Field.CELLS_ACROSS: cells[1],
        Field.BY_PATCH_H: _reciprocal(layout.patch[0]),
        Field.BY_PATCH_W: _reciprocal(layout.patch[1]),
        Field.BY_MERGE: _reciprocal(layout.merge),
        Field.BY_CELL_SIZE: _reciprocal(cell[0] * cell[1]),
        Field.BY_CELL_W: _reciprocal(cell[1]),
        Field.BY_CELLS_ACROSS: _reciprocal(cells[1]),
    }
    for field, value in values.items():
        row[field] = value


def _reciprocal(divisor: int) -> int:
    """m with n // divisor == n * m >> 32 while n * divisor < 2 ** 32; 0 stands for division by 1."""
    return 0 if divisor == 1 else (1 << 32) // divisor + 1


def _scratch_words(piece: Piece, axes: Sequence[AxisTable], tiling: Tiling, rows_first: bool) -> int:
    """Pixels between the passes of the largest tile."""
    rows, columns = (min(side, target) for side, target in zip(tiling.size, piece.target, strict=True))
    if rows_first:
        return rows * _most_read(axes[1], columns, piece.source[1])
    return _most_read(axes[0], rows, piece.source[0]) * columns


def _most_read(table: AxisTable, outputs: int, limit: int) -> int:
    """Most source pixels that any `outputs` neighbours read."""
    first = table.bounds[:, 0].astype(np.int64)
    last = np.minimum(first + table.taps, limit)
    return int((last[outputs - 1 :] - first[: len(first) - outputs + 1]).max())
