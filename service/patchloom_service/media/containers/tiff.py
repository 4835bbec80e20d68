"""TIFF: the first directory. `bare` writes it anew in its place, with only the tags that describe pixels."""

import struct
from dataclasses import dataclass

from patchloom_service.errors import InvalidImage, LimitExceeded, UnsupportedContent
from patchloom_service.media.containers.bounded import MAX_PIECES
from patchloom_service.media.header import ImageFormat, ImageHeader
from patchloom_service.media.orientation import orientation

SIGNATURES = (b"II\x2a\x00", b"MM\x00\x2a", b"II\x2b\x00")
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_ORIENTATION, _SAMPLES, _TILE_WIDTH, _TILE_HEIGHT, _EXTRA, _FORMAT = 274, 277, 322, 323, 338, 339
_XMP = 700
_SCALARS = {256, 257, 259, 262, 266, 277, 278, 284, 292, 293, 317, 322, 323, 531}
_ARRAYS = {258, 273, 279, 320, 324, 325, 338, 339, 347, 529, 530, 532}
_PIECES = {273, 279, 324, 325}
_LONG = 4
_UNIT = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
_UNSIGNED = {1: "B", 3: "H", 4: "L", 13: "L", 16: "Q"}
_COMPRESSIONS = {
    1: "none",
    2: "ccitt",
    3: "group 3",
    4: "group 4",
    5: "lzw",
    7: "jpeg",
    8: "deflate",
    32773: "packbits",
    32946: "deflate",
}
_CHANNELS = {2: 3, 5: 4, 6: 3}


@dataclass(frozen=True, slots=True)
class _Tag:
    kind: int
    count: int
    start: int  # of the value in the file

    @property
    def size(self) -> int:
        return self.count * _UNIT[self.kind]


@dataclass(frozen=True, slots=True)
class _Directory:
    data: bytes
    endian: str
    big: bool
    start: int  # of the directory in the file
    tags: dict[int, _Tag]

    def values(self, tag: int, default: tuple[int, ...]) -> tuple[int, ...]:
        """Up to 16 unsigned values."""
        found = self.tags.get(tag)
        if found is None or found.kind not in _UNSIGNED:
            return default
        form = f"{self.endian}{min(found.count, 16)}{_UNSIGNED[found.kind]}"
        return struct.unpack_from(form, self.data, found.start)

    def value(self, tag: int, default: int) -> int:
        return self.values(tag, (default,))[0]


def read_header(data: bytes) -> ImageHeader:
    """Size, depth and orientation of the first page; refuses what has no agreed 8-bit meaning."""
    directory = _read(data)
    width, height = directory.value(_WIDTH, 0), directory.value(_HEIGHT, 0)
    photometric = directory.value(_PHOTOMETRIC, 0)
    extra = directory.values(_EXTRA, ())
    bits = directory.values(_BITS, (1,))
    _check_kind(directory, photometric, bits)
    return ImageHeader(
        ImageFormat.TIFF,
        (height, width),
        _orientation(directory),
        bits=max(bits),
        channels=_CHANNELS.get(photometric, 1) + len(extra),
        has_alpha=any(kind in (1, 2, 999) for kind in extra)
        or (photometric == 2 and directory.value(_SAMPLES, 1) == 4),
    )


def tile_pixels(data: bytes) -> int:
    """Pixels of a tile, which may be larger than the image; 0 where the file has strips."""
    directory = _read(data)
    return directory.value(_TILE_WIDTH, 0) * directory.value(_TILE_HEIGHT, 0)


def bare(data: bytes) -> bytes:
    """The file with its directory written anew: pixel tags only, scalars with one value, no next page.

    The new directory lies where the old one did. Behind the end of the file a decoder would read it as the
    pixels that a cut file lacks.
    """
    directory = _read(data)
    tags = {tag: directory.tags[tag] for tag in sorted(directory.tags)}
    entries = [
        _entry(directory, tag, found)
        for tag, found in tags.items()
        if tag in _ARRAYS or (tag in _SCALARS and found.kind in _UNSIGNED)
    ]
    endian, big = directory.endian, directory.big
    count = struct.pack(endian + ("Q" if big else "H"), len(entries))
    table = count + b"".join(entries) + bytes(8 if big else 4)
    return data[: directory.start] + table + data[directory.start + len(table) :]


def _entry(directory: _Directory, tag: int, found: _Tag) -> bytes:
    inline = 8 if directory.big else 4
    kind, count = found.kind, 1 if tag in _SCALARS else found.count
    size = count * _UNIT[kind]
    if size <= inline:
        value = directory.data[found.start : found.start + size].ljust(inline, b"\0")
    elif tag in _SCALARS:
        # Where it lies may be inside of the old directory, which is no more.
        kind = _LONG
        value = struct.pack(directory.endian + "L", min(directory.value(tag, 0), 0xFFFFFFFF))
    else:
        value = struct.pack(directory.endian + ("Q" if directory.big else "L"), found.start)
    form = directory.endian + ("HHQ" if directory.big else "HHL")
    return struct.pack(form, tag, kind, count) + value


def _read(data: bytes) -> _Directory:
    endian = "<" if data[:2] == b"II" else ">"
    big = data[2:3] == b"\x2b"
    try:
        start = struct.unpack_from(endian + ("Q" if big else "L"), data, 8 if big else 4)[0]
        return _Directory(data, endian, big, start, _tags(data, endian, big, start))
    except struct.error as error:
        raise InvalidImage("the tiff ends inside its directory") from error


def _tags(data: bytes, endian: str, big: bool, directory: int) -> dict[int, _Tag]:
    """The first entry of each tag; struct.error where the directory or a value is cut off."""
    if directory >= len(data):
        raise InvalidImage("the tiff has no directory")
    count = struct.unpack_from(endian + ("Q" if big else "H"), data, directory)[0]
    first, step = directory + (8 if big else 2), 20 if big else 12
    form, inline = endian + ("HHQ" if big else "HHL"), 8 if big else 4
    if count > (len(data) - first) // step:
        raise InvalidImage("the tiff ends inside its directory")
    tags: dict[int, _Tag] = {}
    if count > MAX_PIECES:
        raise LimitExceeded(f"the tiff has {count} tags; at most {MAX_PIECES} are allowed")
    for entry in range(first, first + step * count, step):
        tag, kind, values = struct.unpack_from(form, data, entry)
        wanted = tag in _SCALARS or tag in _ARRAYS or tag in (_ORIENTATION, _XMP)
        if not wanted or tag in tags or kind not in _UNIT or not values:
            continue
        start = entry + step - inline
        if values * _UNIT[kind] > inline:
            start = struct.unpack_from(endian + ("Q" if big else "L"), data, start)[0]
        if start + values * _UNIT[kind] > len(data):
            raise InvalidImage(f"the value of tiff tag {tag} lies outside of the file")
        if tag in _PIECES and values > MAX_PIECES:
            raise LimitExceeded(f"the tiff has {values} strips or tiles; at most {MAX_PIECES} are allowed")
        tags[tag] = _Tag(kind, values, start)
    return tags


def _orientation(directory: _Directory) -> int:
    value = directory.value(_ORIENTATION, -1)
    if value >= 0:
        return value if 1 <= value <= 8 else 1
    xmp = directory.tags.get(_XMP)
    packet = directory.data[xmp.start : xmp.start + xmp.size] if xmp else None
    return orientation(None, packet)


def _check_kind(directory: _Directory, photometric: int, bits: tuple[int, ...]) -> None:
    compression = directory.value(_COMPRESSION, 1)
    if compression not in _COMPRESSIONS:
        allowed = ", ".join(dict.fromkeys(_COMPRESSIONS.values()))
        raise UnsupportedContent(f"tiff compression {compression} is not supported; send {allowed}")
    formats = directory.values(_FORMAT, (1,))
    if set(formats) != {1} or max(bits) > 16 or (photometric == 0 and max(bits) > 8):
        raise UnsupportedContent(
            f"a tiff with {max(bits)} bits, sample format {max(formats)} and photometric "
            f"{photometric} is not supported; send unsigned samples with at most 16 bits"
        )
    if photometric not in (0, 1, 2, 3, 5, 6):
        raise UnsupportedContent(
            f"tiff photometric {photometric} is not supported; send grayscale, palette, RGB, CMYK or YCbCr"
        )
