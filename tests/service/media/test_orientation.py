import struct
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patchloom_service.media.orientation import exif_orientation, orientation, xmp_orientation
from PIL import Image

from tests.support.pictures import exif

XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="%d"/></x:xmpmeta>'


@pytest.mark.parametrize("endian", "<>")
@pytest.mark.parametrize("prefix", [b"", b"Exif\0\0", b"Exif\0\0Exif\0\0"])
def test_exif_is_read_in_both_byte_orders_with_and_without_its_prefix(endian, prefix):
    assert [exif_orientation(prefix + exif(value, endian)) for value in range(10)] == list(range(10))


@pytest.mark.parametrize(
    "block", [b"", b"Exif\0\0", b"Exif\0\0" + b"junk" * 3, exif(6)[:20], b"II\x2a\x00\x08"]
)
def test_an_unreadable_block_has_no_orientation(block):
    assert exif_orientation(block) is None


def test_xmp_is_read_as_attribute_and_as_element():
    assert xmp_orientation(XMP % 6) == 6
    assert xmp_orientation(b"<tiff:Orientation>8</tiff:Orientation>") == 8
    assert xmp_orientation(b"<tiff:Make>x</tiff:Make>") is None


@pytest.mark.parametrize(
    ("block", "packet", "expected"),
    [
        (None, None, 1),
        (exif(6), None, 6),
        (exif(1), XMP % 6, 1),
        (exif(0), XMP % 6, 1),
        (exif(9), None, 1),
        (b"junk", XMP % 6, 6),
        (None, XMP % 3, 3),
        (None, XMP % 9, 1),
    ],
)
def test_exif_wins_and_xmp_is_asked_only_without_it(block, packet, expected):
    assert orientation(block, packet) == expected


def pillow(block: bytes) -> int | None:
    found = Image.Exif()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found.load(block)
            value = found.get(0x0112)
        except (SyntaxError, struct.error):
            return None
    return value if isinstance(value, int) else None


@st.composite
def blocks(draw):
    endian = draw(st.sampled_from("<>"))
    tag = st.sampled_from([0x010F, 0x0112, 0x0112, 0x8769])
    kind = st.sampled_from([0, 1, 2, 3, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 16, 99])
    count, value = st.sampled_from([0, 1, 1, 2, 5, 1 << 31]), st.integers(0, 150)
    entries = draw(st.lists(st.tuples(tag, kind, count, value), max_size=5))
    body = b"".join(struct.pack(endian + "HHLL", *entry) for entry in entries)
    first = draw(st.sampled_from([8, 8, 8, 9, 5000]))
    announced = len(entries) + draw(st.integers(0, 1))
    magic = b"II\x2a\x00" if endian == "<" else b"MM\x00\x2a"
    block = magic + struct.pack(endian + "LH", first, announced) + body
    block += draw(st.binary(max_size=40))
    return block[: draw(st.integers(0, len(block)))] if draw(st.booleans()) else block


@settings(max_examples=300)
@given(blocks())
def test_any_directory_means_what_it_means_to_pillow(block):
    assert exif_orientation(block) == pillow(block)
