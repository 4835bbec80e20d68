"""Pixel bounds of an image: of families that have them, and of those that have none."""

from patchloom_service.errors import InvalidMessage
from patchloom_service.types import ImageOptions


def pixel_bounds(own: tuple[int, int], options: ImageOptions) -> tuple[int, int]:
    """The least and most pixels of an image: its options, else the checkpoint's `own`.

    InvalidMessage where they leave no size.
    """
    low = own[0] if options.min_pixels is None else options.min_pixels
    high = own[1] if options.max_pixels is None else options.max_pixels
    if not 0 < low <= high:
        raise InvalidMessage(
            f"min_pixels {low} and max_pixels {high}: 0 < min_pixels <= max_pixels is allowed"
        )
    return low, high


def refuse_pixel_bounds(family: str, options: ImageOptions) -> None:
    """InvalidMessage where an image asks for bounds that the family's size rule does not have."""
    if options.min_pixels is not None or options.max_pixels is not None:
        raise InvalidMessage(
            f"min_pixels and max_pixels are no options of {family}; leave them out, its size rule is fixed"
        )
