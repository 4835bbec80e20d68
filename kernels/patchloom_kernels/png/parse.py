"""The chunk walk of a PNG: what the image is and where its compressed rows lie."""

import re
import struct
import zlib
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from patchloom_kernels.unsupported import Unsupported

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHUNK_NAME = re.compile(rb"[A-Za-z]{4}")
# Pillow refuses a text or profile chunk that inflates beyond this, and text chunks beyond 64 of it.
_INFLATED_TEXT = 1 << 20
_TEXT_TOTAL = 64 * _INFLATED_TEXT
_ANIMATION = (b"acTL", b"fcTL", b"fdAT")
_LEAST = {b"gAMA": 4, b"cHRM": 32, b"sRGB": 1, b"pHYs": 9}


class Colour(IntEnum):
    """Colour type of the header."""

    GRAY = 0
    RGB = 2
    PALETTE = 3
    GRAY_ALPHA = 4
    RGBA = 6


_DEPTHS = {
    Colour.GRAY: (1, 2, 4, 8),
    Colour.RGB: (8,),
    Colour.PALETTE: (1, 2, 4, 8),
    Colour.GRAY_ALPHA: (8,),
    Colour.RGBA: (8,),
}
_CHANNELS = {
    Colour.GRAY: 1,
    Colour.RGB: 3,
    Colour.PALETTE: 1,
    Colour.GRAY_ALPHA: 2,
    Colour.RGBA: 4,
}


@dataclass(frozen=True, slots=True)
class Png:
    """A still, not interlaced PNG with at most 8 bits a sample.

    `palette` is [n, 4] uint8 RGBA, n <= 2**depth, of a palette image. `key` is the one colour of a
    gray or RGB image that is transparent. `idat` is the zlib stream in its pieces.
    """

    width: int
    height: int
    depth: int
    colour: Colour
    palette: npt.NDArray[np.uint8] | None
    key: tuple[int, ...] | None
    idat: tuple[memoryview, ...] = field(repr=False)

    @property
    def channels(self) -> int:
        """Samples of a pixel as stored."""
        return _CHANNELS[self.colour]

    @property
    def bpp(self) -> int:
        """Distance in bytes to the left neighbour that the filters mean."""
        return max(1, self.channels * self.depth // 8)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row without its filter byte."""
        return (self.width * self.channels * self.depth + 7) // 8

    @property
    def filtered_bytes(self) -> int:
        """Bytes of the inflated stream: every row behind its filter byte."""
        return self.height * (1 + self.row_bytes)

    @property
    def has_alpha(self) -> bool:
        """Whether any pixel may be other than opaque."""
        transparent = self.palette is not None and bool((self.palette[:, 3] < 255).any())
        return transparent or self.key is not None or self.channels in (2, 4)


def parse_png(data: bytes) -> Png:
    """Describe a PNG, or raise Unsupported for whatever Pillow must judge. Linear in len(data).

    Only files without any oddity are accepted: header, optional palette and transparency, one run
    of IDAT chunks, IEND, checksums right. The checksums of IDAT are left out, as Pillow leaves
    them out: the zlib stream carries its own.
    """
    if not data.startswith(SIGNATURE):
        raise Unsupported("no png signature")
    view, walk = memoryview(data), _Walk()
    position = len(SIGNATURE)
    while not walk.ended:
        if position + 12 > len(data):
            raise Unsupported("png without an end chunk")
        length, name = struct.unpack_from(">I4s", data, position)
        end = position + 8 + length
        if end + 4 > len(data):
            raise Unsupported("truncated png chunk")
        if name != b"IDAT" and zlib.crc32(view[position + 4 : end]) != _u32(data, end):
            raise Unsupported("png checksum")
        walk.chunk(name, view[position + 8 : end])
        position = end + 4
    return walk.finish()


def _u32(data: bytes | memoryview, offset: int) -> int:
    value: int = struct.unpack_from(">I", data, offset)[0]
    return value


class _Walk:
    """The state of one chunk walk."""

    def __init__(self) -> None:
        self.header: tuple[int, int, int, Colour] | None = None
        self.plte: memoryview | None = None
        self.trns: memoryview | None = None
        self.idat: list[memoryview] = []
        self.text = 0
        self.ended = False
        self._last = b""

    def chunk(self, name: bytes, body: memoryview) -> None:
        """Take the next chunk."""
        if not _CHUNK_NAME.fullmatch(name):
            raise Unsupported("png chunk name")
        if (self.header is None) != (name == b"IHDR"):
            raise Unsupported("png header out of place")
        if name == b"IHDR":
            self.header = _header(body)
        elif name == b"PLTE":
            self._only_before_pixels(self.plte or self.trns)
            self.plte = body
        elif name == b"tRNS":
            self._only_before_pixels(self.trns)
            self.trns = body
        elif name == b"IDAT":
            if self.idat and self._last != b"IDAT":
                raise Unsupported("png pixel data in several runs")
            self.idat.append(body)
        elif name == b"IEND":
            self.ended = True
        else:
            self._ancillary(name, body)
        self._last = name

    def _only_before_pixels(self, seen: memoryview | None) -> None:
        if self.idat or seen is not None:
            raise Unsupported("png palette or transparency out of place")

    def _ancillary(self, name: bytes, body: memoryview) -> None:
        if name in _ANIMATION:
            raise Unsupported("animated png")
        if not name[0] & 0x20:
            raise Unsupported("unknown critical png chunk")
        if len(body) < _LEAST.get(name, 0):
            raise Unsupported("short png chunk")
        if name in (b"tEXt", b"zTXt", b"iTXt", b"iCCP"):
            self.text += _text_size(name, bytes(body))
            if self.text > _TEXT_TOTAL:
                raise Unsupported("too much png text")

    def finish(self) -> Png:
        """The description, once all chunks have been seen."""
        if self.header is None or not self.idat:
            raise Unsupported("png without pixel data")
        width, height, depth, colour = self.header
        palette, key = self._palette(colour, depth), self._key(colour, depth)
        return Png(width, height, depth, colour, palette, key, tuple(self.idat))

    def _palette(self, colour: Colour, depth: int) -> npt.NDArray[np.uint8] | None:
        if colour is not Colour.PALETTE:
            if self.plte is not None and colour in (Colour.GRAY, Colour.GRAY_ALPHA):
                raise Unsupported("gray png with a palette")
            return None
        size = len(self.plte or b"")
        if self.plte is None or size % 3 or not 3 <= size <= 3 << depth:
            raise Unsupported("png palette size")
        palette = np.full((size // 3, 4), 255, np.uint8)
        palette[:, :3] = np.frombuffer(self.plte, np.uint8).reshape(-1, 3)
        if self.trns is not None:
            if not 1 <= len(self.trns) <= len(palette):
                raise Unsupported("png transparency size")
            palette[: len(self.trns), 3] = np.frombuffer(self.trns, np.uint8)
        return palette

    def _key(self, colour: Colour, depth: int) -> tuple[int, ...] | None:
        if self.trns is None or colour is Colour.PALETTE:
            return None
        wanted = {Colour.GRAY: 2, Colour.RGB: 6}.get(colour)
        if len(self.trns) != wanted:
            raise Unsupported("png transparency size")
        key = struct.unpack(f">{wanted // 2}H", self.trns)
        # Below 8 bits Pillow compares the key with scaled samples; above 255 nothing can match.
        if depth < 8 or max(key) > 255:
            raise Unsupported("png transparency key")
        return tuple(key)


def _header(body: memoryview) -> tuple[int, int, int, Colour]:
    if len(body) != 13:
        raise Unsupported("png header size")
    width, height, depth, colour, compression, method, interlace = struct.unpack(">IIBBBBB", body)
    if not (0 < width < 1 << 31 and 0 < height < 1 << 31):
        raise Unsupported("png size")
    if compression or method:
        raise Unsupported("png compression or filter method")
    if interlace:
        raise Unsupported("interlaced png")
    if colour not in Colour.__members__.values() or depth not in _DEPTHS[Colour(colour)]:
        raise Unsupported("png bit depth")
    return width, height, depth, Colour(colour)


def _text_size(name: bytes, body: bytes) -> int:
    """Characters that Pillow keeps of a text or profile chunk; Unsupported where it may refuse."""
    key, _, rest = body.partition(b"\0")
    if name == b"tEXt":
        return len(body)
    if name == b"iTXt":
        if rest[:2] != b"\1\0":
            return len(body)
        rest = b"\0" + rest[2:].split(b"\0", 2)[-1]
    if not rest or rest[0]:
        raise Unsupported("compressed png text")
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(rest[1:], _INFLATED_TEXT)
    except zlib.error:
        return len(key)
    if inflater.unconsumed_tail:
        raise Unsupported("large png text")
    return len(text)
