"""Lays transparent pixels on an opaque background."""

from typing import Any

import numba


@numba.njit(nogil=True, cache=True, error_model="numpy")
def composite(rgba: Any, red: int, green: int, blue: int) -> None:
    """Replace the colours of `rgba` [H, W, 4] uint8 by what shows over the background, in place.

    With colour c, alpha a and background d: u = c a + d (255 - a) + 128, out = (u + (u >> 8)) >> 8,
    which is (c a + d (255 - a)) / 255 rounded to nearest, equal to PIL.Image.alpha_composite.
    The fourth byte is left as it is.
    """
    for y in range(rgba.shape[0]):
        for x in range(rgba.shape[1]):
            alpha = rgba[y, x, 3]
            if alpha == 255:
                continue
            u = rgba[y, x, 0] * alpha + red * (255 - alpha) + 128
            rgba[y, x, 0] = (u + (u >> 8)) >> 8
            u = rgba[y, x, 1] * alpha + green * (255 - alpha) + 128
            rgba[y, x, 1] = (u + (u >> 8)) >> 8
            u = rgba[y, x, 2] * alpha + blue * (255 - alpha) + 128
            rgba[y, x, 2] = (u + (u >> 8)) >> 8
