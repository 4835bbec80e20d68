"""GIF: the screen, the blocks up to frame 0, and whether another frame follows."""

import struct

from patchloom_service.errors import InvalidImage
from patchloom_service.media.header import ImageFormat, ImageHeader

SIGNATURES = (b"GIF87a", b"GIF89a")


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
    alpha = False
    while position < len(data):
        kind = data[position]
        if kind == 0x2C:
            return position, alpha
        if kind == 0x3B:
            break
        if kind == 0x21:
            if data[position + 1] == 0xF9 and data[position + 2]:
                alpha = alpha or bool(data[position + 3] & 1)
            position = _skip_blocks(data, position + 2)
        else:
            position += 1
    return -1, alpha


def _skip_blocks(data: bytes, position: int) -> int:
    """The position behind a chain of sub-blocks; beyond the data where the chain is cut off."""
    while position < len(data):
        length = data[position]
        position += 1 + length
        if not length:
            break
    return position
