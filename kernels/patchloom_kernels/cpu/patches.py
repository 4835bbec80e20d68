"""Normalise and cut in compiled code: finished rows of pixels become runs of patch values."""

from typing import Any

from numba import njit


@njit(nogil=True, cache=True)
def normalize_row(pixels: Any, step: int, width: int, entries: Any, band: Any, y: int, left: int) -> None:
    """Look the levels of one row up and lay them from column `left` of `band` [3, rows, columns] on.

    `pixels` is uint8 with `step` bytes a pixel, `entries` [3, 257] of the type of `band`.
    """
    if step == 4:
        for channel in range(3):
            row, lut = band[channel, y, left : left + width], entries[channel]
            for x in range(width):
                row[x] = lut[pixels[4 * x + channel]]
    else:
        for channel in range(3):
            row, lut = band[channel, y, left : left + width], entries[channel]
            for x in range(width):
                row[x] = lut[pixels[3 * x + channel]]


@njit(nogil=True, cache=True)
def fill_row(entries: Any, pad: Any, band: Any, y: int, begin: int, end: int) -> None:
    """Lay padding over the columns from `begin` to `end` of one row."""
    for channel in range(3):
        value = entries[channel, pad[channel]]
        for x in range(begin, end):
            band[channel, y, x] = value


@njit(nogil=True, cache=True)
def patch_starts(patch_row: int, merge: int, start: int, to_patch: int, starts: Any) -> None:
    """Where each patch of one row of patches begins: patches of a merge group stand together."""
    across = starts.shape[0]
    for column in range(across):
        group = patch_row // merge * (across // merge) + column // merge
        number = (group * merge + patch_row % merge) * merge + column % merge
        starts[column] = start + number * to_patch


@njit(nogil=True, cache=True)
def cut(
    band: Any,
    height: int,
    patch_width: int,
    starts: Any,
    offset: int,
    copies: int,
    strides: Any,
    out: Any,
) -> None:
    """Write the first `height` rows of a band, which lie within one row of patches, to their places.

    `starts` is what `patch_starts` wrote, `offset` leads to the band within a patch, and `strides`
    int64 [5] along patch, channel, copy, y and x of the flat `out`.
    """
    to_channel, to_copy, to_y, to_x = strides[1], strides[2], strides[3], strides[4]
    for patch in range(starts.shape[0]):
        left = patch * patch_width
        for channel in range(3):
            for copy in range(copies):
                at = starts[patch] + offset + channel * to_channel + copy * to_copy
                for y in range(height):
                    if to_x == 1:
                        _copy_run(band[channel, y], left, out, at, patch_width)
                    else:
                        for x in range(patch_width):
                            out[at + x * to_x] = band[channel, y, left + x]
                    at += to_y


@njit(nogil=True, cache=True)
def _copy_run(source: Any, left: int, out: Any, at: int, count: int) -> None:
    """Copy by eights, the last eight overlapping those before: no loop for a remainder."""
    if count < 8:
        for i in range(count):
            out[at + i] = source[left + i]
        return
    for i in range(0, count - 7, 8):
        _copy8(source, left + i, out, at + i)
    if count % 8:
        _copy8(source, left + count - 8, out, at + count - 8)


@njit(nogil=True, cache=True, inline="always")
def _copy8(source: Any, left: int, out: Any, at: int) -> None:
    a, b, c, d = source[left], source[left + 1], source[left + 2], source[left + 3]
    e, f, g, h = source[left + 4], source[left + 5], source[left + 6], source[left + 7]
    out[at], out[at + 1], out[at + 2], out[at + 3] = a, b, c, d
    out[at + 4], out[at + 5], out[at + 6], out[at + 7] = e, f, g, h
