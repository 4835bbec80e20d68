"""What the tests ask of the kernels, on plain values, so that it can run in another process."""

import numpy as np
import torch
from patchloom_kernels.jpeg import decode
from patchloom_kernels.jpeg.parse import parse_jpeg
from patchloom_kernels.jpeg.plan import check_jpeg

GUARD = 64
# Fills what torch.empty returns, so that a read of unwritten memory shows.
torch.use_deterministic_algorithms(True)
WIDE = (512, 512, 2)
"""Split of the interpreter: one program of many lanes costs as much as one of few."""


def decode_into(files, channels=3, split=WIDE):
    """Pixels [H, W, channels] and reason of each file; checks that no byte between images is written."""
    jpegs = [parse_jpeg(data) for data in files]
    for jpeg in jpegs:
        check_jpeg(jpeg)
    lengths = [jpeg.height * jpeg.width * channels for jpeg in jpegs]
    offsets = [GUARD + sum(lengths[:i]) + GUARD * i for i in range(len(lengths))]
    out = torch.full((sum(lengths) + GUARD * (len(lengths) + 1),), 0xA5, dtype=torch.uint8)
    flags = decode.decode_into(jpegs, out, offsets, channels, decode.Split(*split))
    pixels = [
        out[start : start + length].numpy().reshape(jpeg.height, jpeg.width, channels).copy()
        for jpeg, start, length in zip(jpegs, offsets, lengths, strict=True)
    ]
    for start, length in zip(offsets, lengths, strict=True):
        out[start : start + length] = 0xA5
    assert (out == 0xA5).all()
    return pixels, decode.explain(flags)


def decode_batch(files, channels):
    """Pixels and reason of each file, with a fallback that paints a 2 x 3 picture of sevens."""

    def fallback(data):
        return np.full((2, 3, 3), 7, np.uint8)

    decoded = decode.decode_batch(files, "cpu", fallback, channels)
    return [decoded.image(i).numpy() for i in range(len(files))], decoded.reasons
