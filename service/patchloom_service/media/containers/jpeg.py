"""JPEG: marker segments up to the first scan."""

import re
import struct

from patchloom_service.errors import InvalidImage, LimitExceeded, UnsupportedContent
from patchloom_service.media.containers.bounded import MAX_PIECES
from patchloom_service.media.header import ImageFormat, ImageHeader
from patchloom_service.media.orientation import orientation

SIGNATURE = b"\xff\xd8\xff"
_SOS, _EOI = 0xDA, 0xD9
_NO_SEGMENT = frozenset([0x00, 0x01, *range(0xD0, 0xD9), 0xFF])  # fill bytes and bare markers are passed over
_MARKER = re.compile(b"\xff[^" + re.escape(bytes(_NO_SEGMENT)) + b"]")
_FRAMES = {0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF}
_PROGRESSIVE = 0xC2
_DECODABLE = {0xC0, 0xC1, _PROGRESSIVE}
_EXIF, _XMP = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"
# Each scan may visit every coefficient, however few bytes it has; encoders write 10 or so.
_MAX_SCANS = 100


def read_header(data: bytes) -> ImageHeader:
    """Size, kind and orientation, from what stands before the first scan."""
    frame: tuple[int, memoryview] | None = None
    exif: list[memoryview] = []
    xmp = None
    view = memoryview(data)
    for marker, start, end in _segments(data):
        if marker in _FRAMES:
            if frame:
                raise InvalidImage("the jpeg has two frame headers")
            frame = marker, view[start + 4 : end]
        elif marker == 0xE1:
            body = view[start + 4 : end]
            if body[:6] == _EXIF:
                exif.append(body[6:])
            elif body[: len(_XMP)] == _XMP:
                xmp = bytes(body[len(_XMP) :])
        elif marker == _SOS and frame:
            _check_scans(data, start, frame)
    if frame is None:
        raise InvalidImage("the jpeg has no frame header before its pixels")
    return _frame(*frame, orientation(b"".join(exif), xmp))


def _check_scans(data: bytes, start: int, frame: tuple[int, memoryview]) -> None:
    """A sequential file whose first scan has all components is decoded no further."""
    marker, body = frame
    several = marker == _PROGRESSIVE or data[start + 4 : start + 5] != bytes(body[5:6])
    if several and data.count(b"\xff\xda", start) > _MAX_SCANS:
        raise LimitExceeded(f"the jpeg has too many scans; at most {_MAX_SCANS} are allowed")


def _frame(marker: int, body: memoryview, turned: int) -> ImageHeader:
    if len(body) < 6:
        raise InvalidImage("the jpeg frame header is too short")
    bits, height, width, channels = struct.unpack_from(">BHHB", body)
    if marker not in _DECODABLE or bits != 8:
        raise UnsupportedContent(
            f"a jpeg of kind SOF{marker - 0xC0} with {bits} bits is not supported; "
            "send baseline or progressive with 8 bits"
        )
    if channels not in (1, 3, 4) or len(body) < 6 + 3 * channels:
        raise InvalidImage(f"the jpeg has {channels} components; 1, 3 or 4 are allowed")
    return ImageHeader(
        ImageFormat.JPEG,
        (height, width),
        turned,
        channels=channels,
        progressive=marker == _PROGRESSIVE,
    )


def bare(data: bytes) -> bytes:
    """The file without comments and application segments, but for JFIF's and Adobe's."""
    view, kept = memoryview(data), [memoryview(b"\xff\xd8")]
    for marker, start, end in _segments(data):
        if marker == _SOS:
            kept.append(view[start:])
        elif marker in (0xE0, 0xEE) or not (0xE0 <= marker <= 0xEF or marker == 0xFE):
            kept.append(view[start:end])
    return b"".join(kept)


def _segments(data: bytes) -> list[tuple[int, int, int]]:
    """(marker, start of the segment, its end) up to and with the first SOS."""
    found: list[tuple[int, int, int]] = []
    end, size = 2, len(data)
    while not found or found[-1][0] != _SOS:
        if len(found) == MAX_PIECES:
            raise LimitExceeded(f"the jpeg has too many segments; at most {MAX_PIECES} are allowed")
        start = end
        if start + 4 > size or data[start] != 0xFF or data[start + 1] in _NO_SEGMENT:
            match = _MARKER.search(data, end)
            start = match.start() if match else size
        if start + 4 > size or data[start + 1] == _EOI:
            raise InvalidImage("the jpeg ends before its pixels")
        marker = data[start + 1]
        end = start + 2 + (data[start + 2] << 8 | data[start + 3])
        if end < start + 4 or end > size:
            raise InvalidImage("a jpeg segment is cut off")
        found.append((marker, start, end))
    return found
