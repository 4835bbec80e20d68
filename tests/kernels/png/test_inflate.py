"""Inflating: whole rows, the stated size exactly, no memory for what cannot be there."""

import zlib

import numpy as np
import pytest
from patchloom_kernels.png import cpu
from patchloom_kernels.png.inflate import inflate_rows
from patchloom_kernels.png.parse import parse_png
from patchloom_kernels.unsupported import Unsupported
from png_files import SIGNATURE, chunk, header, pillow, png_file


def file_with_stream(stream, width=3, height=2):
    idat = chunk(b"IDAT", stream)
    return SIGNATURE + header(width, height, 8, 0) + idat + chunk(b"IEND", b"")


def inflated(data):
    return inflate_rows(parse_png(data)).tobytes()


@pytest.mark.parametrize("pieces", [1, 2, 9])
def test_the_rows_of_a_stream_in_any_number_of_pieces(pieces):
    filtered = np.random.default_rng(1).integers(0, 256, (900, 1001), dtype=np.uint8)
    filtered[:, 0] = 0
    rows = inflate_rows(parse_png(png_file(1000, 900, 8, 0, filtered, pieces=pieces)))
    np.testing.assert_array_equal(rows, filtered)


@pytest.mark.parametrize("size", [0, 7, 9, 4000])
def test_another_size_than_stated_is_left_to_pillow(size):
    with pytest.raises(Unsupported, match="pixel data"):
        inflated(file_with_stream(zlib.compress(bytes(size))))


def test_a_wrong_checksum_or_cut_stream_is_left_to_pillow():
    stream = zlib.compress(bytes(8))
    for bad in (stream[:-1], stream[:-1] + b"?", b"", stream[:5], b"?" + stream[1:]):
        with pytest.raises(Unsupported, match="pixel data"):
            inflated(file_with_stream(bad))


def test_bytes_behind_the_stream_are_ignored_as_by_pillow():
    data = file_with_stream(zlib.compress(bytes(8)) + bytes(200))
    assert inflated(data) == bytes(8)
    np.testing.assert_array_equal(cpu.decode_png(data, (0, 0, 0)), pillow(data, (0, 0, 0)))


def test_a_bomb_is_refused_where_its_image_ends():
    with pytest.raises(Unsupported, match="pixel data"):
        inflated(file_with_stream(zlib.compress(bytes(64 << 20), 9)))


def test_a_stream_too_small_for_its_image_allocates_nothing():
    data = file_with_stream(zlib.compress(bytes(2000)), 1 << 30, 1 << 20)
    with pytest.raises(Unsupported, match="too short"):
        inflated(data)
