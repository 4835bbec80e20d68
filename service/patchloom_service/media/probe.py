"""Reads what an image is from its container: linear time, no pixel decoded, limits enforced."""

from collections.abc import Callable
from typing import NamedTuple

from patchloom_service.errors import InvalidImage, LimitExceeded, UnsupportedContent
from patchloom_service.media.containers import bmp, gif, jpeg, png, tiff, webp
from patchloom_service.media.header import ALLOWED, ImageFormat, ImageHeader

# Where the decoder looks at a size again, and by how many pixels it would complain.
_CEILINGS = {
    ImageFormat.GIF: 89_478_485,
    ImageFormat.TIFF: 89_478_485,
    ImageFormat.WEBP: 178_956_970,
}


class Container(NamedTuple):
    """What a container module offers."""

    read_header: Callable[[bytes], ImageHeader]
    bare: Callable[[bytes], bytes]


CONTAINERS = {
    ImageFormat.PNG: Container(png.read_header, png.bare),
    ImageFormat.JPEG: Container(jpeg.read_header, jpeg.bare),
    ImageFormat.WEBP: Container(webp.read_header, webp.bare),
    ImageFormat.GIF: Container(gif.read_header, gif.bare),
    ImageFormat.BMP: Container(bmp.read_header, bmp.bare),
    ImageFormat.TIFF: Container(tiff.read_header, tiff.bare),
}


def probe(data: bytes, max_pixels: int) -> ImageHeader:
    """The header of an encoded image.

    InvalidImage for bytes that are no image or a broken one, UnsupportedContent for another format
    or kind, LimitExceeded for more than `max_pixels` pixels.
    """
    header = CONTAINERS[sniff(data)].read_header(data)
    height, width = header.stored_size
    if height <= 0 or width <= 0:
        raise InvalidImage(f"the image is {width} pixels wide and {height} high; send at least 1x1")
    allowed = min(max_pixels, _CEILINGS.get(header.format, max_pixels))
    _check(f"the image has {width}x{height} = {header.pixels} pixels", header.pixels, allowed)
    if header.format is ImageFormat.TIFF:
        tile = tiff.tile_pixels(data)
        _check(f"a tile of the tiff has {tile} pixels", tile, allowed)
    return header


def sniff(data: bytes) -> ImageFormat:
    """The format by the first bytes; UnsupportedContent names a format that is known but not taken."""
    for known, signatures in _SIGNATURES.items():
        if data.startswith(signatures):
            return known
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return ImageFormat.WEBP
    name = _foreign(data)
    if name:
        raise UnsupportedContent(f"{name} is not supported; {ALLOWED}")
    raise InvalidImage(f"{len(data)} bytes that are no image; {ALLOWED}")


_SIGNATURES: dict[ImageFormat, bytes | tuple[bytes, ...]] = {
    ImageFormat.PNG: png.SIGNATURE,
    ImageFormat.JPEG: jpeg.SIGNATURE,
    ImageFormat.GIF: gif.SIGNATURES,
    ImageFormat.BMP: bmp.SIGNATURE,
    ImageFormat.TIFF: tiff.SIGNATURES,
}

_FOREIGN = {
    b"%PDF-": "pdf",
    b"MM\x00\x2b": "big-endian bigtiff",
    b"\x00\x00\x01\x00": "ico",
    b"\x00\x00\x00\x0cJXL ": "jpeg xl",
    b"\xff\x0a": "jpeg xl",
    b"\x00\x00\x00\x0cjP  ": "jpeg 2000",
    b"\xff\x4f\xff\x51": "jpeg 2000",
    b"8BPS": "psd",
    b"qoif": "qoi",
    b"PK\x03\x04": "zip",
    b"\x1aE\xdf\xa3": "matroska video",
}
_BRANDS = {b"avif": "avif", b"avis": "avif", b"crx ": "raw photograph"}


def _foreign(data: bytes) -> str | None:
    """The name of a format that is recognised, to refuse it by name."""
    for signature, name in _FOREIGN.items():
        if data.startswith(signature):
            return name
    if data[4:8] == b"ftyp":
        brand = data[8:12]
        heif = brand[:3] in (b"hei", b"hev") or brand in (b"mif1", b"msf1")
        return _BRANDS.get(brand, "heic" if heif else "iso media")
    start = data[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith(b"<svg") or (start.startswith(b"<?xml") and b"<svg" in data[:4096].lower()):
        return "svg"
    return "html" if start.startswith((b"<!doctype html", b"<html")) else None


def _check(what: str, pixels: int, allowed: int) -> None:
    if pixels > allowed:
        raise LimitExceeded(f"{what}; at most {allowed} are allowed")
