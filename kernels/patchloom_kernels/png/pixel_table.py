"""How the samples of a row become pixels: the kind of emission and its table of 258 pixels."""

import numpy as np
import numpy.typing as npt

from patchloom_kernels.png.parse import Colour, Png

TABLE, RGB, RGB_KEY, GRAY_ALPHA, RGBA = range(5)
_EMISSION = {
    Colour.GRAY: TABLE,
    Colour.PALETTE: TABLE,
    Colour.RGB: RGB,
    Colour.GRAY_ALPHA: GRAY_ALPHA,
    Colour.RGBA: RGBA,
}


def emission(png: Png) -> int:
    """Which of the five ways leads from the samples of this image to RGB."""
    return RGB_KEY if png.colour is Colour.RGB and png.key else _EMISSION[png.colour]


def pixel_table(png: Png, background: tuple[int, int, int]) -> npt.NDArray[np.uint32]:
    """[258] pixels r | g << 8 | b << 16 | 255 << 24.

    The first 256 belong to gray samples or palette indices and are already on the background; entry
    256 is the background, 257 the transparent colour of an RGB image.
    """
    table = np.full((258, 4), 255, np.uint8)
    table[:256, :3] = _colours(png, background)
    table[256, :3] = background
    table[257, :3] = png.key or 0
    return table.view("<u4")[:, 0].astype(np.uint32)


def _colours(png: Png, background: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
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
