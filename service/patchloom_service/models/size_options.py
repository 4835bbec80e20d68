"""Size options of an image where a family has none."""

from patchloom_service.errors import InvalidMessage
from patchloom_service.types import ImageOptions


def refuse_pixel_bounds(family: str, options: ImageOptions) -> None:
    """InvalidMessage where an image asks for bounds that the family's size rule does not have."""
    if options.min_pixels is not None or options.max_pixels is not None:
        raise InvalidMessage(
            f"min_pixels and max_pixels are no options of {family}; leave them out, its size rule is fixed"
        )
