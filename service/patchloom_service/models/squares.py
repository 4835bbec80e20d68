"""Pictures padded to a square before they are resized."""

from patchloom_kernels.layout import PatchLayout, Piece

from patchloom_service.errors import SizeRefused
from patchloom_service.models.base import Size

MAX_SIDE = 16384
"""The longest side of a square that is made in memory."""


def padded_to_square(size: Size, pad: tuple[int, int, int], centred: bool) -> tuple[Piece, ...]:
    """The step that puts an image on a square of its longer side, none where it is one already.

    The image stands in the middle, or at the top left. A side over MAX_SIDE is SizeRefused, since the
    square of a narrow image is far larger than the image.
    """
    height, width = size
    side = max(size)
    if height == width:
        return ()
    if side > MAX_SIDE:
        raise SizeRefused(
            f"{height}x{width} (height x width) would be padded to a square; "
            f"sides up to {MAX_SIDE} are allowed"
        )
    offset = ((side - height) // 2, (side - width) // 2) if centred else (0, 0)
    square = (side, side)
    return (Piece(size, size, square, PatchLayout(square), offset=offset, pad=pad),)
