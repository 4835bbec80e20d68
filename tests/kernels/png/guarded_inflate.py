"""Inflates between guard pages: a read or write beyond what is allowed ends the process with a signal."""

import zlib

import numpy as np
from deflate_streams import plain_codes
from guard_pages import guarded
from patchloom_kernels.png.compiled_inflate import AHEAD_BITS, PADDING, SLACK, Ahead, _stream, workspace

ROUNDS = 100


def _bytes(size):
    return guarded((size,), np.dtype(np.uint8), True)


def check(data, size, whole):
    """Inflates between guard pages; `whole` is whether that must succeed, None where it may."""
    stream, out = _bytes(len(data) + PADDING), _bytes(size + SLACK)
    stream[:] = np.frombuffer(data + bytes(PADDING), np.uint8)
    stream.flags.writeable = False
    tables, fixed, ahead = workspace()
    ahead = Ahead(*(_bytes(len(array)) for array in ahead))
    made = _stream(stream, len(data), out, size, tables, fixed, ahead)
    assert whole is None or made == whole
    assert not made or out[:size].tobytes() == zlib.decompress(data)


def main():
    """Whole, cut, damaged and misstated streams of noise with a few repetitions, of zeros and of both."""
    rng = np.random.default_rng(0)
    count = 0
    literals = rng.integers(0, 16, 260_000).tolist()
    near = AHEAD_BITS // 4  # where the first reader ahead begins, in literals of four bits
    cases = [
        (100, near // 2, 40_000),
        (100, near // 4, near // 2),
        (near + 60, 253, 0),
        (2 * near + 60, 253, 0),
    ]
    for before, matches, after in cases:
        data, plain = plain_codes(literals[:before] + matches * [-1] + literals)
        begin = len(plain) - len(literals)
        for size in np.linspace(begin, begin + (after or len(literals)), 25, dtype=int):
            check(data, int(size), size == len(plain))
            count += 1
    for number in range(ROUNDS):
        size = int(rng.integers(1, 90_000 if number % 2 else 3000))
        noise = np.round(rng.normal(0, 3 + number % 7, size)).astype(np.int64).astype(np.uint8).tobytes()
        plain = (noise, bytes(size), noise[: size // 2] + bytes(size - size // 2))[number % 3]
        data = zlib.compress(plain, (1, 6, 9)[number % 3])
        damaged = bytearray(data)
        damaged[int(rng.integers(2, len(data)))] ^= 1 << int(rng.integers(8))
        streams = [(data, size), (data, size // 2), (data, size // 3), (data, 0), (data, size - 1)]
        streams += [(data[: len(data) // 2], size), (data[:-5], size), (bytes(damaged), size)]
        for own, stated in (*streams, (bytes(damaged), size // 2)):
            check(own, stated, None if own == bytes(damaged) else own is data and stated == size)
            count += 1
    print(f"{count} streams")


if __name__ == "__main__":
    main()
