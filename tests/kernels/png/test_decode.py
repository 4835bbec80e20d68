"""The PNG kernels in Triton's interpreter against Pillow, many small images to a launch."""

import numpy as np
import png_kernel_runs
import pytest
from patchloom_kernels.png import decode
from patchloom_kernels.png.parse import parse_png
from patchloom_kernels.png.plan import inflate_png
from png_files import chunk, header, palette_chunks, pillow, png_file, random_rows

BACKGROUND = (250, 7, 131)
FORMATS = [(0, 1), (0, 2), (0, 4), (0, 8), (2, 8), (3, 1), (3, 2), (3, 4), (3, 8), (4, 8), (6, 8)]


def sample(rng, colour, depth, width, height, kinds=(0, 1, 2, 3, 4)):
    rows = random_rows(rng, width, height, depth, colour, kinds)
    extra = palette_chunks(rng, 1 << depth, rng.integers(0, 1 << depth)) if colour == 3 else b""
    return png_file(width, height, depth, colour, rows, extra)


def assert_equal_pillow(interpreted, files, channels=3):
    pixels, reasons = interpreted(png_kernel_runs.decode_into, files, BACKGROUND, channels)
    assert reasons == [None] * len(files)
    for got, data in zip(pixels, files, strict=True):
        np.testing.assert_array_equal(got[..., :3], pillow(data, BACKGROUND))
        assert (got[..., 3:] == 255).all()


@pytest.mark.parametrize("channels", [3, 4])
def test_every_format_in_one_batch_equals_pillow(interpreted, channels):
    rng = np.random.default_rng(channels)
    files = [sample(rng, *format, 9, 7) for format in FORMATS]
    files += [sample(rng, *format, 1, 1) for format in FORMATS]
    assert_equal_pillow(interpreted, files, channels)


@pytest.mark.parametrize("kinds", [(0,), (1,), (2,), (0, 1, 2), (3,), (4,), (1, 2, 3, 4)])
def test_every_filter_equals_pillow(interpreted, kinds):
    rng = np.random.default_rng(kinds)
    files = [sample(rng, colour, 8, 6, 11, kinds) for colour in (0, 2, 4, 6)]
    assert_equal_pillow(interpreted, files)


def test_rows_longer_than_a_chunk_carry_their_sum(interpreted):
    rng = np.random.default_rng(1)
    assert_equal_pillow(interpreted, [sample(rng, 0, 8, 2100, 2, (1, 2))])


def test_segments_longer_than_the_lanes_continue_in_the_next_band(interpreted):
    rng = np.random.default_rng(2)
    files = [sample(rng, 0, 8, 3, 40, (3, 4)), sample(rng, 0, 8, 2, 515, (2, 3, 4))]
    assert_equal_pillow(interpreted, files)


def test_colour_keys_show_the_background(interpreted):
    rows = np.zeros((3, 10), np.uint8)
    rows[1, 1:] = [1, 2, 3] * 3
    rgb = png_file(3, 3, 8, 2, rows, chunk(b"tRNS", b"\0\1\0\2\0\3"))
    gray = png_file(9, 3, 8, 0, rows, chunk(b"tRNS", b"\0\2"))
    assert_equal_pillow(interpreted, [rgb, gray])


def test_a_palette_index_without_entry_is_flagged(interpreted):
    rng = np.random.default_rng(0)
    rows = np.zeros((2, 4), np.uint8)
    rows[1, 2] = 5
    files = [png_file(3, 2, 8, 3, rows, palette_chunks(rng, entries)) for entries in (5, 6)]
    _, reasons = interpreted(png_kernel_runs.decode_into, files, BACKGROUND)
    assert reasons == ["png palette index", None]


def test_the_fallback_paints_what_the_kernels_do_not(interpreted):
    rng = np.random.default_rng(0)
    good = sample(rng, 6, 8, 4, 3)
    other = good.replace(header(4, 3, 8, 6), header(4, 3, 8, 6, 1))
    bad = png_file(2, 1, 8, 3, [0, 7, 7], palette_chunks(rng, 5))
    pixels, reasons = interpreted(png_kernel_runs.decode_batch, [other, good, bad], BACKGROUND)
    assert reasons == ("interlaced png", None, "png palette index")
    assert pixels[0].tolist() == [[[7, 7, 7, 255]] * 4] * 3
    assert pixels[2].tolist() == [[[7, 7, 7, 255]] * 2]
    np.testing.assert_array_equal(pixels[1][..., :3], pillow(good, BACKGROUND))


def test_an_image_outside_of_the_buffer_is_refused():
    import torch

    image = inflate_png(parse_png(png_file(4, 4, 8, 0, bytes(20))))
    with pytest.raises(ValueError, match=r"bytes 1:49 is outside of out\[48\]"):
        decode.decode_into([image], torch.zeros(48, dtype=torch.uint8), [1], BACKGROUND)


def test_no_images_need_no_launch():
    decoded = decode.decode_batch([], "cpu", BACKGROUND)
    assert (decoded.sizes, decoded.reasons, decoded.pixels.numel()) == ((), (), 0)
