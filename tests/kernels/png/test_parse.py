"""The chunk walk: what is described, what is left to Pillow."""

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patchloom_kernels.png.parse import Colour, parse_png
from patchloom_kernels.unsupported import Unsupported
from png_files import SIGNATURE, chunk, header, png_file

IDAT = chunk(b"IDAT", zlib.compress(bytes(2)))
IEND = chunk(b"IEND", b"")
GRAY = header(1, 1, 8, 0)
PLTE = chunk(b"PLTE", bytes(6))


def file(*chunks):
    return SIGNATURE + b"".join(chunks)


def test_a_palette_image_is_described_with_its_transparency():
    plte = chunk(b"PLTE", bytes(range(9)))
    trns = chunk(b"tRNS", b"\x05")
    png = parse_png(png_file(9, 3, 4, 3, bytes(18), plte + trns))
    assert (png.width, png.height, png.depth, png.colour) == (9, 3, 4, Colour.PALETTE)
    assert (png.row_bytes, png.filtered_bytes, png.has_alpha, png.key) == (5, 18, True, None)
    assert png.palette.tolist() == [[0, 1, 2, 5], [3, 4, 5, 255], [6, 7, 8, 255]]


@pytest.mark.parametrize(
    ("colour", "row", "alpha"), [(0, 5, False), (2, 15, False), (4, 10, True), (6, 20, True)]
)
def test_row_bytes_and_alpha_follow_the_colour_type(colour, row, alpha):
    png = parse_png(png_file(5, 2, 8, colour, bytes(2 * row + 2)))
    assert (png.row_bytes, png.has_alpha) == (row, alpha)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no png signature"),
        (b"GIF89a", "no png signature"),
        (SIGNATURE, "png without an end chunk"),
        (file(GRAY, IDAT), "png without an end chunk"),
        (file(GRAY, IDAT)[:-1], "truncated png chunk"),
        (file(GRAY, IEND), "png without pixel data"),
        (file(IDAT, IEND), "png header out of place"),
        (file(GRAY, GRAY, IDAT, IEND), "png header out of place"),
        (file(chunk(b"IHDR", bytes(12)), IDAT, IEND), "png header size"),
        (file(header(0, 1, 8, 0), IDAT, IEND), "png size"),
        (file(header(1, 1 << 31, 8, 0), IDAT, IEND), "png size"),
        (file(header(1, 1, 8, 0, 1), IDAT, IEND), "interlaced png"),
        (file(header(1, 1, 16, 0), IDAT, IEND), "png bit depth"),
        (file(header(1, 1, 4, 2), IDAT, IEND), "png bit depth"),
        (file(header(1, 1, 8, 5), IDAT, IEND), "png bit depth"),
        (file(GRAY, chunk(b"acTL", bytes(8)), IDAT, IEND), "animated png"),
        (file(GRAY, IDAT, chunk(b"tEXt", b"a"), IDAT, IEND), "png pixel data in several runs"),
        (file(GRAY, PLTE, IDAT, IEND), "gray png with a palette"),
        (file(header(1, 1, 8, 3), IDAT, IEND), "png palette size"),
        (file(header(1, 1, 8, 3), IDAT, PLTE, IEND), "png palette or transparency out of place"),
        (file(header(1, 1, 1, 3), chunk(b"PLTE", bytes(9)), IDAT, IEND), "png palette size"),
        (file(GRAY, chunk(b"tRNS", b"\1\0"), IDAT, IEND), "png transparency key"),
        (file(GRAY, chunk(b"tRNS", b"\1"), IDAT, IEND), "png transparency size"),
        (file(header(1, 1, 8, 6), chunk(b"tRNS", bytes(2)), IDAT, IEND), "png transparency size"),
        (file(GRAY, chunk(b"DDAT", b""), IDAT, IEND), "unknown critical png chunk"),
        (file(GRAY, chunk(b"gAMA", b""), IDAT, IEND), "short png chunk"),
        (file(GRAY, chunk(b"a1bc", b""), IDAT, IEND), "png chunk name"),
        (file(GRAY, IDAT, IEND[:-1] + b"?"), "png checksum"),
        (file(GRAY, chunk(b"zTXt", b"k\0\1"), IDAT, IEND), "compressed png text"),
        (
            file(GRAY, chunk(b"iCCP", b"k\0\0" + zlib.compress(bytes(2 << 20))), IDAT, IEND),
            "large png text",
        ),
    ],
)
def test_what_pillow_must_judge_is_named(data, reason):
    with pytest.raises(Unsupported) as caught:
        parse_png(data)
    assert caught.value.reason == reason


def test_ordinary_side_chunks_are_passed_over():
    side = [
        chunk(b"gAMA", bytes(4)),
        chunk(b"pHYs", bytes(9)),
        chunk(b"iCCP", b"icc\0\0" + zlib.compress(bytes(3000))),
        chunk(b"tEXt", b"Software\0x"),
        chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0<x/>"),
        chunk(b"iTXt", b"k\0\1\0\0\0" + zlib.compress(b"v")),
        chunk(b"eXIf", b"MM"),
        chunk(b"tIME", bytes(7)),
    ]
    assert parse_png(file(GRAY, *side, IDAT, *side[2:], IEND)).height == 1


def test_the_checksum_of_pixel_data_is_left_to_zlib():
    data = bytearray(png_file(2, 2, 8, 0, bytes(6)))
    data[-13] ^= 1
    assert parse_png(bytes(data)).width == 2


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_described_or_left_to_pillow(data, signed):
    try:
        png = parse_png((SIGNATURE + GRAY if signed else b"") + data)
    except Unsupported:
        return
    assert png.filtered_bytes == 2


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 60), st.binary(min_size=1, max_size=4))
def test_damaged_headers_are_described_or_left_to_pillow(offset, patch):
    data = bytearray(png_file(3, 2, 8, 3, bytes(8), PLTE + chunk(b"tRNS", b"\0")))
    data[offset : offset + len(patch)] = patch
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    try:
        png = parse_png(bytes(data))
    except Unsupported:
        return
    assert png.palette is None or isinstance(png.palette, np.ndarray)
