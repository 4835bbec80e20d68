"""The marker walk of a JPEG: tables, components and where the entropy-coded bytes lie; no decoding."""

import re
import struct
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from patchloom_kernels.unsupported import Unsupported

ZIGZAG = np.array(
    sorted(range(64), key=lambda i: (i // 8 + i % 8, i if (i // 8 + i % 8) % 2 else -i)), np.int32
)
"""Natural position (row * 8 + column) of the k-th coefficient in the stream."""

# (h, v) of the first component; the others have (1, 1).
_SAMPLINGS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1))
# In the entropy-coded bytes FF stands only before 00 and restart markers; the next marker ends them.
_SCAN_END = re.compile(rb"\xff[^\x00\xd0-\xd7]", re.DOTALL)


class Colour(StrEnum):
    """What the components are, by libjpeg's rule (jdapimin.c, default_decompress_parms)."""

    GRAY = "gray"
    YCC = "ycc"
    RGB = "rgb"


@dataclass(frozen=True, slots=True)
class HuffmanTable:
    """A canonical Huffman code: `counts[l]` codes of l + 1 bits, their symbols in order of code."""

    counts: bytes  # [16]
    symbols: bytes


@dataclass(frozen=True, slots=True)
class Component:
    """One colour component: its share of an MCU, its quantisation and its Huffman codes."""

    h: int
    v: int
    quant: npt.NDArray[np.uint8] = field(repr=False)  # [64] in natural order
    dc: HuffmanTable = field(repr=False)
    ac: HuffmanTable = field(repr=False)


@dataclass(frozen=True, slots=True)
class Jpeg:
    """A baseline, 8 bit, single-scan JPEG of one or three components.

    `scan` are the entropy-coded bytes, stuffing and restart markers included, without EOI.
    `restart` is the restart interval in MCUs, 0 for none. A single component has h = v = 1.
    """

    width: int
    height: int
    colour: Colour
    components: tuple[Component, ...]
    restart: int
    scan: memoryview = field(repr=False)

    @property
    def mcus(self) -> tuple[int, int]:
        """MCUs (down, across)."""
        h, v = self.components[0].h, self.components[0].v
        return -(-self.height // (8 * v)), -(-self.width // (8 * h))

    @property
    def blocks_per_mcu(self) -> int:
        """Blocks of all components in one MCU."""
        return sum(c.h * c.v for c in self.components)

    def plane_size(self, component: int) -> tuple[int, int]:
        """(height, width) in samples of a component, without the padding to whole MCUs."""
        first, c = self.components[0], self.components[component]
        return -(-self.height * c.v // first.v), -(-self.width * c.h // first.h)


def parse_jpeg(data: bytes) -> Jpeg:
    """Describe a JPEG, or raise Unsupported for whatever Pillow must judge. Linear in len(data).

    Only files without any oddity are accepted: every segment well formed, all tables present, one
    interleaved scan that ends in EOI. What follows EOI is ignored, as by Pillow.
    """
    if not data.startswith(b"\xff\xd8\xff"):
        raise Unsupported("no jpeg signature")
    view, walk, position = memoryview(data), _Walk(), 2
    while True:
        if position + 4 > len(data):
            raise Unsupported("truncated jpeg header")
        escape, marker, length = struct.unpack_from(">BBH", data, position)
        end = position + 2 + length
        if escape != 0xFF or length < 2:
            raise Unsupported("jpeg marker expected")
        if end > len(data):
            raise Unsupported("truncated jpeg header")
        body = bytes(view[position + 4 : end])
        if marker == 0xDA:
            return walk.finish(body, _scan(data, end))
        walk.segment(marker, body)
        position = end


def _scan(data: bytes, start: int) -> memoryview:
    found = _SCAN_END.search(data, start)
    if found is None:
        raise Unsupported("jpeg without end marker")
    if found[0] != b"\xff\xd9":
        raise Unsupported("jpeg of several scans")
    return memoryview(data)[start : found.start()]


@dataclass(frozen=True, slots=True)
class _Frame:
    height: int
    width: int
    components: tuple[tuple[int, int, int, int], ...]  # (id, h, v, quantisation table)


class _Walk:
    """The state of one marker walk."""

    def __init__(self) -> None:
        self.frame: _Frame | None = None
        self.quant: dict[int, npt.NDArray[np.uint8]] = {}
        self.huffman: dict[int, HuffmanTable] = {}  # key: class << 4 | destination
        self.restart = 0
        self.jfif = False
        self.adobe: int | None = None

    def segment(self, marker: int, body: bytes) -> None:
        """Take one segment before the scan."""
        if marker == 0xC0 and self.frame is None:
            self.frame = _frame(body)
        elif marker == 0xC4:
            self._huffman(body)
        elif marker == 0xDB:
            self._quantisation(body)
        elif marker == 0xDD and len(body) == 2:
            (self.restart,) = struct.unpack(">H", body)
        elif marker == 0xE0:
            self.jfif |= len(body) >= 14 and body.startswith(b"JFIF\0")
        elif marker == 0xEE:
            if len(body) >= 12 and body.startswith(b"Adobe"):
                self.adobe = body[11]
        elif marker != 0xFE and not 0xE0 <= marker <= 0xEF:
            raise Unsupported(_NOT_BASELINE.get(marker, "jpeg marker out of place"))

    def _quantisation(self, body: bytes) -> None:
        if len(body) % 65:
            raise Unsupported("jpeg quantisation table size")
        for start in range(0, len(body), 65):
            if body[start] > 3:
                raise Unsupported("jpeg quantisation table of 16 bits")
            table = np.zeros(64, np.uint8)
            table[ZIGZAG] = np.frombuffer(body, np.uint8, 64, start + 1)
            self.quant[body[start]] = table

    def _huffman(self, body: bytes) -> None:
        position = 0
        while position < len(body):
            counts = body[position + 1 : position + 17]
            symbols = body[position + 17 : position + 17 + sum(counts)]
            if len(counts) < 16 or len(symbols) < sum(counts) or body[position] & 0xEC:
                raise Unsupported("jpeg huffman table size")
            _check_code(counts, symbols, dc=body[position] < 4)
            self.huffman[body[position]] = HuffmanTable(counts, symbols)
            position += 17 + len(symbols)

    def finish(self, scan_header: bytes, scan: memoryview) -> Jpeg:
        """The description, once the scan header has been met."""
        if self.frame is None:
            raise Unsupported("jpeg scan without frame")
        frame, count = self.frame, len(self.frame.components)
        if len(scan_header) != 4 + 2 * count or scan_header[0] != count:
            raise Unsupported("jpeg of several scans")
        if scan_header[-3:] != b"\0\x3f\0":
            raise Unsupported("jpeg scan parameters")
        components = tuple(
            self._component(described, scan_header[1 + 2 * i], scan_header[2 + 2 * i], count)
            for i, described in enumerate(frame.components)
        )
        jpeg = Jpeg(frame.width, frame.height, self._colour(), components, self.restart, scan)
        down, across = jpeg.mcus
        if len(scan) * 8 < 2 * down * across * jpeg.blocks_per_mcu:
            raise Unsupported("jpeg scan too short")
        return jpeg

    def _component(
        self, described: tuple[int, int, int, int], name: int, tables: int, count: int
    ) -> Component:
        identity, h, v, quant = described
        if name != identity:
            raise Unsupported("jpeg components out of order")
        dc, ac = self.huffman.get(tables >> 4), self.huffman.get(0x10 | tables & 15)
        if tables & 15 > 3 or dc is None or ac is None or quant not in self.quant:
            raise Unsupported("jpeg table missing")
        if count == 1:
            h = v = 1
        return Component(h, v, self.quant[quant], dc, ac)

    def _colour(self) -> Colour:
        assert self.frame is not None
        names = bytes(c[0] for c in self.frame.components)
        if len(names) == 1:
            return Colour.GRAY
        if self.jfif:
            return Colour.YCC
        if self.adobe is not None:
            return Colour.RGB if self.adobe == 0 else Colour.YCC
        return Colour.RGB if names == b"RGB" else Colour.YCC


_NOT_BASELINE = {
    0xC1: "extended sequential jpeg",
    0xC2: "progressive jpeg",
    0xC3: "lossless jpeg",
    0xC9: "arithmetic jpeg",
    0xCA: "arithmetic jpeg",
    0xCC: "arithmetic jpeg",
}


def _frame(body: bytes) -> _Frame:
    if len(body) < 6:
        raise Unsupported("jpeg frame size")
    precision, height, width, count = struct.unpack_from(">BHHB", body)
    if precision != 8:
        raise Unsupported("jpeg not of 8 bits")
    if not height or not width:
        raise Unsupported("jpeg size")
    if count not in (1, 3):
        raise Unsupported("jpeg not of 1 or 3 components")
    if len(body) != 6 + 3 * count:
        raise Unsupported("jpeg frame size")
    triples = [body[6 + 3 * i : 9 + 3 * i] for i in range(count)]
    components = tuple((t[0], t[1] >> 4, t[1] & 15, t[2]) for t in triples)
    factors = [c[1:3] for c in components]
    if len({c[0] for c in components}) != count:
        raise Unsupported("jpeg component twice")
    if count == 1:
        if not (1 <= factors[0][0] <= 4 and 1 <= factors[0][1] <= 4):
            raise Unsupported("jpeg sampling")
    elif factors[0] not in _SAMPLINGS or factors[1:] != [(1, 1), (1, 1)]:
        raise Unsupported("jpeg sampling")
    return _Frame(height, width, components)


def _check_code(counts: bytes, symbols: bytes, dc: bool) -> None:
    """libjpeg's checks (jdhuff.c, jpeg_make_d_derived_tbl): no code of all ones, DC sizes to 15."""
    code = 0
    for length, count in enumerate(counts, 1):
        code += count
        if count and code >= 1 << length:
            raise Unsupported("jpeg huffman code")
        code <<= 1
    if len(symbols) > 256 or (dc and any(s > 15 for s in symbols)):
        raise Unsupported("jpeg huffman symbols")
