"""zlib streams written bit by bit, with codes that no compressor would choose."""

import zlib

import numpy as np

ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15]
END = 256


class Bits:
    """Bits in the order of RFC 1951: numbers from their lowest bit, codes from their highest."""

    def __init__(self):
        self.text = []

    def number(self, value, count):
        self.text.extend((value >> i) & 1 for i in range(count))

    def code(self, code):
        self.text.extend(int(bit) for bit in code)

    def packed(self):
        return np.packbits(np.array(self.text, np.uint8), bitorder="little").tobytes()


def codes_of(sizes):
    """The canonical code of each symbol as text, "" for none."""
    code, codes = 0, [""] * len(sizes)
    for size in range(1, max(sizes) + 1):
        for symbol, own in enumerate(sizes):
            if own == size:
                codes[symbol] = format(code, f"0{size}b")
                code += 1
        code <<= 1
    return codes


def complete_sizes(rng, symbols, count, longest=15):
    """Code lengths of a complete code for `symbols` of `count`: leaves split at random."""
    leaves = [1, 1]
    while len(leaves) < len(symbols):
        splittable = [i for i, size in enumerate(leaves) if size < longest]
        leaves.append(leaves[i := int(rng.choice(splittable))] + 1)
        leaves[i] += 1
    sizes = [0] * count
    for symbol, size in zip(symbols, sorted(leaves), strict=True):
        sizes[symbol] = size
    return sizes


def header(bits, literal_sizes, distance_sizes, final=True):
    """The head of a dynamic block whose code lengths are written one by one, in four bits each."""
    bits.number(int(final), 1)
    bits.number(2, 2)
    bits.number(len(literal_sizes) - 257, 5)
    bits.number(len(distance_sizes) - 1, 5)
    bits.number(15, 4)
    sizes = [4] * 16 + [0] * 3  # a complete code for the lengths 0 to 15
    for symbol in ORDER:
        bits.number(sizes[symbol], 3)
    codes = codes_of(sizes)
    for size in (*literal_sizes, *distance_sizes):
        bits.code(codes[size])


def stream(bits, plain):
    """A zlib stream of these bits, with the checksum of `plain`."""
    return b"\x78\x9c" + bits.packed() + zlib.adler32(plain).to_bytes(4, "big")


def plain_codes(steps):
    """A stream of literals 0 to 15, which take four bits, and matches of 258 bytes, by one block.

    `steps` are literals, and the distances of matches as negative numbers: 1, or 8193 to 12288.
    """
    literal_sizes = [4] * 15 + [5] + [0] * 240 + [6] + [0] * 28 + [6]
    distance_sizes = [1] + [0] * 25 + [1]
    codes, bits, plain = codes_of(literal_sizes), Bits(), bytearray()
    header(bits, literal_sizes, distance_sizes)
    for step in steps:
        if step >= 0:
            bits.code(codes[step])
            plain.append(step)
            continue
        bits.code(codes[285])
        bits.code("0" if step == -1 else "1")
        if step != -1:
            bits.number(-step - 8193, 12)
        for _ in range(258):
            plain.append(plain[step] if -step <= len(plain) else 0)
    bits.code(codes[END])
    return stream(bits, plain), bytes(plain)
