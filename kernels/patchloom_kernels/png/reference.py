"""PNG by definition, in plain numpy and Python: filters undone, samples to RGB on a background."""

import zlib

import numpy as np
import numpy.typing as npt

from patchloom_kernels.png.parse import Colour, Png, parse_png
from patchloom_kernels.unsupported import Unsupported

Bytes = npt.NDArray[np.uint8]


def paeth(a: int, b: int, c: int) -> int:
    """The predictor of filter 4 for the left, upper and upper left byte (PNG specification 9.4)."""
    p = a + b - c
    distance = {a: abs(p - a), b: abs(p - b), c: abs(p - c)}
    if distance[a] <= distance[b] and distance[a] <= distance[c]:
        return a
    return b if distance[b] <= distance[c] else c


def unfilter(filtered: Bytes, bpp: int) -> Bytes:
    """[H, 1 + n] rows behind their filter bytes -> [H, n]; `bpp`: distance to the left byte."""
    if filtered[:, 0].max() > 4:
        raise Unsupported("png filter type")
    rows = np.zeros((len(filtered), filtered.shape[1] - 1), np.uint8)
    above = np.zeros(rows.shape[1], np.uint8)
    for y, line in enumerate(filtered):
        _unfilter_row(int(line[0]), line[1:], above, bpp, rows[y])
        above = rows[y]
    return rows


def _unfilter_row(kind: int, line: Bytes, above: Bytes, bpp: int, row: Bytes) -> None:
    for i, byte in enumerate(line.tolist()):
        a = int(row[i - bpp]) if i >= bpp else 0
        b = int(above[i])
        c = int(above[i - bpp]) if i >= bpp else 0
        prediction = (0, a, b, (a + b) // 2, paeth(a, b, c))[kind]
        row[i] = (byte + prediction) % 256


def composite(colour: Bytes, alpha: Bytes, background: tuple[int, int, int]) -> Bytes:
    """[..., 3] colour, [...] alpha over an opaque background, rounded as by alpha_composite."""
    a = alpha[..., None].astype(np.int32)
    u = colour * a + np.array(background, np.int32) * (255 - a) + 128
    blended: Bytes = ((u + (u >> 8)) >> 8).astype(np.uint8)
    return blended


def to_rgb(png: Png, rows: Bytes, background: tuple[int, int, int]) -> Bytes:
    """[H, row_bytes] unfiltered rows -> [H, W, 3]; transparent pixels show the background."""
    samples = _samples(png, rows)
    if png.palette is not None:
        if samples.max() >= len(png.palette):
            raise Unsupported("png palette index")
        rgba = png.palette[samples[..., 0]]
        return composite(rgba[..., :3], rgba[..., 3], background)
    if png.colour in (Colour.GRAY_ALPHA, Colour.RGBA):
        alpha = samples[..., -1]
        colours = png.channels - 1
    else:
        key = samples == png.key if png.key else np.zeros(samples.shape, bool)
        alpha = np.where(key.all(-1), 0, 255).astype(np.uint8)
        colours = png.channels
    rgb = np.broadcast_to(samples[..., :colours], (*samples.shape[:2], 3))
    return composite(rgb, alpha, background)


def _samples(png: Png, rows: Bytes) -> Bytes:
    """[H, W, channels] samples; gray below 8 bits is scaled to 0..255, palette indices are not."""
    if png.depth == 8:
        return rows.reshape(png.height, png.width, png.channels)
    bits = np.unpackbits(rows, axis=1)[:, : png.width * png.depth]
    weights = 1 << np.arange(png.depth)[::-1]
    samples = bits.reshape(png.height, png.width, png.depth) @ weights
    scale = 1 if png.palette is not None else 255 // (2**png.depth - 1)
    return (samples * scale).astype(np.uint8)[..., None]


def decode_png(data: bytes, background: tuple[int, int, int]) -> Bytes:
    """A PNG file -> [H, W, 3] uint8, equal to Pillow's pixels composited on the background."""
    png = parse_png(data)
    filtered = np.frombuffer(_inflate(png), np.uint8)
    rows = unfilter(filtered.reshape(png.height, -1), png.bpp)
    return to_rgb(png, rows, background)


def _inflate(png: Png) -> bytes:
    inflater = zlib.decompressobj()
    try:
        filtered = inflater.decompress(b"".join(png.idat), png.filtered_bytes + 1)
    except zlib.error as error:
        raise Unsupported("png pixel data") from error
    if len(filtered) != png.filtered_bytes or not inflater.eof:
        raise Unsupported("png pixel data size")
    return filtered
