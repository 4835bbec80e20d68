# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False
# mypy: disallow-untyped-calls=False, disallow-incomplete-defs=False
"""The first pass of a resize in Triton: a tile of source pixels into a tile of words.

A word holds one pixel, red in the low byte. Sums are int32 in units of 2 ** -22 (filters.py), rounded
and clamped to a level after each pass. Loops run over the taps; nothing is unrolled by filter size. They are
spelled with `while` because Triton 3.6's interpreter cannot take a tensor as the bound of a range
under numpy 2.4 and later.
"""

import triton
import triton.language as tl

HALF = tl.constexpr(1 << 21)
SHIFT = tl.constexpr(22)


@triton.jit
def to_level(total):
    """A sum of weighted levels as a level."""
    return tl.minimum(tl.maximum(total >> SHIFT, 0), 255)


@triton.jit
def first_pass(
    data,  # uint8 pointer to pixel (0, 0)
    pitch,
    step,
    table,  # int32 pointer: first [outs], weights [taps, outs]
    outs,
    taps,
    limit,  # source pixels along the axis of the pass
    row,
    column,
    rows,
    columns,
    scratch,  # int32 pointer [rows, columns]
    VERTICAL: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Blend along one axis; `row` and `column` count outputs on that axis and source pixels on the other."""
    top = 0
    while top < rows:
        left = 0
        while left < columns:
            i = top + tl.arange(0, BLOCK_ROWS)
            j = left + tl.arange(0, BLOCK_COLUMNS)
            live = (i < rows)[:, None] & (j < columns)[None, :]
            if VERTICAL:
                out, seen = row + i, i < rows
                across = ((column + j) * step).to(tl.int64)[None, :]
            else:
                out, seen = column + j, j < columns
                across = ((row + i).to(tl.int64) * pitch)[:, None]
            first = tl.load(table + out, mask=seen, other=0)
            red = tl.full((BLOCK_ROWS, BLOCK_COLUMNS), HALF, tl.int32)
            green = red
            blue = red
            tap = 0
            while tap < taps:
                weight = tl.load(table + (1 + tap) * outs + out, mask=seen, other=0)
                # weights behind the last source pixel are 0
                at = tl.minimum(first + tap, limit - 1)
                if VERTICAL:
                    pixel = data + ((at.to(tl.int64) * pitch)[:, None] + across)
                    weight = weight[:, None]
                else:
                    pixel = data + ((at * step).to(tl.int64)[None, :] + across)
                    weight = weight[None, :]
                red += weight * tl.load(pixel, mask=live, other=0).to(tl.int32)
                green += weight * tl.load(pixel + 1, mask=live, other=0).to(tl.int32)
                blue += weight * tl.load(pixel + 2, mask=live, other=0).to(tl.int32)
                tap += 1
            word = to_level(red) | (to_level(green) << 8) | (to_level(blue) << 16)
            tl.store(scratch + (i * columns)[:, None] + j[None, :], word, mask=live)
            left += BLOCK_COLUMNS
        top += BLOCK_ROWS
