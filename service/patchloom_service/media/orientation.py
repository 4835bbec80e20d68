"""The orientation of an image, from its EXIF block or else from its XMP packet.

What counts is what Pillow's `ImageOps.exif_transpose` honours; broken metadata means upright.
"""

import re
import struct

_ORIENTATION = 0x0112
_EXIF_PREFIX = re.compile(rb"(?:Exif\x00\x00){1,2}")
_XMP = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
_ENDIAN = {b"MM\x00\x2a": ">", b"MM\x2a\x00": ">", b"II\x2a\x00": "<", b"II\x00\x2a": "<"}
_UNIT = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
_INTEGER = {3: "H", 4: "L", 8: "h", 9: "l", 13: "L", 16: "Q"}


def orientation(exif: bytes | None, xmp: bytes | None) -> int:
    """The value 1 to 8. XMP is asked only where the EXIF data has no orientation."""
    value = exif_orientation(exif) if exif else None
    if value is None and xmp:
        value = xmp_orientation(xmp)
    return value if value is not None and 1 <= value <= 8 else 1


def exif_orientation(exif: bytes) -> int | None:
    """The value as written, whatever it is; None where there is none or the block is unreadable."""
    prefix = _EXIF_PREFIX.match(exif)
    block = memoryview(exif)[prefix.end() if prefix else 0 :]
    endian = _ENDIAN.get(bytes(block[:4]))
    if endian is None or len(block) < 8:
        return None
    try:
        return _find(block, endian)
    except struct.error:
        return None


def xmp_orientation(xmp: bytes) -> int | None:
    """The value of the first tiff:Orientation, written as an attribute or as an element."""
    found = _XMP.search(xmp)
    return int(found[1]) if found else None


def _find(block: memoryview, endian: str) -> int | None:
    """Walk the directory; struct.error where it ends early."""
    directory = struct.unpack_from(endian + "L", block, 4)[0]
    (count,) = struct.unpack_from(endian + "H", block, directory)
    budget, seen = len(block), set()
    for entry in range(directory + 2, directory + 2 + 12 * count, 12):
        tag, kind, values, offset = struct.unpack_from(endian + "HHLL", block, entry)
        size = values * _UNIT.get(kind, 0)
        if tag in seen or not size:
            continue
        start = entry + 8
        if size > 4:
            budget -= size
            if budget < 0:
                continue
            if offset + size > len(block):
                return None  # as Pillow, which reads no entry behind a value that is cut off
            start = offset
        if tag == _ORIENTATION:
            return _value(block, endian, kind, start)
        seen.add(tag)
    return None


def _value(block: memoryview, endian: str, kind: int, start: int) -> int | None:
    """The first integer of the tag, None where it is of no integer type."""
    if kind not in _INTEGER:
        return None
    value: int = struct.unpack_from(endian + _INTEGER[kind], block, start)[0]
    return value
