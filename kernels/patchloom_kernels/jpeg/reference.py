"""Baseline JPEG by definition, in plain Python and numpy: the same bytes as libjpeg-turbo's defaults.

The integer formulas are those of libjpeg-turbo's jidctint.c, jdsample.c and jdcolor.c, with
the wrapping and saturation of its SIMD twins where out-of-range data makes them differ.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from patchloom_kernels.jpeg.parse import ZIGZAG, Colour, HuffmanTable, Jpeg, parse_jpeg
from patchloom_kernels.unsupported import Unsupported

Ints = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]


def decode_jpeg(data: bytes) -> Bytes:
    """A JPEG file -> [H, W, 3] uint8, equal to Pillow's pixels; Unsupported what Pillow must judge."""
    jpeg = parse_jpeg(data)
    coefficients = decode_coefficients(jpeg)
    planes = [upsample(jpeg, i, samples(jpeg, i, blocks)) for i, blocks in enumerate(coefficients)]
    return to_rgb(jpeg.colour, planes)


def segments(jpeg: Jpeg) -> list[bytes]:
    """The scan cut at its restart markers and freed of stuffing; Unsupported if they are not in order."""
    scan = bytes(jpeg.scan)
    starts, ends = [0], list[int]()
    for position in range(len(scan) - 1):
        if scan[position] == 0xFF and scan[position + 1] != 0:
            if scan[position + 1] != 0xD0 + len(ends) % 8:
                raise Unsupported("jpeg restart order")
            ends.append(position)
            starts.append(position + 2)
    ends.append(len(scan))
    down, across = jpeg.mcus
    expected = -(-down * across // jpeg.restart) if jpeg.restart else 1
    if len(ends) != expected:
        raise Unsupported("jpeg restart count")
    cuts = zip(starts, ends, strict=True)
    return [scan[start:end].replace(b"\xff\0", b"\xff") for start, end in cuts]


class _Bits:
    """The bits of one segment, most significant first."""

    def __init__(self, data: bytes) -> None:
        self._bits = np.unpackbits(np.frombuffer(data, np.uint8)).tolist()
        self.position = 0

    def left(self) -> int:
        return len(self._bits) - self.position

    def read(self, count: int) -> int:
        if self.left() < count:
            raise Unsupported("jpeg data ends early")
        value = 0
        for bit in self._bits[self.position : self.position + count]:
            value = value << 1 | bit
        self.position += count
        return value


def _codes(table: HuffmanTable) -> dict[tuple[int, int], int]:
    """(length, code) -> symbol of a canonical code (JPEG specification, annex C)."""
    codes, code, symbols = {}, 0, iter(table.symbols)
    for length, count in enumerate(table.counts, 1):
        for _ in range(count):
            codes[length, code] = next(symbols)
            code += 1
        code <<= 1
    return codes


def _symbol(bits: _Bits, codes: dict[tuple[int, int], int]) -> int:
    code = 0
    for length in range(1, 17):
        code = code << 1 | bits.read(1)
        if (length, code) in codes:
            return codes[length, code]
    raise Unsupported("jpeg code invalid")


def _extend(bits: _Bits, size: int) -> int:
    """A signed value of `size` bits: the lower half of the range is negative."""
    value = bits.read(size)
    return value if value >= 1 << size >> 1 else value - (1 << size) + 1


def decode_coefficients(jpeg: Jpeg) -> list[Ints]:
    """Per component [blocks down, blocks across, 64] quantised coefficients in natural order."""
    down, across = jpeg.mcus
    planes = [np.zeros((down * c.v, across * c.h, 64), np.int32) for c in jpeg.components]
    codes = [(_codes(c.dc), _codes(c.ac)) for c in jpeg.components]
    mcu, total = 0, down * across
    for segment in segments(jpeg):
        bits, predictors = _Bits(segment), [0] * len(planes)
        for _ in range(min(jpeg.restart or total, total - mcu)):
            for i, row, column in _mcu_blocks(jpeg, mcu):
                block = planes[i][row, column]
                _decode_block(bits, *codes[i], block)
                predictors[i] += int(block[0])
                block[0] = _w16(np.int32(predictors[i]))
            mcu += 1
        if bits.left() > 7:
            raise Unsupported("jpeg data left over")
    return planes


def _mcu_blocks(jpeg: Jpeg, mcu: int) -> Iterator[tuple[int, int, int]]:
    """(component, block row, block column) of an MCU in the order of the stream."""
    y, x = divmod(mcu, jpeg.mcus[1])
    for i, c in enumerate(jpeg.components):
        for dy in range(c.v):
            for dx in range(c.h):
                yield i, y * c.v + dy, x * c.h + dx


def _decode_block(
    bits: _Bits, dc: dict[tuple[int, int], int], ac: dict[tuple[int, int], int], block: Ints
) -> None:
    block[0] = _extend(bits, _symbol(bits, dc))
    z = 1
    while z < 64:
        run, size = divmod(_symbol(bits, ac), 16)
        if size == 0 and run < 15:
            return
        z += run + (size == 0)
        if z + (size > 0) > 64:
            raise Unsupported("jpeg block too long")
        if size:
            block[ZIGZAG[z]] = _extend(bits, size)
            z += 1


def _w16(x: npt.NDArray[np.int32] | np.int32) -> Ints:
    """Wrap to 16 bits."""
    return np.asarray(x).astype(np.int16).astype(np.int32)


def idct_pass(x: list[Ints], shift: int) -> list[Ints]:
    """One dimension of the ISLOW inverse DCT over eight arrays of int32; rounds at `shift`."""
    t2 = 4433 * x[2] - 10704 * x[6]
    t3 = 10703 * x[2] + 4433 * x[6]
    t0, t1 = _w16(x[0] + x[4]) << 13, _w16(x[0] - x[4]) << 13
    t10, t13, t11, t12 = t0 + t3, t0 - t3, t1 + t2, t1 - t2
    z3, z4 = _w16(x[7] + x[3]), _w16(x[5] + x[1])
    y3, y4 = -6436 * z3 + 9633 * z4, 9633 * z3 + 6437 * z4
    a0 = -4927 * x[7] - 7373 * x[1] + y3
    a1 = -4176 * x[5] - 20995 * x[3] + y4
    a2 = 4177 * x[3] - 20995 * x[5] + y3
    a3 = 4926 * x[1] - 7373 * x[7] + y4
    r = 1 << (shift - 1)
    even, odd = (t10, t11, t12, t13), (a3, a2, a1, a0)
    low = [(e + o + r) >> shift for e, o in zip(even, odd, strict=True)]
    high = [(e - o + r) >> shift for e, o in zip(even, odd, strict=True)]
    return low + high[::-1]


def idct(blocks: Ints, quant: Bytes) -> Bytes:
    """[..., 64] quantised coefficients and [64] quantisation -> [..., 8, 8] samples."""
    with np.errstate(over="ignore"):
        d = _w16(blocks * quant.astype(np.int32)).reshape(*blocks.shape[:-1], 8, 8)
        columns = idct_pass([d[..., k, :] for k in range(8)], 11)
        rows = np.clip(np.stack(columns, -2), -32768, 32767)
        uneven = np.any(blocks.reshape(d.shape)[..., 1:, :], (-1, -2), keepdims=True)
        rows = np.where(uneven, rows, _w16(d[..., :1, :] << 2))
        values = np.stack(idct_pass([rows[..., k] for k in range(8)], 18), -1)
    return (np.clip(values, -128, 127) + 128).astype(np.uint8)


def samples(jpeg: Jpeg, component: int, blocks: Ints) -> Bytes:
    """The component's real samples [h, w], cut from its whole blocks."""
    pixels = idct(blocks, jpeg.components[component].quant).swapaxes(1, 2)
    plane = pixels.reshape(blocks.shape[0] * 8, blocks.shape[1] * 8)
    height, width = jpeg.plane_size(component)
    return plane[:height, :width]


def upsample(jpeg: Jpeg, component: int, plane: Bytes) -> Bytes:
    """[h, w] samples -> [H, W]: triangle filter for factors of 2, replication for the rest."""
    h = jpeg.components[0].h // jpeg.components[component].h
    v = jpeg.components[0].v // jpeg.components[component].v
    p = plane.astype(np.int32)
    above, below = np.vstack([p[:1], p[:-1]]), np.vstack([p[1:], p[-1:]])
    if h > 2 or (h == 2 and p.shape[1] <= 2):
        full = np.repeat(np.repeat(p, v, 0), h, 1)
    elif (h, v) == (2, 1):
        full = _interleave(*_triangle(p, 1, 2, 2), axis=1)
    elif (h, v) == (1, 2):
        full = _interleave((3 * p + above + 1) >> 2, (3 * p + below + 2) >> 2, axis=0)
    elif (h, v) == (2, 2):
        rows = _interleave(3 * p + above, 3 * p + below, axis=0)
        full = _interleave(*_triangle(rows, 8, 7, 4), axis=1)
    else:
        full = p
    return full[: jpeg.height, : jpeg.width].astype(np.uint8)


def _triangle(p: Ints, left: int, right: int, shift: int) -> tuple[Ints, Ints]:
    """The even and odd columns of a row of samples at twice the width, with their roundings."""
    before, after = np.hstack([p[:, :1], p[:, :-1]]), np.hstack([p[:, 1:], p[:, -1:]])
    return (3 * p + before + left) >> shift, (3 * p + after + right) >> shift


def _interleave(even: Ints, odd: Ints, axis: int) -> Ints:
    shape = list(even.shape)
    shape[axis] *= 2
    return np.stack([even, odd], axis + 1).reshape(shape)


def to_rgb(colour: Colour, planes: list[Bytes]) -> Bytes:
    """Full-size component planes -> [H, W, 3]."""
    if colour is not Colour.YCC:
        return np.stack(planes if len(planes) == 3 else planes * 3, -1)
    y, cb, cr = (plane.astype(np.int32) for plane in planes)
    cb, cr = cb - 128, cr - 128
    red = y + ((91881 * cr + 32768) >> 16)
    green = y + ((-22554 * cb - 46802 * cr + 32768) >> 16)
    blue = y + ((116130 * cb + 32768) >> 16)
    rgb: Bytes = np.clip(np.stack([red, green, blue], -1), 0, 255).astype(np.uint8)
    return rgb
