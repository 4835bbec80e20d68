"""PNG on a CPU core: inflate, undo the filters, expand to RGB, block by block in the caches."""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from patchloom_kernels.png.inflate import inflate_rows
from patchloom_kernels.png.parse import Colour, Png, parse_png
from patchloom_kernels.unsupported import Unsupported

Bytes = npt.NDArray[np.uint8]

_TABLE, _RGB, _RGB_KEY, _GRAY_ALPHA, _RGBA = range(5)
_EMIT = {
    Colour.GRAY: _TABLE,
    Colour.PALETTE: _TABLE,
    Colour.RGB: _RGB,
    Colour.GRAY_ALPHA: _GRAY_ALPHA,
    Colour.RGBA: _RGBA,
}


def decode_png(data: bytes, background: tuple[int, int, int], out: Bytes | None = None) -> Bytes:
    """Decode a PNG file to [H, W, 3] uint8 RGB, composited on an opaque background.

    The bytes equal Pillow's `Image.alpha_composite(background, image.convert("RGBA"))`. `out` takes
    the pixels instead of a new array: [H, W, 3], or [H, W, 4] whose fourth byte becomes 255; it is
    returned. Unsupported, with `out` then undefined, for every file that Pillow must judge:
    interlaced, 16 bit, animated, damaged. Releases the interpreter lock in all heavy parts.
    """
    png = parse_png(data)
    if out is None:
        out = np.empty((png.height, png.width, 3), np.uint8)
    if out.dtype != np.uint8 or out.shape not in [(png.height, png.width, c) for c in (3, 4)]:
        raise ValueError(
            f"out must be uint8 [{png.height}, {png.width}, 3 or 4], got {out.dtype} {out.shape}"
        )
    decode_rows(png, background, out)
    return out


def decode_rows(png: Png, background: tuple[int, int, int], out: Bytes) -> None:
    """Fill `out` [H, W, 3 or 4] from a parsed PNG; Unsupported as in `decode_png`."""
    emit = _RGB_KEY if png.colour is Colour.RGB and png.key else _EMIT[png.colour]
    bpp = max(1, png.channels * png.depth // 8)
    table = _table(png, background)
    key = np.array(png.key if emit == _RGB_KEY else (0, 0, 0), np.uint8)
    # Two lines behind `bpp` zero bytes each, the left neighbours of the first pixel.
    lines = np.zeros((2, bpp + png.row_bytes), np.uint8)
    over, row = np.array(background, np.uint8), 0
    for block in inflate_rows(png):
        rows = np.frombuffer(block, np.uint8).reshape(-1, 1 + png.row_bytes)
        largest = _decode_block(
            rows, bpp, lines, out[row : row + len(rows)], emit, png.depth, table, key, over, row & 1
        )
        if largest < 0:
            raise Unsupported("png filter type")
        if png.palette is not None and largest >= len(png.palette):
            raise Unsupported("png palette index")
        row += len(rows)


def _table(png: Png, background: tuple[int, int, int]) -> Bytes:
    """[256, 3] colours of a gray sample or palette index, already on the background."""
    table = np.zeros((256, 3), np.uint8)
    if png.palette is not None:
        alpha = png.palette[:, 3:].astype(np.int32)
        u = png.palette[:, :3] * alpha + np.array(background, np.int32) * (255 - alpha) + 128
        table[: len(png.palette)] = (u + (u >> 8)) >> 8
    else:
        levels = 1 << png.depth
        table[:levels] = (np.arange(levels) * (255 // (levels - 1)))[:, None]
        if png.key is not None and png.colour is Colour.GRAY:
            table[png.key[0]] = background
    return table


def _jit(function: Any) -> Any:
    return numba.njit(nogil=True, cache=True, error_model="numpy")(function)


@_jit
def _decode_block(
    filtered: Any,  # [n, 1 + row_bytes]
    bpp: int,
    lines: Any,  # [2, bpp + row_bytes]: the line above is lines[1 - parity]
    out: Any,  # [n, W, 3 or 4]
    emit: int,
    depth: int,
    table: Any,  # [256, 3]
    key: Any,  # [3]
    over: Any,  # [3] background
    parity: int,
) -> int:
    """Unfilter and emit n rows; the largest palette index met, or -1 for an unknown filter type."""
    largest = 0
    for y in range(filtered.shape[0]):
        line, above = lines[(y + parity) & 1], lines[(y + parity + 1) & 1]
        if not _unfilter(filtered[y, 0], filtered[y, 1:], above, line, bpp):
            return -1
        pixels = line[bpp:]
        if emit == 0:
            largest = max(largest, _emit_table(pixels, depth, table, out[y]))
        elif emit == 1:
            _emit_rgb(pixels, out[y])
        elif emit == 2:
            _emit_rgb_key(pixels, key, over, out[y])
        elif emit == 3:
            _emit_gray_alpha(pixels, over, out[y])
        else:
            _emit_rgba(pixels, over, out[y])
    return largest


@_jit
def _unfilter(kind: int, source: Any, above: Any, line: Any, bpp: int) -> bool:
    """Undo one row's filter; `above` and `line` hold `bpp` zero bytes before the row."""
    n = source.shape[0]
    if kind == 0:
        line[bpp:] = source
    elif kind == 1:
        _sub(source, line, bpp)
    elif kind == 2:
        for i in range(n):
            line[bpp + i] = source[i] + above[bpp + i]
    elif kind == 3:
        _average(source, above, line, bpp)
    elif kind == 4:
        if bpp == 3:
            _paeth3(source, above, line)
        elif bpp == 4:
            _paeth4(source, above, line)
        else:
            for i in range(n):
                line[bpp + i] = source[i] + _predict(line[i], above[bpp + i], above[i])
    else:
        return False
    return True


@_jit
def _sub(source: Any, line: Any, bpp: int) -> None:
    if bpp == 3:
        r = g = b = np.uint8(0)
        for i in range(0, source.shape[0], 3):
            r = np.uint8(r + source[i])
            g = np.uint8(g + source[i + 1])
            b = np.uint8(b + source[i + 2])
            line[3 + i], line[4 + i], line[5 + i] = r, g, b
    else:
        for i in range(source.shape[0]):
            line[bpp + i] = source[i] + line[i]


@_jit
def _average(source: Any, above: Any, line: Any, bpp: int) -> None:
    if bpp == 3:
        r = g = b = np.uint8(0)
        for i in range(0, source.shape[0], 3):
            r = np.uint8(source[i] + ((r + above[3 + i]) >> 1))
            g = np.uint8(source[i + 1] + ((g + above[4 + i]) >> 1))
            b = np.uint8(source[i + 2] + ((b + above[5 + i]) >> 1))
            line[3 + i], line[4 + i], line[5 + i] = r, g, b
    else:
        for i in range(source.shape[0]):
            line[bpp + i] = source[i] + ((line[i] + above[bpp + i]) >> 1)


@_jit
def _predict(left: Any, up: Any, corner: Any) -> Any:
    """The Paeth predictor as two selects: the neighbour nearest to left + up - corner.

    With low <= high the two of left and up and t = 3 corner - left - up: high <= t picks low,
    t <= low picks high, and in between the corner itself is nearest.
    """
    a, b, c = np.int32(left), np.int32(up), np.int32(corner)
    low, high = min(a, b), max(a, b)
    t = np.int32(np.int32(c * 3 - b) - a)
    p = low if high <= t else c
    return high if t <= low else p


@_jit
def _paeth3(source: Any, above: Any, line: Any) -> None:
    r = g = b = np.uint8(0)
    for i in range(0, source.shape[0], 3):
        r = np.uint8(source[i] + _predict(r, above[3 + i], above[i]))
        g = np.uint8(source[i + 1] + _predict(g, above[4 + i], above[1 + i]))
        b = np.uint8(source[i + 2] + _predict(b, above[5 + i], above[2 + i]))
        line[3 + i], line[4 + i], line[5 + i] = r, g, b


@_jit
def _paeth4(source: Any, above: Any, line: Any) -> None:
    r = g = b = a = np.uint8(0)
    for i in range(0, source.shape[0], 4):
        r = np.uint8(source[i] + _predict(r, above[4 + i], above[i]))
        g = np.uint8(source[i + 1] + _predict(g, above[5 + i], above[1 + i]))
        b = np.uint8(source[i + 2] + _predict(b, above[6 + i], above[2 + i]))
        a = np.uint8(source[i + 3] + _predict(a, above[7 + i], above[3 + i]))
        line[4 + i], line[5 + i], line[6 + i], line[7 + i] = r, g, b, a


@_jit
def _emit_table(pixels: Any, depth: int, table: Any, out: Any) -> int:
    largest = 0
    mask = (1 << depth) - 1
    for x in range(out.shape[0]):
        bit = x * depth
        index = (pixels[bit >> 3] >> (8 - depth - (bit & 7))) & mask
        largest = max(largest, index)
        out[x, 0], out[x, 1], out[x, 2] = table[index, 0], table[index, 1], table[index, 2]
        if out.shape[1] == 4:
            out[x, 3] = 255
    return largest


@_jit
def _emit_rgb(pixels: Any, out: Any) -> None:
    if out.shape[1] == 3:
        for x in range(out.shape[0]):
            out[x, 0], out[x, 1], out[x, 2] = pixels[3 * x], pixels[3 * x + 1], pixels[3 * x + 2]
    else:
        for x in range(out.shape[0]):
            out[x, 0], out[x, 1], out[x, 2] = pixels[3 * x], pixels[3 * x + 1], pixels[3 * x + 2]
            out[x, 3] = 255


@_jit
def _emit_rgb_key(pixels: Any, key: Any, over: Any, out: Any) -> None:
    for x in range(out.shape[0]):
        r, g, b = pixels[3 * x], pixels[3 * x + 1], pixels[3 * x + 2]
        if r == key[0] and g == key[1] and b == key[2]:
            r, g, b = over[0], over[1], over[2]
        out[x, 0], out[x, 1], out[x, 2] = r, g, b
        if out.shape[1] == 4:
            out[x, 3] = 255


@_jit
def _blend(colour: Any, alpha: Any, over: Any) -> Any:
    """One sample over an opaque background, rounded as PIL.Image.alpha_composite rounds."""
    u = np.int32(np.int32(colour) * np.int32(alpha))
    u = np.int32(u + np.int32(np.int32(over) * np.int32(255 - np.int32(alpha))))
    u = np.int32(u + np.int32(128))
    return np.int32(np.int32(u + np.int32(u >> 8)) >> 8)


@_jit
def _emit_gray_alpha(pixels: Any, over: Any, out: Any) -> None:
    for x in range(out.shape[0]):
        gray, alpha = pixels[2 * x], pixels[2 * x + 1]
        for c in range(3):
            out[x, c] = _blend(gray, alpha, over[c])
        if out.shape[1] == 4:
            out[x, 3] = 255


@_jit
def _emit_rgba(pixels: Any, over: Any, out: Any) -> None:
    r, g, b = over[0], over[1], over[2]
    for x in range(out.shape[0]):
        alpha = pixels[4 * x + 3]
        out[x, 0] = _blend(pixels[4 * x], alpha, r)
        out[x, 1] = _blend(pixels[4 * x + 1], alpha, g)
        out[x, 2] = _blend(pixels[4 * x + 2], alpha, b)
        if out.shape[1] == 4:
            out[x, 3] = 255
