"""JPEG files: from Pillow and simplejpeg, or written coefficient by coefficient with any Huffman code."""

import io
import struct

import numpy as np
import simplejpeg
from patchloom_kernels.jpeg.parse import ZIGZAG
from PIL import Image

SAMPLINGS = {"444": (1, 1), "422": (2, 1), "440": (1, 2), "420": (2, 2), "411": (4, 1)}


def pillow(data):
    """Pillow's pixels [H, W, 3], or None where Pillow refuses."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError):
        return None


def picture(width, height, seed=0):
    """A smooth picture with noise and an edge."""
    rng = np.random.default_rng((width, height, seed))
    y, x = np.mgrid[:height, :width]
    planes = [np.sin(x / 9 + k) * 70 + np.cos(y / 7 - k) * 50 + 128 for k in range(3)]
    pixels = np.stack(planes, -1) + rng.normal(0, 12, (height, width, 3))
    pixels[(x > width / 2) & (y > height / 3)] *= 0.3
    return pixels.clip(0, 255).astype(np.uint8)


def encode(pixels, sampling="420", quality=85, **options):
    """A file of libjpeg-turbo's encoder; `options` are Pillow's."""
    if sampling in ("440", "411"):
        return simplejpeg.encode_jpeg(
            np.ascontiguousarray(pixels), quality, colorspace="RGB", colorsubsampling=sampling
        )
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    if sampling == "gray":
        image.convert("L").save(file, "JPEG", quality=quality, **options)
    else:
        chroma = {"444": 0, "422": 1, "420": 2}[sampling]
        image.save(file, "JPEG", quality=quality, subsampling=chroma, **options)
    return file.getvalue()


def segment(marker, body):
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + bytes(body)


def canonical(lengths):
    """{symbol: length} -> (DHT counts and symbols, {symbol: (length, code)})."""
    order = sorted(lengths, key=lambda s: (lengths[s], s))
    counts = bytes(sum(lengths[s] == n for s in order) for n in range(1, 17))
    codes, code, length = {}, 0, 0
    for symbol in order:
        code <<= lengths[symbol] - length
        length = lengths[symbol]
        codes[symbol] = (length, code)
        code += 1
    return counts + bytes(order), codes


def comb(symbols, longest=16):
    """A code with one symbol of each length up to `longest`; the rest have its length."""
    spare = max(0, (len(symbols)).bit_length())
    steps = longest - spare
    return {s: min(i + 1, steps) if i < steps else longest for i, s in enumerate(symbols)}


class _Writer:
    def __init__(self):
        self.bits = []

    def put(self, length, value):
        self.bits.extend((value >> i) & 1 for i in range(length - 1, -1, -1))

    def bytes(self, padding=1):
        bits = self.bits + [padding] * (-len(self.bits) % 8)
        return np.packbits(np.array(bits, np.uint8)).tobytes().replace(b"\xff", b"\xff\0")


def _put_value(writer, size, value):
    writer.put(size, value if value >= 0 else value + (1 << size) - 1)


def _put_block(writer, zigzag, difference, dc, ac):
    size = int(abs(difference)).bit_length()
    writer.put(*dc[size])
    _put_value(writer, size, difference)
    run = 0
    for value in zigzag[1:]:
        if value == 0:
            run += 1
            continue
        while run > 15:
            writer.put(*ac[0xF0])
            run -= 16
        size = int(abs(value)).bit_length()
        writer.put(*ac[run << 4 | size])
        _put_value(writer, size, int(value))
        run = 0
    if run:
        writer.put(*ac[0])


def all_symbols():
    """Every AC symbol that a baseline stream of up to 10 bit values needs."""
    return [0, 0xF0, *(r << 4 | s for s in range(1, 11) for r in range(16))]


def write(
    width,
    height,
    sampling,
    blocks,
    quant,
    dc_lengths=None,
    ac_lengths=None,
    restart=0,
    padding=1,
    names=(1, 2, 3),
    app=b"",
):
    """A file of given coefficients.

    `blocks[i]` is [down, across, 64] in natural order, padded to whole MCUs; `quant` [64] natural.
    `names` are the component ids; one name makes a gray file.
    """
    factors = [SAMPLINGS[sampling], (1, 1), (1, 1)][: len(names)]
    dht_dc, dc = canonical(dc_lengths or dict.fromkeys(range(16), 5))
    dht_ac, ac = canonical(ac_lengths or dict.fromkeys(all_symbols(), 8))
    frame = struct.pack(">BHHB", 8, height, width, len(names))
    frame += b"".join(bytes([n, h << 4 | v, 0]) for n, (h, v) in zip(names, factors, strict=True))
    scan = bytes([len(names)]) + b"".join(bytes([n, 0]) for n in names) + b"\0\x3f\0"
    table = b"\0" + np.asarray(quant, np.uint8)[ZIGZAG].tobytes()
    head = b"\xff\xd8" + app + segment(0xDB, table) + segment(0xC0, frame)
    head += segment(0xC4, b"\0" + dht_dc) + segment(0xC4, b"\x10" + dht_ac)
    if restart:
        head += segment(0xDD, struct.pack(">H", restart))
    down, across = blocks[0].shape[0] // factors[0][1], blocks[0].shape[1] // factors[0][0]
    body, writer, predictors = b"", _Writer(), [0] * len(names)
    for mcu in range(down * across):
        if restart and mcu and mcu % restart == 0:
            body += writer.bytes(padding) + bytes([0xFF, 0xD0 + (mcu // restart - 1) % 8])
            writer, predictors = _Writer(), [0] * len(names)
        y, x = divmod(mcu, across)
        for i, (h, v) in enumerate(factors):
            for dy in range(v):
                for dx in range(h):
                    zigzag = blocks[i][y * v + dy, x * h + dx][ZIGZAG]
                    _put_block(writer, zigzag, int(zigzag[0]) - predictors[i], dc, ac)
                    predictors[i] = int(zigzag[0])
    return head + segment(0xDA, scan) + body + writer.bytes(padding) + b"\xff\xd9"


def random_blocks(rng, width, height, sampling, count=3, limit=60, density=0.15):
    """Random coefficients for `write`: `count` components, values up to `limit`."""
    h, v = SAMPLINGS[sampling]
    down, across = -(-height // (8 * v)), -(-width // (8 * h))
    blocks = []
    for hh, vv in [(h, v), (1, 1), (1, 1)][:count]:
        shape = (down * vv, across * hh, 64)
        values = rng.integers(-limit, limit + 1, shape)
        values[..., 1:] *= rng.random(shape)[..., 1:] < density
        blocks.append(values)
    return blocks
