"""PNG: chunks from the header to the end, metadata behind the pixels included."""

import struct
import zlib
from collections.abc import Iterator

from patchloom_service.errors import InvalidImage
from patchloom_service.media.containers.bounded import bounded
from patchloom_service.media.header import ImageFormat, ImageHeader
from patchloom_service.media.orientation import orientation

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_XMP_KEY, _EXIF_KEY = b"XML:com.adobe.xmp", b"Raw profile type exif"
_INFLATED = 1 << 20  # as much of a compressed text chunk as Pillow would read


def read_header(data: bytes) -> ImageHeader:
    """Size, depth and orientation; the last of several metadata chunks of a kind counts."""
    width, height, depth, colour = _ihdr(data)
    last: dict[bytes, memoryview] = {}
    for name, body in _chunks(data):
        if name in (b"tRNS", b"acTL", b"eXIf"):
            last[name] = body
        elif name in (b"tEXt", b"zTXt", b"iTXt"):
            key = bytes(body[:80]).partition(b"\0")[0]
            if key == _EXIF_KEY or (key == _XMP_KEY and name == b"iTXt"):
                last[key] = body[len(key) + 1 :]
                last[key + b" chunk"] = memoryview(name)
    return ImageHeader(
        ImageFormat.PNG,
        (height, width),
        orientation(_exif(last), _text(last, _XMP_KEY)),
        bits=depth,
        channels=_CHANNELS[colour],
        has_alpha=colour in (4, 6) or b"tRNS" in last,
        animated=b"acTL" in last,
    )


def bare(data: bytes) -> bytes:
    """The critical chunks and tRNS, up to the end of the first run of pixel data."""
    view, pixels = memoryview(data), False
    kept = [memoryview(SIGNATURE)]
    for name, start, end in _spans(data):
        if name in (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"):
            kept.append(view[start : end + 4])
            pixels = pixels or name == b"IDAT"
        if pixels and name != b"IDAT":
            break
    return b"".join(kept)


def transparent_sample(data: bytes) -> tuple[int, ...]:
    """The samples of tRNS as written: one for grayscale, three for RGB; () where there is none."""
    for name, body in _chunks(data):
        if name == b"tRNS":
            return struct.unpack(f">{len(body) // 2}H", body[: len(body) // 2 * 2])
        if name == b"IDAT":
            break
    return ()


def _ihdr(data: bytes) -> tuple[int, int, int, int]:
    if len(data) < 33 or data[8:16] != b"\0\0\0\rIHDR":
        raise InvalidImage("the png has no header")
    width, height, depth, colour, compression, method, interlace = struct.unpack_from(">IIBBBBB", data, 16)
    if depth not in _DEPTHS.get(colour, ()):
        raise InvalidImage("the png header has an impossible colour type or bit depth")
    if compression or method or interlace > 1:
        raise InvalidImage("the png header names an unknown compression, filter or interlace")
    return width, height, depth, colour


def _spans(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    return bounded(_all_spans(data), "png has too many chunks")


def _all_spans(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(name, start of the chunk, end of its body) up to IEND; a chunk cut off ends with the data."""
    start = len(SIGNATURE)
    while start + 8 <= len(data):
        length, name = struct.unpack_from(">I4s", data, start)
        end = start + 8 + length
        yield name, start, min(end, len(data))
        if name == b"IEND":
            return
        start = end + 4


def _chunks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    view = memoryview(data)
    for name, start, end in _spans(data):
        yield name, view[start + 8 : end]


def _exif(last: dict[bytes, memoryview]) -> bytes | None:
    if b"eXIf" in last:
        return bytes(last[b"eXIf"])
    profile = _text(last, _EXIF_KEY)
    if profile is None:
        return None
    # "\nexif\n<length>\n<hexadecimal digits in lines>"
    try:
        return bytes.fromhex(b"".join(profile.split(b"\n")[3:]).decode("ascii"))
    except ValueError:
        return None


def _text(last: dict[bytes, memoryview], key: bytes) -> bytes | None:
    """The value of a text chunk, behind its key; None where it is unreadable or too long."""
    if key not in last:
        return None
    rest, name = bytes(last[key]), bytes(last[key + b" chunk"])
    compressed = name == b"zTXt"
    if name == b"iTXt":
        compressed = rest[:1] != b"\0"
        rest = rest[1:2] + rest[2:].split(b"\0", 2)[-1] if compressed else rest[2:]
        rest = rest if compressed else rest.split(b"\0", 2)[-1]
    if not compressed:
        return rest[:_INFLATED]
    return _inflate(rest[1:]) if rest[:1] == b"\0" else None


def _inflate(stream: bytes) -> bytes | None:
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(stream, _INFLATED)
    except zlib.error:
        return None
    return None if inflater.unconsumed_tail else text
