# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False
# mypy: disallow-untyped-calls=False, disallow-incomplete-defs=False
"""Resize, normalise and cut into patches in Triton: one launch for many images of many sizes.

Programs walk over the tiles of all canvases. For each, the first pass puts its pixels into the program's
own scratch, which is small enough to stay in L1 and L2; after a barrier the second pass takes them from
there in the order of the output, so that neighbours in a patch are written by neighbouring lanes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from patchloom_kernels.filters import AxisTable, axis_table, vertical_first
from patchloom_kernels.image_batch import FIELDS, Field, ImageBatch, tiling_of
from patchloom_kernels.layout import PAD_ENTRY, Job, Parity, PatchLayout, Piece
from patchloom_kernels.normalize import Dtype, NormalizeTable
from patchloom_kernels.resize import HALF, first_pass, to_level

WARPS = 4
BLOCK_ROWS, BLOCK_COLUMNS, BLOCK = 4, 128, 512
"""Pixels of a step of the first and of the second pass. Twice the rows need a third more registers."""
PROGRAMS_PER_PROCESSOR = 5
"""What 96 registers in 128 threads leave room for."""

_F = tl.constexpr(Field)
_FIELDS = tl.constexpr(FIELDS)
_ENTRIES = tl.constexpr(257)


@triton.jit
def _job_of(tile, descriptors, jobs):
    """The last job whose first tile is not behind `tile`."""
    low = 0
    high = jobs - 1
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(descriptors + middle * _FIELDS) <= tile:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def _field(descriptor, index: tl.constexpr):
    return tl.load(descriptor + index).to(tl.int32)


@triton.jit
def _divide(n, descriptor, index: tl.constexpr):
    """n // d by the reciprocal of d in a field; see image_batch._reciprocal."""
    reciprocal = tl.load(descriptor + index).to(tl.uint32)
    quotient = tl.umulhi(n.to(tl.uint32), reciprocal).to(tl.int32)
    return tl.where(reciprocal == 0, n, quotient)


@triton.jit
def _read_range(table, begin, end, taps, limit):
    """First and end of the source pixels that the outputs from `begin` to `end` read."""
    last = tl.load(table + end - 1) + taps
    return tl.load(table + begin), tl.minimum(last, limit)


@triton.jit
def _place(y, x, d):
    """Element index of channel 0, copy 0 of a canvas pixel."""
    patch_y = _divide(y, d, _F.value.BY_PATCH_H.value)
    patch_x = _divide(x, d, _F.value.BY_PATCH_W.value)
    group_y = _divide(patch_y, d, _F.value.BY_MERGE.value)
    group_x = _divide(patch_x, d, _F.value.BY_MERGE.value)
    merge = _field(d, _F.value.MERGE.value)
    group = group_y * _field(d, _F.value.GROUPS_ACROSS.value) + group_x
    inner_y, inner_x = patch_y - group_y * merge, patch_x - group_x * merge
    patch = (group * merge + inner_y) * merge + inner_x
    row = (y - patch_y * _field(d, _F.value.PATCH_H.value)).to(tl.int64)
    column = (x - patch_x * _field(d, _F.value.PATCH_W.value)).to(tl.int64)
    place = tl.load(d + _F.value.START.value) + patch.to(tl.int64) * tl.load(d + _F.value.TO_PATCH.value)
    place += row * tl.load(d + _F.value.TO_Y.value)
    return place + column * tl.load(d + _F.value.TO_X.value)


@triton.jit
def _write(
    level,
    inside,
    live,
    place,
    d,
    entries,
    out,
    CHANNEL: tl.constexpr,
    TABLE: tl.constexpr,
):
    """Normalise one channel of some pixels and write all its temporal copies."""
    index = tl.where(inside, level, _field(d, _F.value.PAD_RED.value + CHANNEL))
    if TABLE:
        value = tl.load(entries + CHANNEL * _ENTRIES + index, mask=live, other=0)
    else:
        value = tl.where(index > 255, 0, index).to(out.dtype.element_ty)
    at = out + place + CHANNEL * tl.load(d + _F.value.TO_CHANNEL.value)
    to_copy = tl.load(d + _F.value.TO_COPY.value)
    copies = _field(d, _F.value.COPIES.value)
    while copies > 0:
        tl.store(at, value, mask=live)
        at += to_copy
        copies -= 1


# Counts of 1 or of whole sixteens get no kernel of their own: all are compiled at start-up.
@triton.jit(do_not_specialize=["scratch_words", "jobs", "tiles"])
def resize_patchify_kernel(
    data,  # uint8 pointer
    descriptors,  # int64 pointer [jobs, FIELDS]
    tables,  # int32 pointer
    entries,  # pointer [3, 257] of the output's element, unused without TABLE
    out,  # pointer; an element is moved as an integer of its size
    scratch,  # int32 pointer [programs, scratch_words]
    scratch_words,
    jobs,
    tiles,
    TABLE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    slot = scratch + tl.program_id(0).to(tl.int64) * scratch_words
    tile = tl.program_id(0)
    while tile < tiles:
        d = descriptors + _job_of(tile, descriptors, jobs) * _FIELDS
        number = tile - _field(d, _F.value.FIRST_TILE.value)
        tile_y = number // _field(d, _F.value.TILES_ACROSS.value)
        tile_x = number - tile_y * _field(d, _F.value.TILES_ACROSS.value)
        cell_h, cell_w = _field(d, _F.value.CELL_H.value), _field(d, _F.value.CELL_W.value)
        cells_across = _field(d, _F.value.CELLS_ACROSS.value)
        cells = _field(d, _F.value.CELLS_DOWN.value) * cells_across
        canvas_h, canvas_w = _field(d, _F.value.CANVAS_H.value), _field(d, _F.value.CANVAS_W.value)
        y0 = tile_y * cell_h * _field(d, _F.value.CELLS_DOWN.value)
        x0 = tile_x * cell_w * cells_across
        y1 = tl.minimum(y0 + cell_h * _field(d, _F.value.CELLS_DOWN.value), canvas_h)
        x1 = tl.minimum(x0 + cell_w * cells_across, canvas_w)

        # the part of the picture that the tile shows
        offset_y, offset_x = _field(d, _F.value.OFFSET_Y.value), _field(d, _F.value.OFFSET_X.value)
        target_h, target_w = _field(d, _F.value.TARGET_H.value), _field(d, _F.value.TARGET_W.value)
        top, bottom = tl.maximum(y0 - offset_y, 0), tl.minimum(y1 - offset_y, target_h)
        left, right = tl.maximum(x0 - offset_x, 0), tl.minimum(x1 - offset_x, target_w)
        seen = (bottom > top) & (right > left)
        source_h, source_w = _field(d, _F.value.SOURCE_H.value), _field(d, _F.value.SOURCE_W.value)
        rows_table = tables + tl.load(d + _F.value.ROWS_TABLE.value)
        columns_table = tables + tl.load(d + _F.value.COLUMNS_TABLE.value)
        rows_taps = _field(d, _F.value.ROWS_TAPS.value)
        columns_taps = _field(d, _F.value.COLUMNS_TAPS.value)
        rows_first = _field(d, _F.value.ROWS_FIRST.value) != 0
        image = data + tl.load(d + _F.value.SOURCE.value)
        pitch = tl.load(d + _F.value.PITCH.value)
        step = _field(d, _F.value.STEP.value)

        # index of an intermediate pixel: along the second pass's axis and across it
        origin = 0
        length = 1
        along = 1
        across = 1
        if seen:
            if rows_first:
                origin, end = _read_range(columns_table, left, right, columns_taps, source_w)
                length = end - origin
                across = length
                first_pass(
                    image, pitch, step, rows_table, target_h, rows_taps, source_h,
                    top, origin, bottom - top, length, slot,
                    True, BLOCK_ROWS, BLOCK_COLUMNS,
                )  # fmt: skip
            else:
                origin, end = _read_range(rows_table, top, bottom, rows_taps, source_h)
                length = end - origin
                along = right - left
                first_pass(
                    image, pitch, step, columns_table, target_w, columns_taps, source_w,
                    origin, left, length, right - left, slot,
                    False, BLOCK_ROWS, BLOCK_COLUMNS,
                )  # fmt: skip
        tl.debug_barrier()

        table = tl.where(rows_first, columns_table, rows_table)
        taps = tl.where(rows_first, columns_taps, rows_taps)
        outs = tl.where(rows_first, target_w, target_h)
        size = cells * cell_h * cell_w
        begin = 0
        while begin < size:
            element = begin + tl.arange(0, BLOCK)
            cell = _divide(element, d, _F.value.BY_CELL_SIZE.value)
            rest = element - cell * (cell_h * cell_w)
            cell_row = _divide(rest, d, _F.value.BY_CELL_W.value)
            cell_y = _divide(cell, d, _F.value.BY_CELLS_ACROSS.value)
            y = y0 + cell_y * cell_h + cell_row
            x = x0 + (cell - cell_y * cells_across) * cell_w + rest - cell_row * cell_w
            live = (element < size) & (y < y1) & (x < x1)
            row, column = y - offset_y, x - offset_x
            inside = live & (row >= top) & (row < bottom) & (column >= left) & (column < right)
            output = tl.where(rows_first, column, row)
            other = tl.where(rows_first, row - top, column - left)
            first = tl.load(table + output, mask=inside, other=0) - origin
            red = tl.full((BLOCK,), HALF, tl.int32)
            green = red
            blue = red
            tap = 0
            while tap < taps:
                weight = tl.load(table + (1 + tap) * outs + output, mask=inside, other=0)
                at = tl.minimum(first + tap, length - 1) * along + other * across
                word = tl.load(slot + at, mask=inside, other=0)
                red += weight * (word & 255)
                green += weight * ((word >> 8) & 255)
                blue += weight * ((word >> 16) & 255)
                tap += 1
            place = _place(y, x, d)
            _write(to_level(red), inside, live, place, d, entries, out, 0, TABLE)
            _write(to_level(green), inside, live, place, d, entries, out, 1, TABLE)
            _write(to_level(blue), inside, live, place, d, entries, out, 2, TABLE)
            begin += BLOCK
        # the next tile writes where slower warps may still read
        tl.debug_barrier()
        tile += tl.num_programs(0)


def launch(batch: ImageBatch, entries: torch.Tensor, out: torch.Tensor, programs: int) -> None:
    """Run the kernel; `entries` and `out` are of one integer type, `entries` is empty for levels."""
    if batch.tiles == 0:
        return
    programs = min(programs, batch.tiles)
    scratch = torch.empty(programs * batch.scratch_words, dtype=torch.int32, device=out.device)
    resize_patchify_kernel[(programs,)](
        batch.data,
        batch.descriptors,
        batch.tables,
        entries,
        out,
        scratch,
        batch.scratch_words,
        len(batch.descriptors),
        batch.tiles,
        TABLE=entries.numel() > 0,
        BLOCK_ROWS=BLOCK_ROWS,
        BLOCK_COLUMNS=BLOCK_COLUMNS,
        BLOCK=BLOCK,
        num_warps=WARPS,
    )


def resize_patchify_batch(
    batch: ImageBatch, table: NormalizeTable | None, out: torch.Tensor, dtype: Dtype
) -> None:
    """Write every job's patches into the flat `out` [elements] of `dtype` on the batch's device.

    The same bytes as `reference.resize_patchify`. Without a table `dtype` is UINT8 and levels are
    written. The launch is asynchronous, as launches are.
    """
    if out.dim() != 1 or not out.is_contiguous() or out.dtype != getattr(torch, dtype):
        raise ValueError(f"out must be flat, contiguous and {dtype}, got {out.dtype}")
    if (table is None) != (dtype is Dtype.UINT8):
        raise ValueError(f"{dtype} patches need {'no' if table else 'a'} table")
    entries = torch.from_numpy(entries_of(table, dtype)).to(out.device)
    launch_patches(batch, entries, out)


def entries_of(table: NormalizeTable | None, dtype: Dtype) -> npt.NDArray[Any]:
    """The entries [3, 257] of a table as integers of the size of `dtype`; nothing for levels."""
    if table is None:
        return np.zeros(0, np.uint8)
    return table.to(dtype).copy().view(f"i{dtype.numpy.itemsize}")


def launch_patches(batch: ImageBatch, entries: torch.Tensor, out: torch.Tensor) -> None:
    """Run the kernel on the flat `out`, with `entries_of` a table that are on its device."""
    word = entries.dtype if entries.numel() else torch.uint8
    launch(batch, entries, out.view(word), _programs(out.device))


def warm_batch(dtypes: Sequence[Dtype], device: torch.device) -> None:
    """Compile the kernel for these output types by one tiny launch each."""
    piece = Piece((8, 8), (4, 4), (4, 4), PatchLayout((4, 4)))
    source = np.zeros((8, 8, 3), np.uint8)
    batch = ImageBatch.from_arrays([source], [Job.contiguous(0, piece, 0)], Parity.ATEN_U8, device)
    for dtype in dtypes:
        values = np.zeros((3, PAD_ENTRY + 1), np.float32)
        table = None if dtype is Dtype.UINT8 else NormalizeTable(values)
        out = torch.empty(piece.rows * 48, dtype=getattr(torch, dtype), device=device)
        resize_patchify_batch(batch, table, out, dtype)


def _programs(device: torch.device) -> int:
    if device.type != "cuda":
        return 4
    return PROGRAMS_PER_PROCESSOR * int(torch.cuda.get_device_properties(device).multi_processor_count)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a launch moves and computes, counted from its jobs."""

    source_bytes: int
    """Source pixels in use, each once."""
    read_bytes: int
    """Source pixels as the tiles ask for them: their seams are read by both neighbours."""
    output_bytes: int
    scratch_bytes: int
    """Intermediate words, written once and read once per tap; they stay in L1 and L2."""
    multiply_adds: int

    @property
    def floor_bytes(self) -> int:
        """The least that any kernel moves: the source in, the patches out."""
        return self.source_bytes + self.output_bytes

    @property
    def over_floor(self) -> float:
        """Bytes moved against the floor, with no seam found in a cache."""
        return (self.read_bytes + self.output_bytes) / self.floor_bytes


def traffic(jobs: Sequence[Job], steps: Sequence[int], dtype: Dtype, parity: Parity) -> Traffic:
    """Count a launch; `steps` are the bytes a pixel of each source."""
    parts = [_job_traffic(job, steps[job.source], dtype, parity) for job in jobs]
    return Traffic(*(sum(values) for values in zip(*parts, strict=True)))


def _job_traffic(job: Job, step: int, dtype: Dtype, parity: Parity) -> tuple[int, ...]:
    piece = job.piece
    rows, columns = (
        axis_table(s, t, piece.resample, parity) for s, t in zip(piece.source, piece.target, strict=True)
    )
    rows_first = vertical_first(piece.source, piece.target, parity)
    tile = tiling_of(piece, rows.taps, columns.taps, rows_first).size
    seen_rows, tile_rows, all_rows = _reads(rows, tile[0], piece.canvas[0], piece.offset[0])
    seen_columns, tile_columns, all_columns = _reads(columns, tile[1], piece.canvas[1], piece.offset[1])
    between = seen_rows * tile_columns if rows_first else tile_rows * seen_columns
    taps = (rows.taps, columns.taps) if rows_first else (columns.taps, rows.taps)
    pixels = seen_rows * seen_columns
    values = piece.rows * piece.layout.row_size()
    return (
        all_rows * all_columns * step,
        tile_rows * tile_columns * step,
        values * dtype.numpy.itemsize,
        4 * (between + pixels * taps[1]),
        3 * (between * taps[0] + pixels * taps[1]),
    )


def _reads(table: AxisTable, tile: int, canvas: int, offset: int) -> tuple[int, int, int]:
    """Along one axis: outputs on the canvas, source pixels summed over tiles, and each once."""
    begin = np.clip(np.arange(0, canvas, tile) - offset, 0, len(table.bounds))
    end = np.clip(np.minimum(np.arange(0, canvas, tile) + tile, canvas) - offset, 0, len(table.bounds))
    begin, end = begin[end > begin], end[end > begin]
    if not len(begin):
        return 0, 0, 0
    first, behind = table.bounds[begin, 0], table.bounds[end - 1].sum(axis=1)
    return int((end - begin).sum()), int((behind - first).sum()), int(behind.max() - first.min())
