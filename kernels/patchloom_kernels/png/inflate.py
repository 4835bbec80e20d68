"""Inflate the pixel data of a PNG, never beyond the size that its header states."""

import numpy as np
import numpy.typing as npt

from patchloom_kernels.png.compiled_inflate import PADDING, SLACK, inflate
from patchloom_kernels.png.parse import Png
from patchloom_kernels.unsupported import Unsupported

# Deflate expands no further (258 bytes from 2 bits), so a smaller stream cannot hold the image.
_MAX_RATIO = 1032


def check_length(png: Png) -> None:
    """Unsupported where the stream is too short for the image, whatever is in it."""
    if sum(map(len, png.idat)) * _MAX_RATIO < png.filtered_bytes:
        raise Unsupported("png pixel data too short")


def inflate_rows(png: Png) -> npt.NDArray[np.uint8]:
    """The filtered rows [H, 1 + row_bytes], each behind the number of its filter.

    Unsupported where the stream is damaged, too short or too long. Releases the interpreter lock.
    """
    check_length(png)
    stream = np.frombuffer(b"".join((*png.idat, bytes(PADDING))), np.uint8)
    filtered = np.empty(png.filtered_bytes + SLACK, np.uint8)
    if not inflate(stream, filtered):
        raise Unsupported("png pixel data")
    return filtered[: png.filtered_bytes].reshape(png.height, 1 + png.row_bytes)
