"""Triton kernels from coefficients to pixels: dequantise and transform, upsample and convert."""

# Triton functions take no annotations but constexpr.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from patchloom_kernels.jpeg import plan

_IMAGE = tl.constexpr(len(plan.Image))
_PLANE = tl.constexpr(len(plan.Plane))
_IMAGE_COLOUR = tl.constexpr(plan.Image.COLOUR.value)
_IMAGE_FIRST_PLANE = tl.constexpr(plan.Image.FIRST_PLANE.value)
_IMAGE_FIRST_TILE = tl.constexpr(plan.Image.FIRST_TILE.value)
_IMAGE_HEIGHT = tl.constexpr(plan.Image.HEIGHT.value)
_IMAGE_LOG_H = tl.constexpr(plan.Image.LOG_H.value)
_IMAGE_LOG_V = tl.constexpr(plan.Image.LOG_V.value)
_IMAGE_OUTPUT = tl.constexpr(plan.Image.OUTPUT.value)
_IMAGE_TRIANGLE_H = tl.constexpr(plan.Image.TRIANGLE_H.value)
_IMAGE_TRIANGLE_V = tl.constexpr(plan.Image.TRIANGLE_V.value)
_IMAGE_WIDTH = tl.constexpr(plan.Image.WIDTH.value)
_PLANE_BLOCKS = tl.constexpr(plan.Plane.BLOCKS.value)
_PLANE_BLOCKS_ACROSS = tl.constexpr(plan.Plane.BLOCKS_ACROSS.value)
_PLANE_BLOCKS_PER_MCU = tl.constexpr(plan.Plane.BLOCKS_PER_MCU.value)
_PLANE_FIRST_BLOCK = tl.constexpr(plan.Plane.FIRST_BLOCK.value)
_PLANE_FIRST_TILE = tl.constexpr(plan.Plane.FIRST_TILE.value)
_PLANE_H = tl.constexpr(plan.Plane.H.value)
_PLANE_HEIGHT = tl.constexpr(plan.Plane.HEIGHT.value)
_PLANE_IN_MCU = tl.constexpr(plan.Plane.IN_MCU.value)
_PLANE_MCUS_ACROSS = tl.constexpr(plan.Plane.MCUS_ACROSS.value)
_PLANE_SAMPLES = tl.constexpr(plan.Plane.SAMPLES.value)
_PLANE_V = tl.constexpr(plan.Plane.V.value)
_PLANE_WIDTH = tl.constexpr(plan.Plane.WIDTH.value)


@triton.jit
def _w16(x):
    return x.to(tl.int16).to(tl.int32)


@triton.jit
def _pass(x0, x1, x2, x3, x4, x5, x6, x7, SHIFT: tl.constexpr):
    """One dimension of the ISLOW inverse DCT (libjpeg-turbo jidctint.c), rounded at SHIFT."""
    t2 = 4433 * x2 - 10704 * x6
    t3 = 10703 * x2 + 4433 * x6
    t0 = (_w16(x0 + x4) << 13) + (1 << (SHIFT - 1))
    t1 = (_w16(x0 - x4) << 13) + (1 << (SHIFT - 1))
    t10 = t0 + t3
    t13 = t0 - t3
    t11 = t1 + t2
    t12 = t1 - t2
    z3 = _w16(x7 + x3)
    z4 = _w16(x5 + x1)
    y3 = 9633 * z4 - 6436 * z3
    y4 = 9633 * z3 + 6437 * z4
    a0 = y3 - 4927 * x7 - 7373 * x1
    a1 = y4 - 4176 * x5 - 20995 * x3
    a2 = y3 + 4177 * x3 - 20995 * x5
    a3 = y4 + 4926 * x1 - 7373 * x7
    return (
        (t10 + a3) >> SHIFT,
        (t11 + a2) >> SHIFT,
        (t12 + a1) >> SHIFT,
        (t13 + a0) >> SHIFT,
        (t13 - a0) >> SHIFT,
        (t12 - a1) >> SHIFT,
        (t11 - a2) >> SHIFT,
        (t10 - a3) >> SHIFT,
    )


@triton.jit
def _row(coefficients, quants, at, quant, column, here, ROW: tl.constexpr):
    """Row ROW of each block, quantised and dequantised with SIMD's wrap to 16 bits. [blocks, 8]"""
    value = tl.load(coefficients + at + ROW * 8 + column, mask=here, other=0).to(tl.int32)
    factor = tl.load(quants + quant + ROW * 8 + column).to(tl.int32)
    return value, _w16(value * factor)


@triton.jit
def _saturated(x, shortcut, even):
    """Pass-1 results as int16: saturated, or wrapped where only the first row is not zero."""
    return tl.where(even, shortcut, tl.minimum(tl.maximum(x, -32768), 32767))


@triton.jit
def _stack(x0, x1, x2, x3, x4, x5, x6, x7, BLOCKS: tl.constexpr):
    """Eight [BLOCKS, 8] -> [BLOCKS, 8, 8] with the eight as the last axis."""
    low = tl.join(tl.join(x0, x4), tl.join(x2, x6))
    high = tl.join(tl.join(x1, x5), tl.join(x3, x7))
    return tl.reshape(tl.join(low, high), (BLOCKS, 8, 8))


@triton.jit
def _unstack(x, BLOCKS: tl.constexpr):
    """[BLOCKS, 8, 8] -> eight [BLOCKS, 8], one for each index of the last axis."""
    low, high = tl.split(tl.reshape(x, (BLOCKS, 8, 2, 2, 2)))
    even, odd = tl.split(low)
    x0, x4 = tl.split(even)
    x2, x6 = tl.split(odd)
    even, odd = tl.split(high)
    x1, x5 = tl.split(even)
    x3, x7 = tl.split(odd)
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def transform(dct_plane, planes, quants, coefficients, dc, samples, BLOCKS: tl.constexpr):
    """BLOCKS blocks of one plane, in raster order, from coefficients to samples."""
    tile = tl.program_id(0)
    index = tl.load(dct_plane + tile)
    plane = planes + index * _PLANE
    blocks_across = tl.load(plane + _PLANE_BLOCKS_ACROSS).to(tl.int32)
    number = (tile - tl.load(plane + _PLANE_FIRST_TILE)).to(tl.int32) * BLOCKS + tl.arange(0, BLOCKS)
    here = number < tl.load(plane + _PLANE_BLOCKS).to(tl.int32)
    row = number // blocks_across
    column = number % blocks_across
    h = tl.load(plane + _PLANE_H).to(tl.int32)
    v = tl.load(plane + _PLANE_V).to(tl.int32)
    mcu = row // v * tl.load(plane + _PLANE_MCUS_ACROSS).to(tl.int32) + column // h
    in_mcu = tl.load(plane + _PLANE_IN_MCU).to(tl.int32) + row % v * h + column % h
    block = (
        tl.load(plane + _PLANE_FIRST_BLOCK)
        + mcu.to(tl.int64) * tl.load(plane + _PLANE_BLOCKS_PER_MCU)
        + in_mcu
    )
    at = (block * 64)[:, None]
    i = tl.arange(0, 8)[None, :]
    mask = here[:, None]
    quant = index * 64
    c1, x1 = _row(coefficients, quants, at, quant, i, mask, 1)
    c2, x2 = _row(coefficients, quants, at, quant, i, mask, 2)
    c3, x3 = _row(coefficients, quants, at, quant, i, mask, 3)
    c4, x4 = _row(coefficients, quants, at, quant, i, mask, 4)
    c5, x5 = _row(coefficients, quants, at, quant, i, mask, 5)
    c6, x6 = _row(coefficients, quants, at, quant, i, mask, 6)
    c7, x7 = _row(coefficients, quants, at, quant, i, mask, 7)
    first = tl.load(dc + block, mask=here, other=0).to(tl.int32)[:, None]
    c0, _ = _row(coefficients, quants, at, quant, i, mask, 0)
    c0 = tl.where(i == 0, first, c0)
    x0 = _w16(c0 * tl.load(quants + quant + i).to(tl.int32))
    uneven = tl.max(tl.where((c1 | c2 | c3 | c4 | c5 | c6 | c7) != 0, 1, 0), 1)
    even = (uneven == 0)[:, None]
    shortcut = _w16(x0 << 2)
    y0, y1, y2, y3, y4, y5, y6, y7 = _pass(x0, x1, x2, x3, x4, x5, x6, x7, 11)
    y = _stack(
        _saturated(y0, shortcut, even),
        _saturated(y1, shortcut, even),
        _saturated(y2, shortcut, even),
        _saturated(y3, shortcut, even),
        _saturated(y4, shortcut, even),
        _saturated(y5, shortcut, even),
        _saturated(y6, shortcut, even),
        _saturated(y7, shortcut, even),
        BLOCKS,
    )
    x0, x1, x2, x3, x4, x5, x6, x7 = _unstack(tl.permute(y, (0, 2, 1)), BLOCKS)
    y0, y1, y2, y3, y4, y5, y6, y7 = _pass(x0, x1, x2, x3, x4, x5, x6, x7, 18)
    y = _stack(y0, y1, y2, y3, y4, y5, y6, y7, BLOCKS)
    pixel = (tl.minimum(tl.maximum(y, -128), 127) + 128).to(tl.uint8)
    corner = tl.load(plane + _PLANE_SAMPLES) + row.to(tl.int64) * (blocks_across * 64) + column * 8
    line = tl.arange(0, 8)[None, :, None] * (blocks_across * 8)
    to = corner[:, None, None] + line + tl.arange(0, 8)[None, None, :]
    tl.store(samples + to, pixel, mask=here[:, None, None])


@triton.jit
def _chroma(samples, plane, cy, cx, ny, nx, a, c, bias, shift, here):
    """A chroma sample at full size: weights a : 4 - a down and c : 4 - c across, or 1 : 0."""
    stride = tl.load(plane + _PLANE_BLOCKS_ACROSS) * 8
    base = samples + tl.load(plane + _PLANE_SAMPLES)
    own_row = base + cy * stride
    next_row = base + ny * stride
    b = tl.where(a == 3, 1, 0)
    d = tl.where(c == 3, 1, 0)
    p00 = tl.load(own_row + cx, mask=here, other=0).to(tl.int32)
    p01 = tl.load(own_row + nx, mask=here, other=0).to(tl.int32)
    p10 = tl.load(next_row + cx, mask=here, other=0).to(tl.int32)
    p11 = tl.load(next_row + nx, mask=here, other=0).to(tl.int32)
    return (c * (a * p00 + b * p10) + d * (a * p01 + b * p11) + bias) >> shift


@triton.jit
def colour(pixel_image, images, planes, samples, out, CHANNELS: tl.constexpr, PIXELS: tl.constexpr):
    """PIXELS pixels of one image, in raster order, from planes to RGB or RGBX bytes."""
    tile = tl.program_id(0)
    image = images + tl.load(pixel_image + tile) * _IMAGE
    width = tl.load(image + _IMAGE_WIDTH).to(tl.int32)
    height = tl.load(image + _IMAGE_HEIGHT).to(tl.int32)
    i = (tile - tl.load(image + _IMAGE_FIRST_TILE)).to(tl.int32) * PIXELS + tl.arange(0, PIXELS)
    here = i < width * height
    y = i // width
    x = i % width
    plane = planes + tl.load(image + _IMAGE_FIRST_PLANE) * _PLANE
    at = tl.load(plane + _PLANE_SAMPLES) + y.to(tl.int64) * (tl.load(plane + _PLANE_BLOCKS_ACROSS) * 8) + x
    first = tl.load(samples + at, mask=here, other=0).to(tl.int32)
    mode = tl.load(image + _IMAGE_COLOUR)
    red = first
    green = first
    blue = first
    if mode > 0:
        plane_height = tl.load(plane + _PLANE + _PLANE_HEIGHT).to(tl.int32)
        plane_width = tl.load(plane + _PLANE + _PLANE_WIDTH).to(tl.int32)
        log_h = tl.load(image + _IMAGE_LOG_H).to(tl.int32)
        log_v = tl.load(image + _IMAGE_LOG_V).to(tl.int32)
        across = tl.load(image + _IMAGE_TRIANGLE_H).to(tl.int32)
        down = tl.load(image + _IMAGE_TRIANGLE_V).to(tl.int32)
        cy = y >> log_v
        cx = x >> log_h
        ny = tl.minimum(tl.maximum(cy + (y & 1) * 2 - 1, 0), plane_height - 1)
        nx = tl.minimum(tl.maximum(cx + (x & 1) * 2 - 1, 0), plane_width - 1)
        ny = tl.where(down > 0, ny, cy)
        nx = tl.where(across > 0, nx, cx)
        # Roundings of libjpeg-turbo's jdsample.c: h2v2 8 and 7, h2v1 1 and 2, h1v2 1 and 2.
        bias = tl.where(across > 0, 1 + (x & 1), down * (1 + (y & 1)))
        bias = tl.where(across * down > 0, 8 - (x & 1), bias)
        a = 1 + 2 * down
        c = 1 + 2 * across
        shift = 2 * (across + down)
        cb = _chroma(samples, plane + _PLANE, cy, cx, ny, nx, a, c, bias, shift, here)
        cr = _chroma(samples, plane + 2 * _PLANE, cy, cx, ny, nx, a, c, bias, shift, here)
        if mode == 1:
            cb -= 128
            cr -= 128
            red = first + ((91881 * cr + 32768) >> 16)
            green = first + ((-22554 * cb - 46802 * cr + 32768) >> 16)
            blue = first + ((116130 * cb + 32768) >> 16)
        else:
            green = cb
            blue = cr
    red = tl.minimum(tl.maximum(red, 0), 255)
    green = tl.minimum(tl.maximum(green, 0), 255)
    blue = tl.minimum(tl.maximum(blue, 0), 255)
    to = out + tl.load(image + _IMAGE_OUTPUT) + i.to(tl.int64) * CHANNELS
    tl.store(to, red.to(tl.uint8), mask=here)
    tl.store(to + 1, green.to(tl.uint8), mask=here)
    tl.store(to + 2, blue.to(tl.uint8), mask=here)
    if CHANNELS == 4:
        tl.store(to + 3, tl.full((PIXELS,), 255, tl.uint8), mask=here)
