"""The resize rule of the Qwen-VL line: sides to multiples of a factor, area between two bounds."""

import math

from patchloom_service.errors import SizeRefused
from patchloom_service.models.base import Size

MAX_ASPECT_RATIO = 200


def smart_resize(size: Size, factor: int, min_pixels: int, max_pixels: int, frames: int = 1) -> Size:
    """The (height, width) that transformers' smart_resize (models/qwen2_vl) gives.

    Sides are rounded half to even to multiples of `factor`, then scaled by one float64 ratio where the
    area of all `frames` leaves [min_pixels, max_pixels]. An aspect ratio over 200 is SizeRefused.
    """
    height, width = size
    ratio = max(size) / min(size)
    if ratio > MAX_ASPECT_RATIO:
        raise SizeRefused(
            f"the aspect ratio of {height}x{width} (height x width) is {ratio:g}; "
            f"at most {MAX_ASPECT_RATIO} is allowed"
        )
    rounded = round(height / factor) * factor, round(width / factor) * factor
    area = frames * rounded[0] * rounded[1]
    if area > max_pixels:
        beta = math.sqrt(frames * height * width / max_pixels)
        return (
            max(factor, math.floor(height / beta / factor) * factor),
            max(factor, math.floor(width / beta / factor) * factor),
        )
    if area < min_pixels:
        beta = math.sqrt(min_pixels / (frames * height * width))
        return math.ceil(height * beta / factor) * factor, math.ceil(width * beta / factor) * factor
    return rounded
