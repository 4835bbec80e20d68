"""Triton kernels from filtered PNG rows to pixels: running sums, wavefronts, emission.

A segment is a run of rows that depends on no row above it: it begins at row 0 or at a row of filter
None or Sub. Channels never mix in a filter, so each is a problem of its own. The layouts of all
tables are in `plan.py`.
"""

import triton
import triton.language as tl

# Triton functions take no annotations but constexpr.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from patchloom_kernels.png import plan

_SEGMENT = tl.constexpr(len(plan.Segment))
_IMAGE = tl.constexpr(len(plan.Image))
_IMAGE_BPP = tl.constexpr(plan.Image.BPP.value)
_IMAGE_DEPTH = tl.constexpr(plan.Image.DEPTH.value)
_IMAGE_EMISSION = tl.constexpr(plan.Image.EMISSION.value)
_IMAGE_ENTRIES = tl.constexpr(plan.Image.ENTRIES.value)
_IMAGE_FILTERED = tl.constexpr(plan.Image.FILTERED.value)
_IMAGE_FIRST_TILE = tl.constexpr(plan.Image.FIRST_TILE.value)
_IMAGE_HEIGHT = tl.constexpr(plan.Image.HEIGHT.value)
_IMAGE_OUTPUT = tl.constexpr(plan.Image.OUTPUT.value)
_IMAGE_ROWS = tl.constexpr(plan.Image.ROWS.value)
_IMAGE_ROW_BYTES = tl.constexpr(plan.Image.ROW_BYTES.value)
_IMAGE_WIDTH = tl.constexpr(plan.Image.WIDTH.value)
_SEGMENT_COUNT = tl.constexpr(plan.Segment.COUNT.value)
_SEGMENT_FIRST_ROW = tl.constexpr(plan.Segment.FIRST_ROW.value)
_SEGMENT_IMAGE = tl.constexpr(plan.Segment.IMAGE.value)
_PIXEL_TABLE = tl.constexpr(plan.TABLE_ENTRIES)

BAD_INDEX = 1
"""Flag of an image with a palette index that has no entry."""


@triton.jit
def sum_across(segments, images, filtered, rows, CHUNK: tl.constexpr):
    """The first row of a segment without Average or Paeth: Sub is a running sum modulo 256."""
    segment = segments + tl.program_id(0) * _SEGMENT
    channel = tl.program_id(1)
    image = images + tl.load(segment + _SEGMENT_IMAGE) * _IMAGE
    bpp = tl.load(image + _IMAGE_BPP).to(tl.int32)
    if channel < bpp:
        row_bytes = tl.load(image + _IMAGE_ROW_BYTES)
        first = tl.load(segment + _SEGMENT_FIRST_ROW)
        source = filtered + tl.load(image + _IMAGE_FILTERED) + first * (row_bytes + 1)
        target = rows + tl.load(image + _IMAGE_ROWS) + first * row_bytes
        sub = tl.load(source).to(tl.int32) == 1
        count = (row_bytes // bpp).to(tl.int32)
        carry = 0
        for begin in range(0, count, CHUNK):
            x = begin + tl.arange(0, CHUNK)
            at = x * bpp + channel
            value = tl.load(source + 1 + at, mask=x < count, other=0).to(tl.int32)
            value = tl.where(sub, tl.cumsum(value, 0) + carry, value)
            carry = tl.sum(tl.where(x == begin + CHUNK - 1, value, 0), 0)
            tl.store(target + at, (value & 255).to(tl.uint8), mask=x < count)


@triton.jit
def sum_down(segments, images, filtered, rows, COLUMNS: tl.constexpr):
    """The Up rows of a segment without Average or Paeth: running sums down the columns."""
    segment = segments + tl.program_id(0) * _SEGMENT
    image = images + tl.load(segment + _SEGMENT_IMAGE) * _IMAGE
    row_bytes = tl.load(image + _IMAGE_ROW_BYTES)
    i = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    if tl.program_id(1) * COLUMNS < row_bytes:
        first = tl.load(segment + _SEGMENT_FIRST_ROW)
        count = tl.load(segment + _SEGMENT_COUNT).to(tl.int32)
        source = filtered + tl.load(image + _IMAGE_FILTERED) + 1 + first * (row_bytes + 1) + i
        target = rows + tl.load(image + _IMAGE_ROWS) + first * row_bytes + i
        here = i < row_bytes
        value = tl.load(target, mask=here, other=0).to(tl.int32)
        for _ in range(1, count):
            source += row_bytes + 1
            target += row_bytes
            value += tl.load(source, mask=here, other=0).to(tl.int32)
            tl.store(target, value.to(tl.uint8), mask=here)


@triton.jit
def _paeth(a, b, c):
    """Two selects: with low <= high of a and b, t = 3 c - a - b: high <= t picks low, t <= low high."""
    low = tl.minimum(a, b)
    high = tl.maximum(a, b)
    t = 3 * c - a - b
    return tl.where(t <= low, high, tl.where(high <= t, low, c))


@triton.jit
def wavefront(segments, images, filtered, rows, LANES: tl.constexpr):
    """A segment of any filters: lane r is row r of a band, in step t at pixel t - r.

    The lane above wrote its pixel one step earlier. The lane's left neighbour is its own last pixel,
    the upper left one the upper neighbour of the step before. Lane 0 reads the last row of the band
    above, which this program has stored, or zeros.
    """
    segment = segments + tl.program_id(0) * _SEGMENT
    channel = tl.program_id(1)
    image = images + tl.load(segment + _SEGMENT_IMAGE) * _IMAGE
    bpp = tl.load(image + _IMAGE_BPP).to(tl.int32)
    if channel < bpp:
        row_bytes = tl.load(image + _IMAGE_ROW_BYTES)
        first = tl.load(segment + _SEGMENT_FIRST_ROW)
        count = tl.load(segment + _SEGMENT_COUNT).to(tl.int32)
        pixels = (row_bytes // bpp).to(tl.int32)
        source = filtered + tl.load(image + _IMAGE_FILTERED) + first * (row_bytes + 1)
        target = rows + tl.load(image + _IMAGE_ROWS) + first * row_bytes + channel
        lane = tl.arange(0, LANES)
        for band in range(0, count, LANES):
            row = band + lane
            here = row < count
            line = source + row.to(tl.int64) * (row_bytes + 1)
            kind = tl.load(line, mask=here, other=0).to(tl.int32)
            into = target + row.to(tl.int64) * row_bytes
            above = target + (band - 1) * row_bytes
            left = tl.zeros((LANES,), tl.int32)
            corner = tl.zeros((LANES,), tl.int32)
            for step in range(pixels + tl.minimum(count - band, LANES) - 1):
                x = step - lane
                live = here & (x >= 0) & (x < pixels)
                up = tl.gather(left, tl.maximum(lane - 1, 0), 0)
                edge = tl.load(above + x * bpp, mask=live & (lane == 0) & (band > 0), other=0).to(tl.int32)
                up = tl.where(lane == 0, edge, up)
                value = tl.load(line + 1 + channel + x * bpp, mask=live, other=0).to(tl.int32)
                prediction = tl.where(kind == 1, left, 0)
                prediction = tl.where(kind == 2, up, prediction)
                prediction = tl.where(kind == 3, (left + up) >> 1, prediction)
                prediction = tl.where(kind == 4, _paeth(left, up, corner), prediction)
                value = (value + prediction) & 255
                left = tl.where(live, value, left)
                corner = tl.where(live, up, corner)
                tl.store(into + x * bpp, value.to(tl.uint8), mask=live)
            tl.debug_barrier()


@triton.jit
def _over(colour, alpha, under):
    """A sample over an opaque background, rounded as by Pillow's alpha_composite."""
    u = colour * alpha + under * (255 - alpha) + 128
    return (u + (u >> 8)) >> 8


@triton.jit
def emit(pixel_image, images, tables, rows, out, flags, CHANNELS: tl.constexpr, PIXELS: tl.constexpr):
    """PIXELS pixels of one image, in raster order, from unfiltered rows to RGB or RGBX bytes."""
    tile = tl.program_id(0)
    index = tl.load(pixel_image + tile)
    image = images + index * _IMAGE
    row_bytes = tl.load(image + _IMAGE_ROW_BYTES)
    bpp = tl.load(image + _IMAGE_BPP).to(tl.int32)
    width = tl.load(image + _IMAGE_WIDTH).to(tl.int32)
    height = tl.load(image + _IMAGE_HEIGHT).to(tl.int32)
    mode = tl.load(image + _IMAGE_EMISSION).to(tl.int32)
    depth = tl.load(image + _IMAGE_DEPTH).to(tl.int32)
    i = (tile - tl.load(image + _IMAGE_FIRST_TILE)).to(tl.int32) * PIXELS + tl.arange(0, PIXELS)
    here = i < width * height
    y = i // width
    x = i % width
    line = rows + tl.load(image + _IMAGE_ROWS) + y.to(tl.int64) * row_bytes
    table = tables + index * _PIXEL_TABLE
    under = tl.load(table + 256)
    if mode == 0:
        bit = x * depth
        byte = tl.load(line + (bit >> 3), mask=here, other=0).to(tl.int32)
        level = (byte >> (8 - depth - (bit & 7))) & ((1 << depth) - 1)
        bad = tl.max((level >= tl.load(image + _IMAGE_ENTRIES).to(tl.int32)).to(tl.int32), 0)
        tl.atomic_or(flags + index, 1, mask=bad > 0)
        word = tl.load(table + level)
        red = word & 255
        green = (word >> 8) & 255
        blue = (word >> 16) & 255
    else:
        # Gray images repeat their one colour; the last sample of modes 3 and 4 is alpha.
        step = tl.where(mode == 3, 0, 1)
        at = line + x * bpp
        red = tl.load(at, mask=here, other=0).to(tl.int32)
        green = tl.load(at + step, mask=here, other=0).to(tl.int32)
        blue = tl.load(at + 2 * step, mask=here, other=0).to(tl.int32)
        key = tl.load(table + 257)
        same = (red | (green << 8) | (blue << 16)) == (key & 0xFFFFFF)
        alpha = tl.load(at + bpp - 1, mask=here & (mode >= 3), other=255).to(tl.int32)
        alpha = tl.where((mode == 2) & same, 0, alpha)
        red = _over(red, alpha, under & 255)
        green = _over(green, alpha, (under >> 8) & 255)
        blue = _over(blue, alpha, (under >> 16) & 255)
    to = out + tl.load(image + _IMAGE_OUTPUT) + i.to(tl.int64) * CHANNELS
    tl.store(to, red.to(tl.uint8), mask=here)
    tl.store(to + 1, green.to(tl.uint8), mask=here)
    tl.store(to + 2, blue.to(tl.uint8), mask=here)
    if CHANNELS == 4:
        tl.store(to + 3, tl.full((PIXELS,), 255, tl.uint8), mask=here)
