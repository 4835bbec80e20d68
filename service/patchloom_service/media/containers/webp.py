"""WebP: RIFF chunks; metadata counts only where the extended header announces it."""

import struct
from collections.abc import Iterator

from patchloom_service.errors import InvalidImage
from patchloom_service.media.containers.bounded import bounded
from patchloom_service.media.header import ImageFormat, ImageHeader
from patchloom_service.media.orientation import orientation

_ANIMATION, _XMP, _EXIF, _ALPHA = 0x02, 0x04, 0x08, 0x10


def read_header(data: bytes) -> ImageHeader:
    """Canvas size, alpha and orientation."""
    chunks = list(bounded(_chunks(data), "webp has too many chunks"))
    if not chunks:
        raise InvalidImage("the webp has no chunks")
    name, body = chunks[0]
    if name == b"VP8 ":
        return _lossy(body)
    if name == b"VP8L":
        return _lossless(body)
    if name == b"VP8X" and len(body) >= 10:
        return _extended(body, chunks)
    raise InvalidImage("the webp begins with an unknown chunk")


def bare(data: bytes) -> bytes:
    """The file itself: the decoder reads no metadata from it."""
    return data


def _chunks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    view = memoryview(data)
    end = min(len(data), 8 + struct.unpack_from("<I", data, 4)[0])
    position = 12
    while position + 8 <= end:
        name, length = struct.unpack_from("<4sI", data, position)
        yield name, view[position + 8 : min(position + 8 + length, end)]
        position += 8 + length + (length & 1)


def _lossy(body: memoryview) -> ImageHeader:
    if len(body) < 10 or bytes(body[3:6]) != b"\x9d\x01\x2a":
        raise InvalidImage("the webp has no frame header")
    width, height = struct.unpack_from("<HH", body, 6)
    return ImageHeader(ImageFormat.WEBP, (height & 0x3FFF, width & 0x3FFF))


def _lossless(body: memoryview) -> ImageHeader:
    if len(body) < 5 or body[0] != 0x2F:
        raise InvalidImage("the webp has no frame header")
    (bits,) = struct.unpack_from("<I", body, 1)
    size = ((bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1)
    alpha = bool(bits >> 28 & 1)
    return ImageHeader(ImageFormat.WEBP, size, channels=4 if alpha else 3, has_alpha=alpha)


def _extended(body: memoryview, chunks: list[tuple[bytes, memoryview]]) -> ImageHeader:
    flags = body[0]
    width = 1 + int.from_bytes(body[4:7], "little")
    height = 1 + int.from_bytes(body[7:10], "little")
    first: dict[bytes, bytes] = {}
    for name, chunk in chunks:
        if (name == b"EXIF" and flags & _EXIF) or (name == b"XMP " and flags & _XMP):
            first.setdefault(name, bytes(chunk))
    alpha = bool(flags & _ALPHA)
    return ImageHeader(
        ImageFormat.WEBP,
        (height, width),
        orientation(first.get(b"EXIF"), first.get(b"XMP ")),
        channels=4 if alpha else 3,
        has_alpha=alpha,
        animated=bool(flags & _ANIMATION),
    )
