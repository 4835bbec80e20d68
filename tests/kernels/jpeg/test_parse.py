"""The marker walk: what is described, what is left to Pillow, and that any bytes end in one of both."""

import io
import struct
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jpeg_files import canonical, encode, picture, segment
from patchloom_kernels.jpeg.parse import Colour, HuffmanTable, parse_jpeg
from patchloom_kernels.unsupported import Unsupported
from PIL import Image

DQT = segment(0xDB, bytes(65))
DC = segment(0xC4, b"\0" + canonical({0: 1, 1: 2})[0])
AC = segment(0xC4, b"\x10" + canonical({0: 1, 1: 2})[0])
GRAY = segment(0xC0, struct.pack(">BHHB", 8, 8, 8, 1) + b"\1\x11\0")
SOS = segment(0xDA, b"\1\1\0\0\x3f\0")
TAIL = b"\x0f\xff\xd9"


def file(*parts):
    return b"\xff\xd8" + b"".join(parts)


def frame(*components, precision=8, height=8, width=8):
    head = struct.pack(">BHHB", precision, height, width, len(components))
    return segment(0xC0, head + b"".join(components))


def test_a_colour_file_is_described():
    data = encode(picture(33, 18), "420", 75, restart_marker_rows=1)
    jpeg = parse_jpeg(data)
    assert (jpeg.width, jpeg.height, jpeg.colour, jpeg.restart) == (33, 18, Colour.YCC, 3)
    assert [(c.h, c.v) for c in jpeg.components] == [(2, 2), (1, 1), (1, 1)]
    assert (jpeg.mcus, jpeg.blocks_per_mcu) == ((2, 3), 6)
    assert [jpeg.plane_size(i) for i in range(3)] == [(18, 33), (9, 17), (9, 17)]
    assert bytes(jpeg.scan) == data[data.index(b"\xff\xda") + 14 : -2]


def test_tables_are_those_of_the_file():
    jpeg = parse_jpeg(file(DQT, segment(0xDB, b"\0" + bytes(range(64))), DC, AC, GRAY, SOS, TAIL))
    component = jpeg.components[0]
    assert component.dc == HuffmanTable(b"\1\1" + bytes(14), b"\0\1")
    assert component.quant[[0, 1, 8, 16, 9, 63]].tolist() == [0, 1, 2, 3, 4, 63]


def test_bytes_behind_the_end_are_ignored():
    assert parse_jpeg(file(DQT, DC, AC, GRAY, SOS, TAIL, b"more\xff\xd9")).scan == b"\x0f"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no jpeg signature"),
        (b"\xff\xd8\xff", "truncated jpeg header"),
        (file(DQT, b"\0\0\0\0"), "jpeg marker expected"),
        (file(DQT, b"\xff\xe0\0\1"), "jpeg marker expected"),
        (file(DQT, b"\xff\xe0\0\x09abc"), "truncated jpeg header"),
        (file(DQT, DC, AC, GRAY, SOS, b"\x0f"), "jpeg without end marker"),
        (file(DQT, DC, AC, GRAY, SOS, b"\x0f", SOS, TAIL), "jpeg of several scans"),
        (file(DQT, DC, AC, GRAY, SOS, b"\x0f\xff\xff\xd9"), "jpeg of several scans"),
        (file(DQT, DC, AC, SOS, TAIL), "jpeg scan without frame"),
        (file(DQT, DC, GRAY, SOS, TAIL), "jpeg table missing"),
        (file(DC, AC, GRAY, SOS, TAIL), "jpeg table missing"),
        (file(DQT, DC, AC, GRAY, GRAY, SOS, TAIL), "jpeg marker out of place"),
        (file(DQT, DC, AC, segment(0xC2, b"")), "progressive jpeg"),
        (file(DQT, DC, AC, segment(0xC9, b"")), "arithmetic jpeg"),
        (file(segment(0xDB, bytes(64))), "jpeg quantisation table size"),
        (file(segment(0xDB, b"\x10" + bytes(129))), "jpeg quantisation table of 16 bits"),
        (file(segment(0xC4, b"\0" + bytes(15))), "jpeg huffman table size"),
        (file(segment(0xC4, b"\0" + b"\2" + bytes(17))), "jpeg huffman code"),
        (file(segment(0xC4, b"\0" + canonical({16: 1})[0])), "jpeg huffman symbols"),
        (file(frame(b"\1\x11\0", precision=12)), "jpeg not of 8 bits"),
        (file(frame(b"\1\x11\0", height=0)), "jpeg size"),
        (file(frame(*[b"\1\x11\0"] * 4)), "jpeg not of 1 or 3 components"),
        (file(frame(b"\1\x11\0", b"\1\x11\0", b"\2\x11\0")), "jpeg component twice"),
        (file(frame(b"\1\x11\0", b"\2\x22\0", b"\3\x11\0")), "jpeg sampling"),
        (file(frame(b"\1\x14\0", b"\2\x11\0", b"\3\x11\0")), "jpeg sampling"),
        (file(frame(b"\1\0\0")), "jpeg sampling"),
        (
            file(DQT, DC, AC, GRAY, segment(0xDA, b"\1\1\0\1\x3f\0"), TAIL),
            "jpeg scan parameters",
        ),
        (
            file(DQT, DC, AC, frame(b"\1\x11\0", height=999, width=999), SOS, TAIL),
            "jpeg scan too short",
        ),
    ],
)
def test_what_pillow_must_judge_is_named(data, reason):
    with pytest.raises(Unsupported) as caught:
        parse_jpeg(data)
    assert caught.value.reason == reason


@pytest.mark.parametrize(("mode", "options"), [("CMYK", {}), ("RGB", {"progressive": True})])
def test_files_of_other_kinds_are_left_to_pillow(mode, options):
    out = io.BytesIO()
    Image.fromarray(picture(20, 20)).convert(mode).save(out, "JPEG", **options)
    with pytest.raises(Unsupported):
        parse_jpeg(out.getvalue())


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([DQT, DC, AC, GRAY, SOS, TAIL]) | st.binary(max_size=40)))
def test_any_bytes_are_described_or_left_to_pillow(parts):
    try:
        jpeg = parse_jpeg(file(*parts))
    except Unsupported:
        return
    assert len(jpeg.components) in (1, 3)


def test_the_walk_is_linear():
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, 4 << 20, dtype=np.uint8).tobytes().replace(b"\xff", b"\xff\0")
    many = segment(0xFE, b"") * 100_000
    data = file(DQT, DC, AC, many, GRAY, SOS, noise, b"\xff\xd9")
    began = time.process_time()
    parse_jpeg(data)
    assert time.process_time() - began < 3
