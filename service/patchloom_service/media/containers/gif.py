"""GIF: the screen, the blocks up to frame 0, and whether another frame follows."""

import re
import struct
from collections.abc import Iterator
from itertools import count

from patchloom_service.errors import InvalidImage
from patchloom_service.media.containers.bounded import bounded
from patchloom_service.media.header import ImageFormat, ImageHeader

SIGNATURES = (b"GIF87a", b"GIF89a")
_BLOCK = re.compile(rb"[,;!]")
_MAX_JUNK = 1 << 16
_MAX_BLOCKS = 1 << 19  # of at most 255 bytes


def read_header(data: bytes) -> ImageHeader:
    """The size is the screen's, widened where frame 0 reaches beyond it. GIF has no orientation."""
    try:
        return _read(data)
    except (struct.error, IndexError) as error:
        raise InvalidImage("the gif ends before its pixels") from error


def bare(data: bytes) -> bytes:
    """The file itself: the decoder stops behind frame 0."""
    return data


def _read(data: bytes) -> ImageHeader:
    width, height = struct.unpack_from("<HH", data, 6)
    position, alpha = _next_frame(data, _behind_table(data[10], 13))
    if position < 0:
        raise InvalidImage("the gif has no frame")
    left, top, across, down, flags = struct.unpack_from("<HHHHB", data, position + 1)
    behind = _skip_blocks(data, _behind_table(flags, position + 10) + 1)
    try:
        animated = _next_frame(data, behind)[0] >= 0
    except IndexError:
        animated = False
    return ImageHeader(
        ImageFormat.GIF,
        (max(height, top + down), max(width, left + across)),
        channels=1,
        has_alpha=alpha,
        animated=animated,
    )


def _behind_table(flags: int, position: int) -> int:
    return position + (3 << (flags & 7) + 1 if flags & 0x80 else 0)


def _next_frame(data: bytes, position: int) -> tuple[int, bool]:
    """(position of the next image descriptor or -1, whether a colour is transparent in it)."""
    alpha, junk = False, 0
    for _ in bounded(count(), "gif has too many blocks"):
        found = _BLOCK.search(data, position)
        if not found or found[0] == b";":
            break
        start = found.start()
        junk += start - position
        if junk > _MAX_JUNK:
            raise InvalidImage("the gif has junk between its blocks")
        if found[0] == b",":
            return start, alpha
        if data[start + 1] == 0xF9 and data[start + 2]:
            alpha = alpha or bool(data[start + 3] & 1)
        position = _skip_blocks(data, start + 2)
    return -1, alpha


def _skip_blocks(data: bytes, position: int) -> int:
    """The position behind a chain of sub-blocks; beyond the data where the chain is cut off."""
    for length in bounded(_lengths(data, position), "gif has too many blocks", _MAX_BLOCKS):
        position += 1 + length
    return position


def _lengths(data: bytes, position: int) -> Iterator[int]:
    """The lengths of a chain of sub-blocks, with the zero at its end."""
    while position < len(data):
        length = data[position]
        yield length
        if not length:
            return
        position += 1 + length
