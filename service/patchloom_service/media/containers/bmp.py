"""BMP: the fixed header."""

import struct

from patchloom_service.errors import InvalidImage, UnsupportedContent
from patchloom_service.media.header import ImageFormat, ImageHeader

SIGNATURE = b"BM"
_INFO_HEADERS = (40, 52, 56, 64, 108, 124)
_CHANNELS = {1: 1, 4: 1, 8: 1, 16: 3, 24: 3, 32: 4}


def read_header(data: bytes) -> ImageHeader:
    """A negative height means rows from top to bottom. BMP has no orientation."""
    try:
        return _read(data)
    except struct.error as error:
        raise InvalidImage("the bmp ends inside its header") from error


def bare(data: bytes) -> bytes:
    """The file itself: it holds no metadata."""
    return data


def _read(data: bytes) -> ImageHeader:
    (kind,) = struct.unpack_from("<I", data, 14)
    if kind == 12:
        width, height, _, bits = struct.unpack_from("<HHHH", data, 18)
    elif kind in _INFO_HEADERS:
        width, height, _, bits = struct.unpack_from("<iiHH", data, 18)
    else:
        raise InvalidImage("the bmp header is of no known kind")
    if bits not in _CHANNELS:
        raise UnsupportedContent(f"a bmp with {bits} bits is not supported; send 1, 4, 8, 16, 24 or 32")
    if height < -0xFFFFFF:
        raise InvalidImage("the bmp has an impossible height")
    return ImageHeader(
        ImageFormat.BMP,
        (abs(height), width),
        channels=_CHANNELS[bits],
        has_alpha=bits == 32,
    )
