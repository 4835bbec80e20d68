"""Small encoded pictures for tests."""

import io
import struct

import numpy as np
from PIL import Image


def noise(height: int, width: int, seed: int = 0) -> Image.Image:
    """Blocky noise: every resize and pass order shows in it."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 3 + 1, width // 3 + 1, 3), np.uint8)
    picture = np.repeat(np.repeat(coarse, 3, 0), 3, 1)[:height, :width]
    picture[::5] = rng.integers(0, 256, picture[::5].shape, np.uint8)
    return Image.fromarray(picture)


def solid(height: int, width: int, colour: tuple[int, ...]) -> Image.Image:
    """One colour."""
    return Image.new("RGBA" if len(colour) == 4 else "RGB", (width, height), colour)


def encode(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    """The picture as a file."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def exif(value: int, endian: str = "<") -> bytes:
    """An EXIF block with this orientation and nothing else."""
    magic = b"II\x2a\x00" if endian == "<" else b"MM\x00\x2a"
    return magic + struct.pack(endian + "LHHHLHHL", 8, 1, 0x0112, 3, 1, value, 0, 0)


def without_some_bytes(jpeg: bytes) -> bytes:
    """A JPEG that lacks ten of its entropy-coded bytes, which Pillow shows all the same."""
    middle = (jpeg.rindex(b"\xff\xda") + len(jpeg)) // 2
    return jpeg[:middle] + jpeg[middle + 10 :]
