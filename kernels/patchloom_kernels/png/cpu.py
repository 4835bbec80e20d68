"""PNG on a CPU core: inflate, undo the filters, expand to RGB, row by row in the caches."""

import zlib
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from patchloom_kernels.png.inflate import check_length, inflate_rows
from patchloom_kernels.png.parse import Colour, Png, parse_png
from patchloom_kernels.png.pixel_table import emission, pixel_table
from patchloom_kernels.unsupported import Unsupported

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]


def decode_png(data: bytes, background: tuple[int, int, int], out: Bytes | None = None) -> Bytes:
    """Decode a PNG file to [H, W, 3] uint8 RGB, composited on an opaque background.

    The bytes equal Pillow's `Image.alpha_composite(background, image.convert("RGBA"))`. `out` takes
    the pixels instead of a new array: [H, W, 3], or [H, W, 4] whose fourth byte becomes 255; it is
    returned. Unsupported, with `out` then undefined, for every file that Pillow must judge:
    interlaced, 16 bit, animated, damaged. Releases the interpreter lock in all heavy parts.
    """
    png = parse_png(data)
    check_length(png)
    if out is None:
        out = np.empty((png.height, png.width, 3), np.uint8)
    if out.dtype != np.uint8 or out.shape not in [(png.height, png.width, c) for c in (3, 4)]:
        raise ValueError(
            f"out must be uint8 [{png.height}, {png.width}, 3 or 4], got {out.dtype} {out.shape}"
        )
    decode_rows(png, background, out)
    return out


def warm() -> None:
    """Compile, or load from numba's cache, what contiguous outputs need: seconds, once a process."""
    stream = memoryview(zlib.compress(bytes(4)))
    png = Png(1, 1, 8, Colour.RGB, None, None, (stream,))
    decode_rows(png, (0, 0, 0), np.empty((1, 1, 3), np.uint8))


def decode_rows(png: Png, background: tuple[int, int, int], out: Bytes) -> None:
    """Fill `out` [H, W, 3 or 4] from a parsed PNG; Unsupported as in `decode_png`."""
    if out.strides[1:] != (out.shape[2], 1):
        dense = np.empty(out.shape, np.uint8)
        decode_rows(png, background, dense)
        out[:] = dense
        return
    emit, bpp, rows = emission(png), png.bpp, inflate_rows(png)
    flat: npt.NDArray[np.uint8] = out.reshape(png.height, -1)
    largest = _decode_rows(rows, bpp, emit, png.depth, png.width, flat, *_scratch(png, bpp, background))
    if largest < 0:
        raise Unsupported("png filter type")
    if png.palette is not None and largest >= len(png.palette):
        raise Unsupported("png palette index")


def _scratch(png: Png, bpp: int, background: tuple[int, int, int]) -> tuple[Bytes, Words, Words]:
    """What stays in the caches from row to row: two lines, a row of pixels, a table of pixels.

    A line begins with `bpp` zero bytes, the left neighbours of the first pixel.
    """
    lines = np.zeros((2, bpp + png.row_bytes), np.uint8)
    words = np.zeros((png.width + 3) // 4 * 4, np.uint32)
    return lines, words, pixel_table(png, background)


def _jit(function: Any) -> Any:
    return numba.njit(nogil=True, cache=True, error_model="numpy")(function)


@_jit
def _decode_rows(
    filtered: Any,  # [n, 1 + row_bytes]
    bpp: int,
    emit: int,
    depth: int,
    width: int,
    out: Any,  # [n, W * 3 or 4]
    lines: Any,  # [2, bpp + row_bytes]: the line above the first is lines[1]
    words: Any,  # [W rounded up to a multiple of 4] pixels of a row
    table: Any,  # [258] pixels
) -> int:
    """Unfilter and emit n rows; the largest palette index met, or -1 for an unknown filter type."""
    largest, four = 0, out.shape[1] == 4 * width
    for y in range(filtered.shape[0]):
        line, above = lines[y & 1], lines[(y + 1) & 1]
        if not _unfilter(filtered[y, 0], filtered[y][1:], above, line, bpp):
            return -1
        pixels, row = line[bpp:], out[y]
        if emit == 1 and row.shape[0] == pixels.shape[0]:
            for i in range(row.shape[0]):
                row[i] = pixels[i]
            continue
        if emit == 0:
            largest = max(largest, _table_words(pixels, depth, table, words))
        elif emit <= 2:
            _rgb_words(pixels.reshape((-1, 3)), emit == 2, table, words)
        elif emit == 3:
            _gray_alpha_words(pixels.reshape((-1, 2)), table[256], words)
        else:
            _rgba_words(pixels.view(np.uint32), table[256], words)
        _store(words, four, row)
    return largest


@_jit
def _unfilter(kind: int, source: Any, above: Any, line: Any, bpp: int) -> bool:
    """Undo one row's filter; `above` and `line` hold `bpp` zero bytes before the row."""
    n = source.shape[0]
    row, up = line[bpp:], above[bpp:]
    if kind == 0:
        for i in range(n):
            row[i] = source[i]
    elif kind == 2:
        for i in range(n):
            row[i] = source[i] + up[i]
    elif kind > 4:
        return False
    elif bpp == 3:
        _chains3(kind, source.reshape((-1, 3)), up.reshape((-1, 3)), row.reshape((-1, 3)))
    elif bpp == 4:
        _chains4(kind, source.reshape((-1, 4)), up.reshape((-1, 4)), row.reshape((-1, 4)))
    elif kind == 1:
        for i in range(n):
            row[i] = source[i] + line[i]
    elif kind == 3:
        for i in range(n):
            row[i] = source[i] + ((line[i] + up[i]) >> 1)
    else:
        for i in range(n):
            row[i] = source[i] + _predict(line[i], up[i], above[i])
    return True


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
def _chains3(kind: int, source: Any, up: Any, row: Any) -> None:
    """Sub, Average and Paeth for 3 channels, whose 3 chains of dependent steps run side by side."""
    r = g = b = np.uint8(0)
    if kind == 1:
        for x in range(source.shape[0]):
            r = np.uint8(r + source[x, 0])
            g = np.uint8(g + source[x, 1])
            b = np.uint8(b + source[x, 2])
            row[x, 0], row[x, 1], row[x, 2] = r, g, b
    elif kind == 3:
        for x in range(source.shape[0]):
            r = np.uint8(source[x, 0] + ((r + up[x, 0]) >> 1))
            g = np.uint8(source[x, 1] + ((g + up[x, 1]) >> 1))
            b = np.uint8(source[x, 2] + ((b + up[x, 2]) >> 1))
            row[x, 0], row[x, 1], row[x, 2] = r, g, b
    else:
        rc = gc = bc = np.uint8(0)
        for x in range(source.shape[0]):
            ru = up[x, 0]
            gu = up[x, 1]
            bu = up[x, 2]
            r = np.uint8(source[x, 0] + _predict(r, ru, rc))
            g = np.uint8(source[x, 1] + _predict(g, gu, gc))
            b = np.uint8(source[x, 2] + _predict(b, bu, bc))
            rc, gc, bc = ru, gu, bu
            row[x, 0], row[x, 1], row[x, 2] = r, g, b


@_jit
def _chains4(kind: int, source: Any, up: Any, row: Any) -> None:
    """Sub, Average and Paeth for 4 channels, whose 4 chains of dependent steps run side by side."""
    r = g = b = a = np.uint8(0)
    if kind == 1:
        for x in range(source.shape[0]):
            r = np.uint8(r + source[x, 0])
            g = np.uint8(g + source[x, 1])
            b = np.uint8(b + source[x, 2])
            a = np.uint8(a + source[x, 3])
            row[x, 0], row[x, 1], row[x, 2], row[x, 3] = r, g, b, a
    elif kind == 3:
        for x in range(source.shape[0]):
            r = np.uint8(source[x, 0] + ((r + up[x, 0]) >> 1))
            g = np.uint8(source[x, 1] + ((g + up[x, 1]) >> 1))
            b = np.uint8(source[x, 2] + ((b + up[x, 2]) >> 1))
            a = np.uint8(source[x, 3] + ((a + up[x, 3]) >> 1))
            row[x, 0], row[x, 1], row[x, 2], row[x, 3] = r, g, b, a
    else:
        rc = gc = bc = ac = np.uint8(0)
        for x in range(source.shape[0]):
            ru = up[x, 0]
            gu = up[x, 1]
            bu = up[x, 2]
            au = up[x, 3]
            r = np.uint8(source[x, 0] + _predict(r, ru, rc))
            g = np.uint8(source[x, 1] + _predict(g, gu, gc))
            b = np.uint8(source[x, 2] + _predict(b, bu, bc))
            a = np.uint8(source[x, 3] + _predict(a, au, ac))
            rc, gc, bc, ac = ru, gu, bu, au
            row[x, 0], row[x, 1], row[x, 2], row[x, 3] = r, g, b, a


@_jit
def _table_words(pixels: Any, depth: int, table: Any, words: Any) -> int:
    largest = 0
    if depth == 8:
        for x in range(pixels.shape[0]):
            largest = max(largest, pixels[x])
            words[x] = table[pixels[x]]
        return largest
    per_byte, mask = 8 // depth, (1 << depth) - 1
    for i in range(pixels.shape[0]):
        for k in range(per_byte):
            index = (pixels[i] >> (8 - depth - k * depth)) & mask
            x = i * per_byte + k
            if x < words.shape[0]:
                words[x] = table[index]
                largest = max(largest, index)
    return largest


@_jit
def _rgb_words(rgb: Any, keyed: bool, table: Any, words: Any) -> None:
    for x in range(rgb.shape[0]):
        r, g, b = np.uint32(rgb[x, 0]), np.uint32(rgb[x, 1]), np.uint32(rgb[x, 2])
        word = np.uint32(r | (g << np.uint32(8)) | (b << np.uint32(16)) | np.uint32(0xFF000000))
        words[x] = table[256] if keyed and word == table[257] else word


@_jit
def _blend(word: Any, alpha: Any, under: Any) -> Any:
    """A pixel over an opaque one, two samples at a time in 16-bit lanes, rounded as by Pillow.

    u = c alpha + d (255 - alpha) + 128 < 2^16, result (u + (u >> 8)) >> 8 (Image.alpha_composite).
    """
    lanes, half, eight = np.uint32(0x00FF00FF), np.uint32(0x00800080), np.uint32(8)
    rest = np.uint32(np.uint32(255) - alpha)
    rb = np.uint32((word & lanes) * alpha + (under & lanes) * rest + half)
    g = np.uint32(((word >> eight) & lanes) * alpha + ((under >> eight) & lanes) * rest + half)
    rb = np.uint32((np.uint32(rb + ((rb >> eight) & lanes)) >> eight) & lanes)
    g = np.uint32(np.uint32(g + ((g >> eight) & lanes)) & ~lanes)
    return np.uint32(rb | g | np.uint32(0xFF000000))


@_jit
def _gray_alpha_words(gray_alpha: Any, under: Any, words: Any) -> None:
    for x in range(gray_alpha.shape[0]):
        gray = np.uint32(np.uint32(gray_alpha[x, 0]) * np.uint32(0x010101))
        words[x] = _blend(gray, np.uint32(gray_alpha[x, 1]), under)


@_jit
def _rgba_words(rgba: Any, under: Any, words: Any) -> None:
    for x in range(rgba.shape[0]):
        words[x] = _blend(rgba[x], np.uint32(rgba[x] >> np.uint32(24)), under)


@_jit
def _store(words: Any, four: bool, row: Any) -> None:
    """Pixels to the bytes of a row, RGBX or RGB; overwrites `words`."""
    if four:
        packed = words.view(np.uint8)
        for i in range(row.shape[0]):
            row[i] = packed[i]
        return
    low, a, b, c = np.uint32(0xFFFFFF), np.uint32(8), np.uint32(16), np.uint32(24)
    for q in range(words.shape[0] // 4):
        p0, p1 = words[4 * q] & low, words[4 * q + 1] & low
        p2, p3 = words[4 * q + 2] & low, words[4 * q + 3] & low
        words[3 * q] = np.uint32(p0 | (p1 << c))
        words[3 * q + 1] = np.uint32((p1 >> a) | (p2 << b))
        words[3 * q + 2] = np.uint32((p2 >> b) | (p3 << a))
    packed = words.view(np.uint8)
    for i in range(row.shape[0]):
        row[i] = packed[i]
