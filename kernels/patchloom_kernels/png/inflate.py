"""Inflate the pixel data in blocks of whole rows, never beyond the size that the header states."""

import importlib
import zlib
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import cast

from patchloom_kernels.png.parse import Png
from patchloom_kernels.unsupported import Unsupported

# Deflate expands no further (258 bytes from 2 bits), so a smaller stream cannot hold the image.
_MAX_RATIO = 1032
# A block and its compressed input stay in the L2 cache on their way to the unfilter kernel.
_BLOCK_BYTES = 256 << 10
_FEED_BYTES = 64 << 10


def inflate_rows(png: Png, fast: bool = True) -> Iterator[bytes | bytearray]:
    """Yield the filtered rows in order, in blocks of whole rows: filter byte, then row_bytes.

    The blocks hold png.filtered_bytes in all. Unsupported where the stream is damaged, too short or
    too long; rows yielded before that are then worthless. `fast` uses the `deflate` package where
    it is installed: the whole image is then one block. Otherwise zlib, with memory for one block.
    """
    if sum(map(len, png.idat)) * _MAX_RATIO < png.filtered_bytes:
        raise Unsupported("png pixel data too short")
    deflate = _deflate() if fast else None
    if deflate is not None:
        return iter((_inflate_at_once(png, deflate),))
    return _inflate_in_blocks(png)


@cache
def _deflate() -> ModuleType | None:
    try:
        return importlib.import_module("deflate")
    except ImportError:
        return None


def _inflate_at_once(png: Png, deflate: ModuleType) -> bytearray:
    stream = png.idat[0] if len(png.idat) == 1 else b"".join(png.idat)
    try:
        rows = deflate.zlib_decompress(stream, png.filtered_bytes)
    except (deflate.DeflateError, ValueError, MemoryError) as error:
        raise Unsupported("png pixel data") from error
    if len(rows) != png.filtered_bytes:
        raise Unsupported("png pixel data size")
    return cast(bytearray, rows)


def _inflate_in_blocks(png: Png) -> Iterator[bytes]:
    row = 1 + png.row_bytes
    block = max(1, _BLOCK_BYTES // row) * row
    pieces: list[bytes] = []
    have, left = 0, png.filtered_bytes
    for piece in _pieces(png, min(block, left)):
        cut = 0
        while have + len(piece) - cut >= min(block, left) > 0:
            take = min(block, left) - have
            yield b"".join((*pieces, piece[cut : cut + take]))
            left -= have + take
            cut += take
            pieces, have = [], 0
        if cut < len(piece):
            pieces.append(piece[cut:])
            have += len(piece) - cut
    if left or have:
        raise Unsupported("png pixel data size")


def _pieces(png: Png, size: int) -> Iterator[bytes]:
    """The inflated bytes in pieces of at most `size`; at most one piece beyond the image."""
    inflater, total = zlib.decompressobj(), 0
    try:
        for chunk in png.idat:
            for start in range(0, len(chunk), _FEED_BYTES):
                feed: bytes | memoryview = chunk[start : start + _FEED_BYTES]
                while feed and not inflater.eof and total <= png.filtered_bytes:
                    piece = inflater.decompress(feed, size)
                    feed = inflater.unconsumed_tail
                    total += len(piece)
                    yield piece
        if total <= png.filtered_bytes:
            yield inflater.flush()
    except zlib.error as error:
        raise Unsupported("png pixel data") from error
    if not inflater.eof:
        raise Unsupported("png pixel data size")
