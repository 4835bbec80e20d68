"""Decodes an image to upright 8-bit RGB, whatever its container, mode, depth or transparency."""

import io
import struct
import zlib
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from patchloom_service.errors import InvalidImage, OutOfMemory
from patchloom_service.media.composite import composite
from patchloom_service.media.containers import png
from patchloom_service.media.fast import Allocate, decode_fast
from patchloom_service.media.header import ImageFormat, ImageHeader
from patchloom_service.media.probe import CONTAINERS
from patchloom_service.media.storage import Pixels, view

Colour: TypeAlias = tuple[int, int, int]
WHITE: Colour = (255, 255, 255)

_PLUGINS: dict[ImageFormat, type[ImageFile.ImageFile]] = {
    ImageFormat.PNG: PngImagePlugin.PngImageFile,
    ImageFormat.JPEG: JpegImagePlugin.JpegImageFile,
    ImageFormat.WEBP: WebPImagePlugin.WebPImageFile,
    ImageFormat.GIF: GifImagePlugin.GifImageFile,
    ImageFormat.BMP: BmpImagePlugin.BmpImageFile,
    ImageFormat.TIFF: TiffImagePlugin.TiffImageFile,
}
# What Pillow raises for files that it cannot read.
_DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    EOFError,
    OverflowError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


def _fresh(shape: tuple[int, int, int]) -> Pixels:
    return np.empty(shape, np.uint8)


def decode(
    data: bytes,
    header: ImageHeader,
    background: Colour = WHITE,
    allocate: Allocate = _fresh,
) -> Pixels:
    """The upright pixels of the image that `header` was probed from.

    uint8 [H, W, 3], or [H, W, 4] whose fourth byte means nothing; the last axis is contiguous, the
    others may be strided. Grayscale is three equal channels; 16-bit samples keep their upper byte,
    12-bit ones their upper 8 bits; transparent pixels lie on `background`; of an animation it is
    frame 0; colour profiles are ignored. `allocate(shape)` gives the memory where that can be
    chosen, uint8 of any content; the result may lie elsewhere even then. InvalidImage for a damaged file,
    OutOfMemory where memory does not suffice. Heavy parts release the interpreter lock.
    """
    try:
        pixels = decode_fast(data, header, background, allocate)
        if pixels is None:
            pixels = by_pillow(data, header, background)
    except MemoryError as error:
        raise OutOfMemory(f"no memory for {header.pixels} pixels") from error
    return upright(pixels, header.orientation)


def warm_up() -> None:
    """Compile what decoding needs compiled, so that no request waits for it."""
    buffer = io.BytesIO()
    Image.new("RGBA", (1, 1)).save(buffer, "PNG")
    decode(buffer.getvalue(), ImageHeader(ImageFormat.PNG, (1, 1), channels=4, has_alpha=True))
    composite(np.zeros((1, 1, 4), np.uint8), *WHITE)


def upright(pixels: Pixels, orientation: int) -> Pixels:
    """A view of `pixels` [H, W, C], turned by the EXIF value 1 to 8."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels


def by_pillow(data: bytes, header: ImageHeader, background: Colour) -> Pixels:
    """The pixels as stored, not yet turned: the truth that every faster way has to equal."""
    image = _load(data, header)
    key = _transparent_key(data, header, image)
    if key or image.mode.startswith("I;16"):
        return _from_samples(_samples(data, header, image), header.bits, key, background)
    if image.mode in ("RGBA", "LA", "La", "PA") or "transparency" in image.info:
        pixels = view(_rgba(image))
        composite(pixels, *background)
        return pixels
    return view(image if image.mode == "RGB" else image.convert("RGB"))


def _load(data: bytes, header: ImageHeader, rawmode: str = "") -> Image.Image:
    """The decoded image in Pillow's own mode; `rawmode` replaces how its samples are read."""
    bare = io.BytesIO(CONTAINERS[header.format].bare(data))
    height, width = header.stored_size
    try:
        # The plugin itself and not Image.open, which would judge the size by a process-wide setting.
        image = _PLUGINS[header.format](bare)
        if image.size != (width, height):
            raise InvalidImage(f"the {header.format} contradicts itself about its size")
        if rawmode:
            image.tile = [tile._replace(args=rawmode) for tile in image.tile]
        image.load()
    except _DAMAGE as error:
        raise InvalidImage(f"the {header.format} is damaged and does not decode") from error
    return image


def _rgba(image: Image.Image) -> Image.Image:
    straight = image.convert("LA") if image.mode == "La" else image
    return straight if straight.mode == "RGBA" else straight.convert("RGBA")


def _transparent_key(data: bytes, header: ImageHeader, image: Image.Image) -> tuple[int, ...]:
    """The one transparent colour of a grayscale or RGB image, in stored samples; () for none."""
    if image.mode not in ("1", "L", "I;16", "RGB") or "transparency" not in image.info:
        return ()
    if header.format is ImageFormat.PNG:
        return png.transparent_sample(data)[: header.channels]
    return (int(image.info["transparency"]),)


def _samples(data: bytes, header: ImageHeader, image: Image.Image) -> npt.NDArray[np.uint16]:
    """[H, W, 1 or 3] samples as they are stored."""
    if image.mode == "RGB":
        samples = view(image)[:, :, :3].astype(np.uint16)
        if header.bits == 16:
            # Pillow reads the upper bytes; the same pixels once more for the lower ones.
            samples <<= 8
            samples |= view(_load(data, header, "RGB;16L"))[:, :, :3]
        return samples
    gray = np.asarray(image.convert("L") if image.mode == "1" else image)
    samples = gray.astype(np.uint16)[:, :, None]
    return samples // _step(header.bits)


def _step(bits: int) -> int:
    """By how much 8-bit values of neighbouring levels differ."""
    return 255 // ((1 << min(bits, 8)) - 1)


def _from_samples(
    samples: npt.NDArray[np.uint16], bits: int, key: tuple[int, ...], background: Colour
) -> Pixels:
    """Scale to 8 bits and paint the background where all samples equal the key."""
    scaled = (samples >> max(bits - 8, 0)) * _step(bits)
    pixels = np.broadcast_to(scaled, (*samples.shape[:2], 3)).astype(np.uint8, order="C")
    if key:
        pixels[(samples == np.array(key)).all(axis=2)] = background
    return pixels
