import io
import re
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patchloom_service.errors import InvalidImage, LimitExceeded, PatchloomError, UnsupportedContent
from patchloom_service.media.decode import decode
from patchloom_service.media.header import ImageFormat, ImageHeader
from patchloom_service.media.probe import probe
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo

from tests.support.pictures import encode, exif

ALLOWED = 1 << 22
XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="%d"/></x:xmpmeta>'


def picture(size: tuple[int, int] = (7, 4), mode: str = "RGB") -> Image.Image:
    samples = np.random.default_rng(5).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(samples).convert(mode)


def png_chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png_with(*chunks: bytes, behind: bool, after_end: bool = False) -> bytes:
    data = encode(picture(), "PNG")
    end = data.index(b"IEND") - 4
    position = len(data) if after_end else end if behind else 33
    return data[:position] + b"".join(chunks) + data[position:]


def jpeg_with(*segments: bytes) -> bytes:
    data = encode(picture(), "JPEG")
    app = b"".join(b"\xff\xe1" + struct.pack(">H", len(s) + 2) + s for s in segments)
    return data[:2] + app + data[2:]


def webp_with(flags: int, *chunks: tuple[bytes, bytes]) -> bytes:
    inner = encode(picture(), "WEBP")[12:]
    body = b"VP8X\x0a\0\0\0" + bytes([flags, 0, 0, 0, 6, 0, 0, 3, 0, 0]) + inner
    for name, chunk in chunks:
        body += name + struct.pack("<I", len(chunk)) + chunk + b"\0" * (len(chunk) & 1)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def turned(data: bytes) -> int:
    """The orientation probed, after the decoded size and pixels were found to agree with Pillow."""
    header = probe(data, ALLOWED)
    pixels = decode(data, header)[:, :, :3]
    assert pixels.shape[:2] == header.size
    np.testing.assert_array_equal(
        pixels, np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    )
    return header.orientation


@pytest.mark.parametrize(
    ("image", "form", "expected"),
    [
        (picture(), "PNG", ImageHeader(ImageFormat.PNG, (4, 7))),
        (picture(mode="L"), "PNG", ImageHeader(ImageFormat.PNG, (4, 7), channels=1)),
        (picture(mode="1"), "PNG", ImageHeader(ImageFormat.PNG, (4, 7), bits=1, channels=1)),
        (picture().convert("RGBA"), "PNG", ImageHeader(ImageFormat.PNG, (4, 7), channels=4, has_alpha=True)),
        (picture(), "JPEG", ImageHeader(ImageFormat.JPEG, (4, 7))),
        (picture(mode="L"), "JPEG", ImageHeader(ImageFormat.JPEG, (4, 7), channels=1)),
        (picture(mode="CMYK"), "JPEG", ImageHeader(ImageFormat.JPEG, (4, 7), channels=4)),
        (picture(), "WEBP", ImageHeader(ImageFormat.WEBP, (4, 7))),
        (picture(), "GIF", ImageHeader(ImageFormat.GIF, (4, 7), channels=1)),
        (picture(), "BMP", ImageHeader(ImageFormat.BMP, (4, 7))),
        (picture(), "TIFF", ImageHeader(ImageFormat.TIFF, (4, 7))),
        (picture(mode="CMYK"), "TIFF", ImageHeader(ImageFormat.TIFF, (4, 7), channels=4)),
    ],
)
def test_the_header_says_what_was_saved(image, form, expected):
    assert probe(encode(image, form), ALLOWED) == expected


def test_a_progressive_jpeg_is_told_from_a_baseline_one():
    assert probe(encode(picture(), "JPEG", progressive=True), ALLOWED).progressive


@pytest.mark.parametrize("form", ["PNG", "WEBP", "GIF"])
def test_an_animation_is_recognised(form):
    data = encode(picture(), form, save_all=True, append_images=[picture().rotate(180)])
    assert probe(data, ALLOWED).animated
    assert not probe(encode(picture(), form), ALLOWED).animated


@pytest.mark.parametrize("endian", "<>")
@pytest.mark.parametrize("segments", [(b"Exif\0\0",), (b"other", b"Exif\0\0")])
def test_jpeg_exif_is_honoured(endian, segments):
    *others, prefix = segments
    assert turned(jpeg_with(*others, prefix + exif(6, endian))) == 6


def test_jpeg_xmp_is_asked_behind_exif():
    xmp = b"http://ns.adobe.com/xap/1.0/\0"
    assert turned(jpeg_with(xmp + XMP % 6)) == 6
    assert turned(jpeg_with(xmp + XMP % 6, b"Exif\0\0" + exif(1))) == 1
    assert turned(jpeg_with(b"Exif\0\0" + exif(3), b"Exif\0\0" + exif(6))) == 3


def test_jpeg_exif_behind_the_scan_is_not_honoured():
    data = encode(picture(), "JPEG")
    app = b"\xff\xe1" + struct.pack(">H", 34) + b"Exif\0\0" + exif(6)
    assert turned(data[:-2] + app + data[-2:]) == 1
    assert turned(data + app) == 1


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(
    "chunk",
    [
        png_chunk(b"eXIf", exif(6)),
        png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP % 6),
        png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(XMP % 6)),
        png_chunk(b"tEXt", b"Raw profile type exif\0\nexif\n      26\n" + exif(6).hex().encode()),
        png_chunk(
            b"zTXt",
            b"Raw profile type exif\0\0" + zlib.compress(b"\nexif\n      26\n" + exif(6).hex().encode()),
        ),
    ],
    ids=["eXIf", "XMP", "compressed XMP", "profile", "compressed profile"],
)
def test_png_metadata_is_honoured_before_and_behind_the_pixels(chunk, behind):
    assert turned(png_with(chunk, behind=behind)) == 6


def test_png_metadata_that_does_not_count():
    assert turned(png_with(png_chunk(b"eXIf", exif(6)), behind=True, after_end=True)) == 1
    profile = png_chunk(b"tEXt", b"Raw profile type APP1\0\nexif\n      26\n" + exif(6).hex().encode())
    assert turned(png_with(profile, behind=False)) == 1
    assert (
        probe(
            png_with(png_chunk(b"zTXt", b"Raw profile type exif\0\0junk"), behind=True), ALLOWED
        ).orientation
        == 1
    )


def test_png_exif_wins_over_xmp():
    xmp = png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP % 6)
    assert turned(png_with(xmp, png_chunk(b"eXIf", exif(1)), behind=False)) == 1


@pytest.mark.parametrize(
    ("flags", "chunks", "expected"),
    [
        (0x08, [(b"EXIF", exif(6))], 6),
        (0x08, [(b"EXIF", b"Exif\0\0" + exif(6))], 6),
        (0x04, [(b"XMP ", XMP % 8)], 8),
        (0x0C, [(b"EXIF", exif(1)), (b"XMP ", XMP % 8)], 1),
        (0x00, [(b"EXIF", exif(6))], 1),
        (0x08, [(b"XMP ", XMP % 8)], 1),
    ],
)
def test_webp_metadata_counts_where_a_flag_announces_it(flags, chunks, expected):
    assert turned(webp_with(flags, *chunks)) == expected


@pytest.mark.parametrize("value", range(1, 9))
@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"])
def test_tiff_orientation_is_honoured(value, compression):
    tags = {274: value}
    assert turned(encode(picture((24, 16)), "TIFF", compression=compression, tiffinfo=tags)) == value


def test_tiff_xmp_is_asked_where_there_is_no_tag():
    assert turned(encode(picture(), "TIFF", tiffinfo={700: XMP % 6})) == 6
    assert turned(encode(picture(), "TIFF", tiffinfo={700: XMP % 6, 274: 1})) == 1


def test_bigtiff_and_several_pages_are_read():
    assert turned(encode(picture(), "TIFF", big_tiff=True, tiffinfo={274: 6})) == 6
    pages = encode(picture(), "TIFF", save_all=True, append_images=[picture((3, 3))])
    assert probe(pages, ALLOWED).size == (4, 7)


def test_broken_exif_leaves_the_pixels_as_they_are():
    data = jpeg_with(b"Exif\0\0" + b"\x01junk bytes!")
    header = probe(data, ALLOWED)
    assert header.orientation == 1
    np.testing.assert_array_equal(decode(data, header), decode(encode(picture(), "JPEG"), header))


def test_a_picture_on_its_side_is_turned_upright():
    stored = Image.new("RGB", (640, 480), (0, 0, 255))
    stored.paste((255, 0, 0), (0, 0, 64, 480))
    stored.paste((0, 255, 0), (64, 416, 640, 480))
    turn = Image.Exif()
    turn[0x0112] = 6
    data = encode(stored, "JPEG", quality=95, exif=turn)
    header = probe(data, ALLOWED)
    pixels = decode(data, header)
    assert (header.size, pixels.shape[:2]) == ((640, 480), (640, 480))
    assert np.argmax(pixels[10, 240, :3]) == 0  # red above
    assert np.argmax(pixels[400, 20, :3]) == 1  # green on the left


def test_too_many_pixels_are_refused_before_anything_is_allocated():
    header = struct.pack(">IIBBBBB", 12000, 12000, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    tracemalloc.start()
    with pytest.raises(LimitExceeded, match="12000x12000 = 144000000 pixels; at most 64000000 are allowed"):
        probe(data, 64_000_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_the_bytes_decide_the_format_of_a_gif_frame_that_leaves_its_screen():
    data = bytearray(encode(picture((9, 5)), "GIF"))
    data[6:10] = struct.pack("<HH", 2, 2)
    header = probe(bytes(data), ALLOWED)
    assert (header.size, decode(bytes(data), header).shape[:2]) == ((5, 9), (5, 9))


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"%PDF-1.7 ...", "pdf"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "heic"),
        (b"\0\0\0\x18ftypavif\0\0\0\0", "avif"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0", "heic"),
        (b"\0\0\0\x18ftypisom\0\0\0\0", "iso media"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "svg"),
        (b'\xef\xbb\xbf<?xml version="1.0"?>\n<svg/>', "svg"),
        (b"<!DOCTYPE html><html>", "html"),
        (b"\0\0\1\0\1\0", "ico"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "jpeg xl"),
        (b"\xff\x4f\xff\x51", "jpeg 2000"),
        (b"8BPS\0\1", "psd"),
        (b"MM\0\x2b\0\x08\0\0", "big-endian bigtiff"),
    ],
)
def test_other_formats_are_refused_by_name(data, name):
    with pytest.raises(UnsupportedContent) as refused:
        probe(data, ALLOWED)
    assert str(refused.value) == f"{name} is not supported; send png, jpeg, webp, gif, bmp or tiff"


def test_garbage_is_refused_in_few_words_that_show_none_of_it():
    garbage = np.random.default_rng(2).bytes(2 << 20)
    for data in (
        b"",
        b"G",
        garbage,
        b"\xff\xd8\xff" + garbage,
        b"\x89PNG\r\n\x1a\n" + garbage,
        b"BM" + garbage,
    ):
        with pytest.raises(InvalidImage) as refused:
            decode(data, probe(data, ALLOWED))
        assert len(str(refused.value)) < 200
        assert not re.search(r" at 0x[0-9a-f]+", str(refused.value))


@pytest.mark.parametrize(("samples", "dtype"), [(1.5, np.float32), (70000, np.int32)])
def test_samples_without_an_agreed_range_are_refused(samples, dtype):
    data = encode(Image.fromarray(np.full((4, 4), samples, dtype)), "TIFF")
    with pytest.raises(UnsupportedContent, match="at most 16 bits"):
        probe(data, ALLOWED)


@pytest.mark.parametrize("progressive", [True, False])
def test_a_jpeg_with_hundreds_of_scans_is_refused(progressive):
    data = bytearray(encode(picture((64, 64)), "JPEG", progressive=progressive))
    first = data.index(b"\xff\xda")
    scan = b"\xff\xda\0\x08\1\1\0\0\x3f\0\0"
    with pytest.raises(LimitExceeded, match="at most 100 are allowed"):
        probe(bytes(data[:first] + scan * 200 + data[first:]), ALLOWED)


def test_text_that_inflates_without_end_is_left_alone():
    bomb = png_chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(b"\0" * (64 << 20), 9))
    data = png_with(*[bomb] * 20, behind=False)
    tracemalloc.start()
    assert probe(data, ALLOWED).orientation == 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20
    assert decode(data, probe(data, ALLOWED)).shape[:2] == (4, 7)


FORMATS = {
    "PNG": ["RGB", "RGBA", "L", "LA", "P", "1", "I;16"],
    "JPEG": ["RGB", "L", "CMYK"],
    "WEBP": ["RGB", "RGBA"],
    "GIF": ["RGB", "L", "P", "1"],
    "BMP": ["RGB", "RGBA", "L", "P", "1"],
    "TIFF": ["RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "YCbCr", "I;16"],
}


@st.composite
def files(draw):
    form = draw(st.sampled_from(sorted(FORMATS)))
    mode = draw(st.sampled_from(FORMATS[form]))
    image = Image.new("RGBA", draw(st.tuples(st.integers(1, 40), st.integers(1, 40))), (200, 30, 90, 120))
    if mode == "I;16":
        image = Image.new("I;16", image.size, 4660)
    else:
        image = image.convert("LA" if mode == "LA" else "RGBA" if mode == "RGBA" else "RGB").convert(mode)
    options: dict[str, object] = {}
    if form in ("JPEG", "PNG", "WEBP", "TIFF"):
        turn = Image.Exif()
        turn[0x0112] = draw(st.integers(0, 9))
        options["exif"] = turn
    if form == "JPEG":
        options["progressive"] = draw(st.booleans())
    if form == "PNG" and draw(st.booleans()):
        options["pnginfo"] = PngInfo()
        options["pnginfo"].add_itxt("XML:com.adobe.xmp", (XMP % 6).decode())
    return encode(image, form, **options)


@settings(max_examples=150, deadline=None)
@given(files())
def test_the_probed_size_is_the_decoded_size(data):
    header = probe(data, ALLOWED)
    assert decode(data, header).shape[:2] == header.size
    assert header.size == ImageOps.exif_transpose(Image.open(io.BytesIO(data))).size[::-1]


@st.composite
def mutants(draw):
    data = bytearray(draw(files()))
    for _ in range(draw(st.integers(1, 6))):
        position = draw(st.integers(0, min(len(data) - 1, draw(st.sampled_from([64, 400, 1 << 20])))))
        data[position] = draw(st.sampled_from([0, 1, 127, 128, 255]) | st.integers(0, 255))
    if draw(st.booleans()):
        position = draw(st.integers(0, len(data)))
        data[position : position + draw(st.integers(0, 8))] = draw(st.binary(max_size=8))
    if draw(st.booleans()):
        del data[draw(st.integers(1, len(data))) :]
    return bytes(data)


@settings(max_examples=400, deadline=None)
@given(mutants())
def test_a_mutated_file_ends_in_pixels_of_the_probed_size_or_a_typed_error(data):
    try:
        header = probe(data, ALLOWED)
        pixels = decode(data, header)
    except PatchloomError:
        return
    assert pixels.shape[:2] == header.size
