"""The compiled inflate gives zlib's bytes, and refuses what zlib refuses."""

import os
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from deflate_streams import END, Bits, codes_of, complete_sizes, header, plain_codes, stream
from patchloom_kernels.png.compiled_inflate import AHEAD_BITS, PADDING, SLACK, inflate

NEAR = AHEAD_BITS // 4  # where the first reader ahead begins, in literals of four bits
GUARDED = Path(__file__).with_name("guarded_inflate.py")


def by_zlib(data, size):
    """What zlib gives if that is a whole stream of `size` bytes, else None."""
    inflater = zlib.decompressobj()
    try:
        out = inflater.decompress(data, size + 1)
    except zlib.error:
        return None
    return out if inflater.eof and len(out) == size else None


def ours(data, size):
    out = np.empty(size + SLACK, np.uint8)
    whole = inflate(np.frombuffer(data + bytes(PADDING), np.uint8), out)
    return out[:size].tobytes() if whole else None


def noise(rng, size, spread):
    """Like the filtered bytes of a photo: small differences, hardly a repetition."""
    return np.round(rng.normal(0, spread, size)).astype(np.int64).astype(np.uint8).tobytes()


def repetitive(rng, size):
    """Repetitions at distances of 1 to 40 and some far ones, between a few fresh bytes."""
    out = bytearray(rng.bytes(40))
    while len(out) < size:
        distance = int(rng.integers(1, 41)) if rng.random() < 0.7 else int(rng.integers(1, len(out) + 1))
        for _ in range(int(rng.integers(3, 600))):
            out.append(out[-distance])
        out += rng.bytes(int(rng.integers(0, 4)))
    return bytes(out[:size])


def plain_data(rng, size):
    return {
        "noise": noise(rng, size, 4),
        "wide noise": noise(rng, size, 40),
        "random": rng.bytes(size),
        "zeros": bytes(size),
        "repetitive": repetitive(rng, size),
        "mixed": b"".join(
            (noise(rng, size // 3, 3), repetitive(rng, size // 3), noise(rng, size - 2 * (size // 3), 9))
        ),
    }


@pytest.mark.parametrize("size", [0, 1, 2, 7, 300, 5000, 33_000, 400_000])
@pytest.mark.parametrize("level", [0, 1, 6, 9])
def test_whole_streams_of_every_level(size, level):
    for plain in plain_data(np.random.default_rng(size + level), size).values():
        assert ours(zlib.compress(plain, level), size) == plain


@pytest.mark.parametrize("memory", [1, 5, 8, 9])
@pytest.mark.parametrize(
    "strategy", [zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED]
)
def test_whole_streams_of_every_strategy_and_block_size(strategy, memory):
    for plain in plain_data(np.random.default_rng(memory), 150_000).values():
        compressor = zlib.compressobj(6, zlib.DEFLATED, 15, memory, strategy)
        data = compressor.compress(plain) + compressor.flush()
        assert ours(data, len(plain)) == plain
        assert ours(data, len(plain) - 1) is None
        assert ours(data, len(plain) + 1) is None


@pytest.mark.parametrize("window", [9, 12, 15])
def test_small_windows_and_full_flushes(window):
    plain = plain_data(np.random.default_rng(window), 120_000)["mixed"]
    compressor = zlib.compressobj(6, zlib.DEFLATED, window)
    pieces = [compressor.compress(plain[i : i + 7001]) + compressor.flush(zlib.Z_FULL_FLUSH)
              for i in range(0, len(plain), 7001)]  # fmt: skip
    assert ours(b"".join(pieces) + compressor.flush(), len(plain)) == plain


@pytest.mark.parametrize("seed", range(12))
def test_codes_of_all_lengths_with_rare_matches_everywhere(seed):
    """Literals by a random code of up to 15 bits, between them matches of all lengths and distances.

    Length symbols have the longest codes, so that the readers ahead take part, and meet matches.
    """
    rng = np.random.default_rng(seed)
    literals = rng.permutation(256)[: int(rng.integers(2, 257))]
    lengths = 257 + rng.permutation(29)[: int(rng.integers(1, 30))]
    literal_sizes = complete_sizes(rng, [*literals, END, *lengths], 286, longest=int(rng.integers(11, 16)))
    distances = rng.permutation(30)[: int(rng.integers(2, 31))]
    distance_sizes = complete_sizes(rng, list(distances), 30)
    literal_codes, distance_codes = codes_of(literal_sizes), codes_of(distance_sizes)
    shares = 2.0 ** -np.array([literal_sizes[symbol] for symbol in literals])
    bits, plain = Bits(), bytearray()
    header(bits, literal_sizes, distance_sizes)
    often = (1 / 300, 1 / 60, 1 / 8)[seed // 4]
    drawn = (
        rng.choice(literals, 120_000, p=shares / shares.sum()) if seed % 3 else rng.choice(literals, 60_000)
    )
    for literal in drawn:
        bits.code(literal_codes[literal])
        plain.append(literal)
        if rng.random() < often:
            symbol, distance = int(rng.choice(lengths)), int(rng.choice(distances))
            add_match(bits, plain, rng, (symbol, literal_codes), (distance, distance_codes))
    bits.code(literal_codes[END])
    data = stream(bits, plain)
    assert by_zlib(data, len(plain)) == plain
    assert ours(data, len(plain)) == plain
    for cut in rng.integers(2, len(data), 20):
        assert ours(data[:cut], len(plain)) is None
    for place in rng.integers(2, len(data), 60):
        damaged = bytearray(data)
        damaged[place] ^= 1 << int(rng.integers(8))
        assert ours(bytes(damaged), len(plain)) == by_zlib(bytes(damaged), len(plain))


def add_match(bits, plain, rng, length, distance):
    """A match of a random length and distance of these symbols, where the output reaches so far."""
    (length_symbol, length_codes), (distance_symbol, distance_codes) = length, distance
    extra = 0 if length_symbol in (285, *range(257, 265)) else (length_symbol - 261) // 4
    bases = {285: 258, **{symbol: symbol - 254 for symbol in range(257, 265)}}
    base = bases.get(length_symbol, (4 + (length_symbol - 265) % 4 << extra) + 3)
    own = int(rng.integers(1 << extra))
    if length_symbol == 284 and own == 31:
        own = 30  # 258 has a symbol of its own
    far_extra = max(0, distance_symbol // 2 - 1)
    far_base = distance_symbol + 1 if distance_symbol < 4 else (2 + distance_symbol % 2 << far_extra) + 1
    far = int(rng.integers(1 << far_extra))
    if far_base + far > len(plain):
        return
    bits.code(length_codes[length_symbol])
    bits.number(own, extra)
    bits.code(distance_codes[distance_symbol])
    bits.number(far, far_extra)
    for _ in range(base + own):
        plain.append(plain[-far_base - far])


def literals(count, seed=0):
    return np.random.default_rng(seed).integers(0, 16, count).tolist()


@pytest.mark.parametrize(
    "steps",
    [
        literals(NEAR) + 300 * [-1] + literals(40_000),  # more matches than a reader ahead can note
        literals(NEAR + 60) + 253 * [-1] + literals(260_000),  # more bytes than it can write
        literals(2 * NEAR + 60) + 253 * [-1] + literals(260_000),
        literals(100) + 3500 * [-1] + literals(40_000),
        literals(100) + 3500 * [-1, 3] + literals(40_000),
        [step for literal in literals(40_000) for step in ([literal, -1] if literal == 7 else [literal])],
        literals(9000) + 900 * [-8200, 1, 2, -1, 3, -9000] + literals(30_000),
        [3] * 60_000,  # one code all along
    ],
)
def test_readers_ahead_that_meet_many_matches(steps):
    data, plain = plain_codes(steps)
    assert by_zlib(data, len(plain)) == plain
    assert ours(data, len(plain)) == plain
    for size in (len(plain) - 1, len(plain) // 2, 1000):
        assert ours(data, size) is None


@pytest.mark.parametrize("before", range(8193, 12_288, 455))
def test_a_reader_ahead_refuses_what_lies_before_the_output(before):
    for distance in (before, before + 1):
        data, plain = plain_codes([*literals(before), -distance, *literals(50_000)])
        assert (by_zlib(data, len(plain)) == plain) == (distance == before)
        assert (ours(data, len(plain)) == plain) == (distance == before)


@pytest.mark.parametrize("seed", range(8))
def test_damage_is_judged_as_by_zlib(seed):
    rng = np.random.default_rng(seed)
    for plain in plain_data(rng, int(rng.integers(20, 3000))).values():
        data = zlib.compress(plain, int(rng.integers(0, 10)))
        for _ in range(150):
            damaged = bytearray(data)
            for place in rng.integers(0, len(data), int(rng.integers(1, 4))):
                damaged[place] = int(rng.integers(256))
            assert ours(bytes(damaged), len(plain)) == by_zlib(bytes(damaged), len(plain))


@pytest.mark.parametrize("kind", [1, 2])
def test_blocks_of_random_bits_are_judged_as_by_zlib(kind):
    rng = np.random.default_rng(kind)
    for _ in range(4000):
        body = bytearray(rng.bytes(int(rng.integers(8, 120))))
        body[0] = body[0] & 0xF8 | kind << 1 | 1
        data = b"\x78\x9c" + bytes(body)
        size = int(rng.integers(0, 200))
        assert (ours(data, size) is None) == (by_zlib(data, size) is None)


def single(literal_sizes, distance_sizes, write, plain):
    bits = Bits()
    header(bits, literal_sizes, distance_sizes)
    write(bits, codes_of(literal_sizes), codes_of(distance_sizes))
    return stream(bits, plain)


def sizes(count, **of):
    made = [0] * count
    for name, size in of.items():
        made[int(name[1:])] = size
    return made


def only_end(bits, literals, distances):
    bits.code(literals[END])


def one_match(bits, literals, distances):
    """The literal 65, three more by a match at distance 1, and the end."""
    bits.code(literals[65])
    bits.code(literals[257])
    bits.code(distances[0] or "0")
    bits.code(literals[END])


FOUR = sizes(258, _65=2, _66=2, _256=2, _257=2)


@pytest.mark.parametrize(
    ("literal_sizes", "distance_sizes", "write", "plain", "whole"),
    [
        (sizes(257, _256=1), [0], only_end, b"", True),  # nothing but the end, by one bit
        (sizes(257, _256=1), [1], only_end, b"", True),
        (sizes(257, _256=2), [0], only_end, b"", False),  # half of the space is no code
        (sizes(258, _65=1, _66=1, _256=1), [0], only_end, b"", False),  # too many codes
        (sizes(257, _65=1, _66=1), [0], lambda *_: None, b"", False),  # no end
        (FOUR, [1], one_match, b"AAAA", True),  # one distance, by one bit
        (FOUR, [0], one_match, b"AAAA", False),  # no distance
        (FOUR, [2], one_match, b"AAAA", False),  # one distance, by two bits
        (FOUR, [1, 2], one_match, b"AAAA", False),
        (FOUR, [0, 1], one_match, b"AAAA", False),  # distance 2 behind one byte
    ],
)
def test_codes_at_the_edge_are_judged_as_by_zlib(literal_sizes, distance_sizes, write, plain, whole):
    data = single(literal_sizes, distance_sizes, write, plain)
    assert by_zlib(data, len(plain)) == (plain if whole else None)
    assert ours(data, len(plain)) == (plain if whole else None)


@pytest.mark.parametrize(("kind", "most"), [("fixed", 20), ("own code", 20), ("both", 20)])
def test_many_empty_blocks_take_no_longer_than_their_number(kind, most):
    """Tables are made once, or not at all where a block ends at once: a long stream of them is no weapon."""
    bits = Bits()
    for _ in range(1500):
        if kind != "own code":
            bits.text += [0, 1, 0, *[0] * 7]
        if kind != "fixed":
            header(bits, sizes(257, _256=1), [0], final=False)
            bits.code("0")
    empty = Bits()
    empty.text = [*bits.text * 4, 1, 1, 0, *[0] * 7]
    data = stream(empty, b"")
    times = []
    for judge in (ours, by_zlib):
        start = time.process_time()
        assert judge(data, 0) == b""
        times.append(time.process_time() - start)
    assert times[0] < most * times[1] + 0.02


def test_the_head_of_the_stream_is_checked():
    data = zlib.compress(b"patches")
    for head in (b"\x78\x9d", b"\x79\x9c", b"\x88\x1c", b"\x78\xbb", b"\x00\x00"):
        assert ours(head + data[2:], 7) is None
        assert by_zlib(head + data[2:], 7) is None
    for size in range(6):
        assert ours(data[:size], 0) is None


def test_streams_and_outputs_may_end_at_memory_that_is_not_there():
    done = subprocess.run(
        [sys.executable, str(GUARDED)],
        env={**os.environ, "PYTHONPATH": str(GUARDED.parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1000 streams\n"
