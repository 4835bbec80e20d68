"""The CPU decoder and the reference against Pillow, over formats, sizes, filters and damage."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patchloom_kernels.png import cpu, reference
from patchloom_kernels.unsupported import Unsupported
from PIL import Image
from png_files import chunk, palette_chunks, pillow, png_file, random_rows

BACKGROUND = (250, 7, 131)
FORMATS = [(0, 1), (0, 2), (0, 4), (0, 8), (2, 8), (3, 1), (3, 2), (3, 4), (3, 8), (4, 8), (6, 8)]
SIZES = [(1, 1), (1, 9), (7, 1), (5, 8), (33, 40), (64, 17)]


def sample(colour, depth, width, height, seed=0, low=False):
    rng = np.random.default_rng((colour, depth, width, height, seed))
    rows = random_rows(rng, width, height, depth, colour, low=low)
    extra = palette_chunks(rng, 1 << depth, rng.integers(0, 1 << depth)) if colour == 3 else b""
    return png_file(width, height, depth, colour, rows, extra)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("colour", "depth"), FORMATS)
def test_every_format_and_size_equals_pillow(colour, depth, size):
    data = sample(colour, depth, *size)
    want = pillow(data, BACKGROUND)
    np.testing.assert_array_equal(cpu.decode_png(data, BACKGROUND), want)
    np.testing.assert_array_equal(reference.decode_png(data, BACKGROUND), want)


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("colour", [0, 2, 4, 6])
@pytest.mark.parametrize("low", [False, True])
def test_every_filter_alone_equals_pillow(colour, kind, low):
    rng = np.random.default_rng((colour, kind))
    for width, height in [(1, 5), (4, 3), (37, 21)]:
        rows = random_rows(rng, width, height, 8, colour, (kind,), low)
        data = png_file(width, height, 8, colour, rows)
        np.testing.assert_array_equal(cpu.decode_png(data, BACKGROUND), pillow(data, BACKGROUND))


def test_the_paeth_predictor_equals_its_definition_everywhere():
    values = np.arange(0, 256, 5)
    a, b, c = (v.ravel() for v in np.meshgrid(values, values, values))
    predicted = [int(cpu._predict(*abc)) for abc in zip(a, b, c, strict=True)]
    expected = [reference.paeth(*abc) for abc in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)]
    assert predicted == expected


@pytest.mark.parametrize(("colour", "key"), [(0, (77,)), (2, (1, 2, 3))])
def test_a_colour_key_shows_the_background(colour, key):
    rows = np.zeros((4, 1 + 4 * len(key)), np.uint8)
    rows[1, 1:] = np.tile(np.array(key, np.uint8), 4)
    rows[2, 1:3] = key[0]
    trns = chunk(b"tRNS", b"".join(v.to_bytes(2, "big") for v in key))
    data = png_file(4, 4, 8, colour, rows, trns)
    got = cpu.decode_png(data, BACKGROUND)
    np.testing.assert_array_equal(got, pillow(data, BACKGROUND))
    np.testing.assert_array_equal(reference.decode_png(data, BACKGROUND), got)
    assert got[1].tolist() == [list(BACKGROUND)] * 4


def test_every_alpha_and_colour_is_blended_as_pillow_does():
    alpha, colour = np.meshgrid(np.arange(256), np.arange(256))
    pixels = np.stack([colour, 255 - colour, colour ^ alpha, alpha], -1).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    for background in [(255, 255, 255), (0, 128, 77)]:
        got = cpu.decode_png(file.getvalue(), background)
        np.testing.assert_array_equal(got, pillow(file.getvalue(), background))


@pytest.mark.parametrize("width", [1, 2, 5, 9, 33])
@pytest.mark.parametrize("colour", [0, 2, 3, 4, 6])
def test_rgbx_output_is_rgb_with_255(colour, width):
    data = sample(colour, 8, width, 10)
    out = np.full((10, width, 4), 1, np.uint8)
    assert cpu.decode_png(data, BACKGROUND, out) is out
    np.testing.assert_array_equal(out[..., :3], pillow(data, BACKGROUND))
    assert (out[..., 3] == 255).all()


def test_after_warming_no_format_compiles_anything():
    cpu.warm()
    compiled = len(cpu._decode_rows.signatures)
    for colour, depth in FORMATS:
        cpu.decode_png(sample(colour, depth, 9, 6), BACKGROUND)
        cpu.decode_png(sample(colour, depth, 9, 6), BACKGROUND, np.empty((6, 9, 4), np.uint8))
    assert len(cpu._decode_rows.signatures) == compiled


def test_an_output_of_another_shape_is_refused():
    data = sample(2, 8, 5, 4)
    with pytest.raises(ValueError, match=r"out must be uint8 \[4, 5, 3 or 4\]"):
        cpu.decode_png(data, BACKGROUND, np.empty((5, 4, 3), np.uint8))


def test_output_may_be_a_view_into_a_larger_buffer():
    data = sample(2, 8, 33, 10)
    buffer = np.full((12, 40, 3), 9, np.uint8)
    cpu.decode_png(data, BACKGROUND, buffer[1:11, 2:35])
    want = np.full((12, 40, 3), 9, np.uint8)
    want[1:11, 2:35] = pillow(data, BACKGROUND)
    np.testing.assert_array_equal(buffer, want)
    mirrored = np.zeros((10, 33, 3), np.uint8)[:, ::-1]
    np.testing.assert_array_equal(cpu.decode_png(data, BACKGROUND, mirrored), pillow(data, BACKGROUND))


def test_files_of_a_size_with_many_blocks_equal_pillow():
    data = sample(2, 8, 700, 400, low=True)
    np.testing.assert_array_equal(cpu.decode_png(data, BACKGROUND), pillow(data, BACKGROUND))


def test_a_palette_index_without_entry_is_left_to_pillow():
    rng = np.random.default_rng(0)
    rows = np.zeros((2, 4), np.uint8)
    rows[1, 2] = 5
    for entries in (5, 6):
        data = png_file(3, 2, 8, 3, rows, palette_chunks(rng, entries))
        if entries == 5:
            for decode in (cpu.decode_png, reference.decode_png):
                with pytest.raises(Unsupported, match="palette index"):
                    decode(data, BACKGROUND)
        else:
            got = cpu.decode_png(data, BACKGROUND)
            np.testing.assert_array_equal(got, pillow(data, BACKGROUND))


def test_an_unknown_filter_type_is_left_to_pillow():
    for decode in (cpu.decode_png, reference.decode_png):
        with pytest.raises(Unsupported, match="filter type"):
            decode(png_file(2, 1, 8, 0, [5, 1, 2]), BACKGROUND)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_damaged_files_give_pillow_s_pixels_or_are_left_to_pillow(data):
    colour, depth = data.draw(st.sampled_from(FORMATS))
    file = bytearray(sample(colour, depth, 9, 6, data.draw(st.integers(0, 3))))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(file)))
        stop = min(len(file), start + data.draw(st.sampled_from([0, 1, 2, 17])))
        file[start:stop] = data.draw(st.binary(max_size=4))
    try:
        got = cpu.decode_png(bytes(file), BACKGROUND)
    except Unsupported:
        return
    np.testing.assert_array_equal(got, pillow(bytes(file), BACKGROUND))
