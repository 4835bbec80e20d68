"""What the tests ask of the kernels, on plain values, so that it can run in another process."""

import struct

import numpy as np
import torch
from patchloom_kernels.png import decode
from patchloom_kernels.png.parse import parse_png
from patchloom_kernels.png.plan import inflate_png

GUARD = 64
# Fills what torch.empty returns, so that a read of unwritten memory shows.
torch.use_deterministic_algorithms(True)


def decode_into(files, background, channels=3):
    """Pixels [H, W, channels] and reason of each file; no byte between the images may be written."""
    batch = [inflate_png(parse_png(data)) for data in files]
    lengths = [image.png.height * image.png.width * channels for image in batch]
    offsets = [GUARD + sum(lengths[:i]) + GUARD * i for i in range(len(lengths))]
    out = torch.full((sum(lengths) + GUARD * (len(lengths) + 1),), 0xA5, dtype=torch.uint8)
    flags = decode.decode_into(batch, out, offsets, background, channels)
    pixels = []
    for image, start, length in zip(batch, offsets, lengths, strict=True):
        shape = (image.png.height, image.png.width, channels)
        pixels.append(out[start : start + length].numpy().reshape(shape).copy())
        out[start : start + length] = 0xA5
    assert (out == 0xA5).all()
    return pixels, decode.explain(flags)


def decode_batch(files, background):
    """Pixels and reason of each file, with a fallback that paints all pixels 7."""

    def fallback(data):
        width, height = struct.unpack_from(">II", data, 16)
        return np.full((height, width, 3), 7, np.uint8)

    decoded = decode.decode_batch(files, "cpu", background, fallback, 4)
    return [decoded.image(i).numpy() for i in range(len(files))], decoded.reasons
