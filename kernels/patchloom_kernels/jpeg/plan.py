"""The descriptor tables of a batch: what the kernels know of its streams, images and planes.

All tables are built in numpy without touching an entropy-coded byte, but for a search for restart
markers in files that announce them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from patchloom_kernels.jpeg.parse import Colour, HuffmanTable, Jpeg
from patchloom_kernels.jpeg.tables import lookup_table
from patchloom_kernels.unsupported import Unsupported

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

TILE_BYTES = 1024
DCT_BLOCKS = 32
PIXELS = 512


class Stream(IntEnum):
    """Columns of the stream table: byte ranges, lanes and blocks of a restart interval."""

    SOURCE = 0
    LENGTH = 1
    WORD = 2
    FIRST_LANE = 3
    LANES = 4
    IMAGE = 5
    FIRST_BLOCK = 6
    BLOCKS = 7
    FIRST_TILE = 8


class Image(IntEnum):
    """Columns of the image table. COLOUR: 0 gray, 1 YCC, 2 RGB. OUTPUT: first byte of the pixels."""

    BLOCKS_PER_MCU = 0
    COMPONENTS = 1
    COLOUR = 2
    WIDTH = 3
    HEIGHT = 4
    OUTPUT = 5
    FIRST_PLANE = 6
    LOG_H = 7
    LOG_V = 8
    TRIANGLE_H = 9
    TRIANGLE_V = 10
    FIRST_TILE = 11


class Plane(IntEnum):
    """Columns of the plane table. FIRST_BLOCK is the image's, IN_MCU the component's first in an MCU."""

    FIRST_BLOCK = 0
    BLOCKS_PER_MCU = 1
    IN_MCU = 2
    H = 3
    V = 4
    MCUS_ACROSS = 5
    BLOCKS_ACROSS = 6
    BLOCKS = 7
    SAMPLES = 8
    HEIGHT = 9
    WIDTH = 10
    FIRST_TILE = 11


SLOTS = 16
"""Room for the blocks of an MCU; each has the offsets of its DC and its AC table."""

_COLOUR = {Colour.GRAY: 0, Colour.YCC: 1, Colour.RGB: 2}
_RESTART = re.compile(rb"\xff[\xd0-\xd7]")
# State words hold a bit position in 31 bits.
_MAX_STREAM = 1 << 27


@dataclass(frozen=True, slots=True)
class Plan:
    """The tables of a batch, and how much memory each stage needs."""

    streams: Int64s = field(repr=False)  # [streams, Stream]
    images: Int64s = field(repr=False)  # [images, Image]
    planes: Int64s = field(repr=False)  # [planes, Plane]
    quants: Int64s = field(repr=False)  # [planes, 64] natural order
    slots: Int64s = field(repr=False)  # [images, SLOTS, 2] offsets into lookup
    lookup: npt.NDArray[np.int16] = field(repr=False)
    tile_stream: Int32s = field(repr=False)  # [byte tiles] owner of each program of a stage
    lane_stream: Int32s = field(repr=False)  # [lanes]
    dct_plane: Int32s = field(repr=False)  # [DCT tiles]
    pixel_image: Int32s = field(repr=False)  # [pixel tiles]
    scans: tuple[memoryview, ...] = field(repr=False)  # concatenated they are the source bytes
    words: int  # of 32 bits, of destuffed streams
    blocks: int
    sample_bytes: int


def check_jpeg(jpeg: Jpeg) -> None:
    """Unsupported if the kernels cannot take this image: too long, or restart markers not in order."""
    if len(jpeg.scan) >= _MAX_STREAM or jpeg.width * jpeg.height >= 1 << 30:
        raise Unsupported("jpeg too large for the device")
    _cut(jpeg)


def make_plan(jpegs: Sequence[Jpeg], offsets: Sequence[int], subsequence: int) -> Plan:
    """Tables for images that passed `check_jpeg`; image i begins at byte offsets[i] of the output.

    `subsequence` is the number of bits that a lane owns.
    """
    luts = _Luts()
    streams: list[Int64s] = []
    images: list[list[int]] = []
    planes: list[list[int]] = []
    quants, slots = [], []
    source = words = lanes = tiles = blocks = samples = dct_tiles = pixel_tiles = 0
    for index, (jpeg, offset) in enumerate(zip(jpegs, offsets, strict=True)):
        down, across = jpeg.mcus
        per_mcu = jpeg.blocks_per_mcu
        table = _streams(jpeg, index, subsequence)
        table += np.array([source, 0, words, lanes, 0, 0, blocks, 0, tiles])
        streams.append(table)
        source += len(jpeg.scan)
        words = int(table[-1, Stream.WORD]) + _words(table[-1:, Stream.LENGTH])[0]
        lanes = int(table[-1, Stream.FIRST_LANE] + table[-1, Stream.LANES])
        tiles = int(table[-1, Stream.FIRST_TILE]) + _ceil(table[-1, Stream.LENGTH], TILE_BYTES)
        images.append(_image(jpeg, offset, len(planes), pixel_tiles))
        pixel_tiles += _ceil(jpeg.width * jpeg.height, PIXELS)
        in_mcu = 0
        for i, c in enumerate(jpeg.components):
            count = down * across * c.h * c.v
            plane = [blocks, per_mcu, in_mcu, c.h, c.v, across, across * c.h, count, samples]
            planes.append([*plane, *jpeg.plane_size(i), dct_tiles])
            quants.append(c.quant)
            in_mcu += c.h * c.v
            samples += count * 64
            dct_tiles += _ceil(count, DCT_BLOCKS)
        slots.append(luts.slots(jpeg))
        blocks += down * across * per_mcu
    all_streams = np.concatenate(streams)
    all_planes, all_images = np.array(planes, np.int64), np.array(images, np.int64)
    return Plan(
        streams=all_streams,
        images=all_images,
        planes=all_planes,
        quants=np.array(quants, np.int64),
        slots=np.array(slots, np.int64),
        lookup=luts.joined(),
        tile_stream=_owners(-(-all_streams[:, Stream.LENGTH] // TILE_BYTES)),
        lane_stream=_owners(all_streams[:, Stream.LANES]),
        dct_plane=_owners(-(-all_planes[:, Plane.BLOCKS] // DCT_BLOCKS)),
        pixel_image=_owners(-(-(all_images[:, Image.WIDTH] * all_images[:, Image.HEIGHT]) // PIXELS)),
        scans=tuple(jpeg.scan for jpeg in jpegs),
        words=words,
        blocks=blocks,
        sample_bytes=samples,
    )


def _ceil(count: int | np.int64, size: int) -> int:
    return -(-int(count) // size)


def _words(lengths: Int64s) -> Int64s:
    """Words reserved for streams of these lengths: a reader takes the word behind its own too."""
    words: Int64s = (lengths + 3) // 4 + 2
    return words


def _owners(counts: Int64s) -> Int32s:
    return np.repeat(np.arange(len(counts), dtype=np.int32), counts)


def _cut(jpeg: Jpeg) -> Int64s:
    """[streams, 2] start and end of each restart interval within the scan."""
    down, across = jpeg.mcus
    if not jpeg.restart:
        return np.array([[0, len(jpeg.scan)]], np.int64)
    marks = np.fromiter((m.start() for m in _RESTART.finditer(jpeg.scan)), np.int64)
    if len(marks) + 1 != _ceil(down * across, jpeg.restart):
        raise Unsupported("jpeg restart count")
    scan = np.frombuffer(jpeg.scan, np.uint8)
    if (scan[marks + 1] != 0xD0 + np.arange(len(marks)) % 8).any():
        raise Unsupported("jpeg restart order")
    ends = np.append(marks, len(scan))
    cuts = np.stack([np.concatenate([[0], marks + 2]), ends], 1)
    if (cuts[:, 0] >= cuts[:, 1]).any():
        raise Unsupported("jpeg restart interval without data")
    return cuts


def _streams(jpeg: Jpeg, index: int, subsequence: int) -> Int64s:
    """The rows of one image's streams, counted from the image's own start."""
    cuts = _cut(jpeg)
    down, across = jpeg.mcus
    total, per_mcu = down * across, jpeg.blocks_per_mcu
    interval = jpeg.restart or total
    lengths = cuts[:, 1] - cuts[:, 0]
    words, lanes = _words(lengths), -(-lengths * 8 // subsequence)
    first_mcu = np.arange(len(cuts)) * interval
    return np.stack(
        [
            cuts[:, 0],
            lengths,
            np.cumsum(words) - words,
            np.cumsum(lanes) - lanes,
            lanes,
            np.full(len(cuts), index),
            first_mcu * per_mcu,
            np.minimum(interval, total - first_mcu) * per_mcu,
            np.cumsum(-(-lengths // TILE_BYTES)) - -(-lengths // TILE_BYTES),
        ],
        1,
    ).astype(np.int64)


def _image(jpeg: Jpeg, offset: int, first_plane: int, first_tile: int) -> list[int]:
    first = jpeg.components[0]
    width = jpeg.plane_size(len(jpeg.components) - 1)[1]
    log_h, log_v = first.h.bit_length() - 1, first.v.bit_length() - 1
    # libjpeg replicates for factors other than 2 and for planes of at most two columns.
    triangle_h = int(first.h == 2 and width > 2)
    triangle_v = int(first.v == 2 and (first.h == 1 or triangle_h))
    return [
        jpeg.blocks_per_mcu,
        len(jpeg.components),
        _COLOUR[jpeg.colour],
        jpeg.width,
        jpeg.height,
        offset,
        first_plane,
        log_h,
        log_v,
        triangle_h,
        triangle_v,
        first_tile,
    ]


class _Luts:
    """The lookup tables of a batch, each distinct one once."""

    def __init__(self) -> None:
        self._offsets: dict[HuffmanTable, int] = {}
        self._tables: list[npt.NDArray[np.int16]] = []
        self._size = 0

    def slots(self, jpeg: Jpeg) -> Int64s:
        """[SLOTS, 2] table offsets of the blocks of an MCU."""
        rows = [[self._offset(c.dc), self._offset(c.ac)] for c in jpeg.components for _ in range(c.h * c.v)]
        slots = np.zeros((SLOTS, 2), np.int64)
        slots[: len(rows)] = rows
        return slots

    def joined(self) -> npt.NDArray[np.int16]:
        return np.concatenate(self._tables)

    def _offset(self, table: HuffmanTable) -> int:
        if table not in self._offsets:
            self._offsets[table] = self._size
            self._tables.append(lookup_table(table))
            self._size += len(self._tables[-1])
        return self._offsets[table]
