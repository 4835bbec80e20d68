"""Compiled decoders that give Pillow's bytes in less time, for the files of which that is certain."""

from collections.abc import Callable
from typing import TypeAlias

from patchloom_kernels.png.cpu import decode_png
from patchloom_kernels.unsupported import Unsupported

from patchloom_service.media.header import ImageFormat, ImageHeader
from patchloom_service.media.storage import Pixels

try:
    import simplejpeg
except ImportError:  # the optional extra `fast`
    simplejpeg = None

Allocate: TypeAlias = Callable[[tuple[int, int, int]], Pixels]


def decode_fast(
    data: bytes, header: ImageHeader, background: tuple[int, int, int], allocate: Allocate
) -> Pixels | None:
    """The pixels [H, W, 3] as stored, in an array of `allocate`; None where Pillow has to decide."""
    shape = (*header.stored_size, 3)
    if header.format is ImageFormat.JPEG and header.channels != 4 and simplejpeg is not None:
        return _jpeg(data, allocate(shape))
    if header.format is ImageFormat.PNG and header.bits <= 8 and not header.animated:
        try:
            return decode_png(data, background, allocate(shape))
        except Unsupported:
            return None
    return None


def _jpeg(data: bytes, out: Pixels) -> Pixels | None:
    """libjpeg-turbo by its own interface; it raises on the slightest damage."""
    try:
        decoded = simplejpeg.decode_jpeg(data, "RGB", buffer=out)
    except ValueError:
        return None
    return out if decoded.shape == out.shape else None
