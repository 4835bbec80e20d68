"""The descriptor tables of a PNG batch: images, and the segments into which filters cut them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from patchloom_kernels.png.inflate import inflate_rows
from patchloom_kernels.png.parse import Png
from patchloom_kernels.png.pixel_table import emission, pixel_table
from patchloom_kernels.unsupported import Unsupported

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]

PIXELS = 512
TABLE_ENTRIES = 258


class Image(IntEnum):
    """Columns of the image table. FILTERED, ROWS, OUTPUT: first bytes; ENTRIES: of its palette."""

    FILTERED = 0
    ROWS = 1
    ROW_BYTES = 2
    BPP = 3
    WIDTH = 4
    HEIGHT = 5
    EMISSION = 6
    DEPTH = 7
    OUTPUT = 8
    FIRST_TILE = 9
    ENTRIES = 10


class Segment(IntEnum):
    """Columns of a segment table: image, first row, number of rows."""

    IMAGE = 0
    FIRST_ROW = 1
    COUNT = 2


@dataclass(frozen=True, slots=True)
class FilteredPng:
    """An inflated image: `rows` is [H, 1 + row_bytes] uint8, every row behind its filter type 0..4."""

    png: Png
    rows: Bytes = field(repr=False)


def inflate_png(png: Png) -> FilteredPng:
    """Inflate on the host; Unsupported for damaged streams, unknown filters and giant images."""
    if png.width * png.height >= 1 << 30 or png.row_bytes >= 1 << 24:
        raise Unsupported("png too large for the device")
    rows = inflate_rows(png)
    if rows[:, 0].max() > 4:
        raise Unsupported("png filter type")
    return FilteredPng(png, rows)


@dataclass(frozen=True, slots=True)
class Plan:
    """The tables of a batch."""

    images: Int64s = field(repr=False)  # [images, Image]
    sums: Int64s = field(repr=False)  # [segments of None, Sub and Up only, Segment]
    waves: Int64s = field(repr=False)  # [segments with Average or Paeth, Segment]
    tables: npt.NDArray[np.int32] = field(repr=False)  # [images, TABLE_ENTRIES]
    pixel_image: npt.NDArray[np.int32] = field(repr=False)  # [pixel tiles]
    row_bytes: int  # of all images
    longest_row: int


def make_plan(batch: Sequence[FilteredPng], offsets: Sequence[int], background: tuple[int, int, int]) -> Plan:
    """Tables for inflated images; image i begins at byte offsets[i] of the output."""
    images, sums, waves, tables = [], [], [], []
    filtered = unfiltered = tiles = 0
    for index, (image, offset) in enumerate(zip(batch, offsets, strict=True)):
        png = image.png
        entries = len(png.palette) if png.palette is not None else 256
        where = [filtered, unfiltered, png.row_bytes, png.bpp, png.width, png.height]
        images.append([*where, emission(png), png.depth, offset, tiles, entries])
        tables.append(pixel_table(png, background).view(np.int32))
        plain, wavy = _segments(index, image.rows[:, 0])
        sums.append(plain)
        waves.append(wavy)
        filtered += png.filtered_bytes
        unfiltered += png.height * png.row_bytes
        tiles += -(-png.width * png.height // PIXELS)
    table = np.array(images, np.int64)
    per_image = -(-table[:, Image.WIDTH] * table[:, Image.HEIGHT] // PIXELS)
    return Plan(
        images=table,
        sums=np.concatenate(sums),
        waves=np.concatenate(waves),
        tables=np.stack(tables),
        pixel_image=np.repeat(np.arange(len(table), dtype=np.int32), per_image),
        row_bytes=unfiltered,
        longest_row=int(table[:, Image.ROW_BYTES].max()),
    )


def _segments(index: int, kinds: Bytes) -> tuple[Int64s, Int64s]:
    """[n, Segment] segments without and with Average or Paeth."""
    starts = np.flatnonzero((kinds < 2) | (np.arange(len(kinds)) == 0))
    rows = np.diff(np.append(starts, len(kinds)))
    wavy = np.maximum.reduceat(kinds, starts) > 2
    segments = np.stack([np.full(len(starts), index), starts, rows], 1).astype(np.int64)
    return segments[~wavy], segments[wavy]
