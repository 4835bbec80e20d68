"""The plain JPEG decoder against Pillow: samplings, sizes, tables, restarts, extremes, damage."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jpeg_files import (
    SAMPLINGS,
    all_symbols,
    comb,
    encode,
    picture,
    pillow,
    random_blocks,
    segment,
    write,
)
from patchloom_kernels.jpeg.reference import decode_jpeg
from patchloom_kernels.unsupported import Unsupported

SIZES = [(1, 1), (2, 3), (3, 2), (8, 8), (9, 17), (17, 33), (5, 40), (34, 21)]


def assert_equals_pillow(data):
    np.testing.assert_array_equal(decode_jpeg(data), pillow(data))


@pytest.mark.parametrize("sampling", [*SAMPLINGS, "gray"])
@pytest.mark.parametrize("size", SIZES)
def test_every_sampling_and_size_equals_pillow(sampling, size):
    for quality in (1, 50, 85, 100):
        assert_equals_pillow(encode(picture(*size), sampling, quality))


@pytest.mark.parametrize("sampling", ["444", "420", "gray"])
def test_optimised_tables_and_restart_markers_equal_pillow(sampling):
    pixels = picture(41, 37)
    for options in ({"optimize": True}, {"restart_marker_blocks": 1}, {"restart_marker_rows": 1}):
        assert_equals_pillow(encode(pixels, sampling, 90, **options))


def test_rgb_files_are_not_converted():
    assert_equals_pillow(encode(picture(19, 12), "444", 95, keep_rgb=True))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("limit", [10, 1000])
@pytest.mark.parametrize("quant", [1, 99, 255])
def test_values_out_of_range_wrap_and_saturate_as_in_libjpeg(sampling, limit, quant):
    rng = np.random.default_rng((limit, quant))
    for density in (0.02, 1.0):
        blocks = random_blocks(rng, 21, 35, sampling, 3, limit, density)
        assert_equals_pillow(write(21, 35, sampling, blocks, np.full(64, quant)))
    for block in blocks:
        block[..., 8:] = 0
    assert_equals_pillow(write(21, 35, sampling, blocks, np.full(64, quant)))


def test_codes_of_sixteen_bits_equal_pillow():
    rng = np.random.default_rng(5)
    symbols = all_symbols()
    blocks = random_blocks(rng, 24, 24, "420", limit=500, density=0.4)
    ac = comb(list(rng.permutation(symbols).tolist()))
    data = write(24, 24, "420", blocks, np.full(64, 2), comb(list(range(16))), ac, restart=1)
    assert_equals_pillow(data)


@pytest.mark.parametrize(
    ("names", "app"),
    [
        (b"RGB", b""),
        (b"RGB", segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")),
        (b"\1\2\3", segment(0xEE, b"Adobe\0\x64\0\0\0\0\0")),
        (b"RGB", segment(0xEE, b"Adobe\0\x64\0\0\0\0\1")),
        (b"\1\2\3", b""),
        (b"abc", b""),
        (b"\7", b""),
    ],
)
def test_the_colour_space_is_chosen_as_by_libjpeg(names, app):
    blocks = random_blocks(np.random.default_rng(1), 16, 8, "444", len(names))
    assert_equals_pillow(write(16, 8, "444", blocks, np.full(64, 9), names=names, app=app))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_files_give_pillow_s_pixels_or_are_left_to_pillow(data):
    sampling = data.draw(st.sampled_from(["444", "420", "gray"]))
    options = data.draw(st.sampled_from([{}, {"optimize": True}, {"restart_marker_blocks": 1}]))
    file = bytearray(encode(picture(17, 18), sampling, 80, **options))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(file)))
        stop = min(len(file), start + data.draw(st.sampled_from([0, 1, 2, 9])))
        file[start:stop] = data.draw(st.binary(max_size=3))
    try:
        got = decode_jpeg(bytes(file))
    except Unsupported:
        return
    np.testing.assert_array_equal(got, pillow(bytes(file)))
