"""PNG files built chunk by chunk, and what Pillow makes of them."""

import io
import itertools
import struct
import zlib

import numpy as np
from PIL import Image

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def header(width, height, depth, colour, interlace=0):
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace))


def png_file(width, height, depth, colour, filtered, extra=b"", pieces=1, level=6):
    """A file whose filtered rows are `filtered`; `extra` are chunks between header and pixels."""
    stream = zlib.compress(bytes(filtered), level)
    cuts = [len(stream) * i // pieces for i in range(pieces + 1)]
    idat = b"".join(chunk(b"IDAT", stream[a:b]) for a, b in itertools.pairwise(cuts))
    return SIGNATURE + header(width, height, depth, colour) + extra + idat + chunk(b"IEND", b"")


def random_rows(rng, width, height, depth, colour, kinds=(0, 1, 2, 3, 4), low=False):
    """[height, 1 + row bytes] filtered rows of random filter types; `low` keeps residuals small."""
    row = (width * CHANNELS[colour] * depth + 7) // 8
    rows = rng.integers(0, 256, (height, 1 + row), dtype=np.uint8)
    if low:
        rows[1:, 1:] = (rows[1:, 1:] % 9).astype(np.uint8) - 4
    rows[:, 0] = rng.choice(kinds, height)
    return rows


def palette_chunks(rng, entries, alphas=0):
    plte = chunk(b"PLTE", rng.bytes(3 * entries))
    return plte + (chunk(b"tRNS", rng.bytes(alphas)) if alphas else b"")


def pillow(data, background):
    """Pillow's pixels on a background, [H, W, 3], or None where Pillow refuses."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            rgba = image.convert("RGBA")
    except (OSError, SyntaxError, ValueError):
        return None
    under = Image.new("RGBA", rgba.size, (*background, 255))
    return np.asarray(Image.alpha_composite(under, rgba).convert("RGB"))
