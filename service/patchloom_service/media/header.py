"""What the container of an image says about it, before any pixel is decoded."""

from dataclasses import dataclass
from enum import StrEnum


class ImageFormat(StrEnum):
    """The formats that are taken, decided by the first bytes and never by a declared type."""

    PNG = "png"
    JPEG = "jpeg"
    WEBP = "webp"
    GIF = "gif"
    BMP = "bmp"
    TIFF = "tiff"


ALLOWED = "send png, jpeg, webp, gif, bmp or tiff"
"""The end of an error message about a format."""


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """One still image, or frame 0 of an animation.

    `stored_size` is (height, width) as the pixels are stored. `orientation` is the EXIF value 1 to 8
    that turns the stored pixels upright; 5 to 8 swap height and width. `bits` is per sample,
    `channels` the stored samples of a pixel (a palette index is one). `has_alpha` says that pixels
    may be transparent: an alpha channel, a transparent colour or palette entry. A JPEG that
    is not `progressive` is baseline or extended sequential.
    """

    format: ImageFormat
    stored_size: tuple[int, int]
    orientation: int = 1
    bits: int = 8
    channels: int = 3
    has_alpha: bool = False
    animated: bool = False
    progressive: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the upright image."""
        height, width = self.stored_size
        return (width, height) if self.orientation >= 5 else (height, width)

    @property
    def pixels(self) -> int:
        """Pixels of the image."""
        return self.stored_size[0] * self.stored_size[1]
