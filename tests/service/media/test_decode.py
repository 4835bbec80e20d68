import io
import struct
import zlib

import numpy as np
import pytest
from patchloom_service.errors import InvalidImage, LimitExceeded
from patchloom_service.media.decode import by_pillow, decode, warm_up
from patchloom_service.media.header import ImageFormat, ImageHeader
from patchloom_service.media.probe import probe
from PIL import Image, ImageOps

from tests.support.pictures import encode

ALLOWED_PIXELS = 1 << 24
MODES = {
    "PNG": ["RGBA", "RGB", "L", "P", "1", "LA"],
    "JPEG": ["RGB", "L", "CMYK"],
    "WEBP": ["RGBA", "RGB"],
    "GIF": ["RGBA", "RGB", "L", "P", "1"],
    "BMP": ["RGBA", "RGB", "L", "P", "1"],
    "TIFF": ["RGBA", "RGB", "L", "P", "1", "LA", "CMYK", "YCbCr"],
}


def picture(mode: str, size: tuple[int, int] = (53, 37)) -> Image.Image:
    samples = np.random.default_rng(7).integers(0, 256, (size[1], size[0], 4), np.uint8)
    rgba = Image.fromarray(samples)
    if mode in ("RGBA", "LA"):
        return rgba.convert(mode)
    return rgba.convert("RGB").convert(mode)


def pixels_of(data: bytes, background: tuple[int, int, int] = (255, 255, 255)) -> np.ndarray:
    return decode(data, probe(data, ALLOWED_PIXELS), background)[:, :, :3]


def pillow(data: bytes, background: tuple[int, int, int] = (255, 255, 255)) -> np.ndarray:
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGBA")
    under = Image.new("RGBA", upright.size, (*background, 255))
    return np.asarray(Image.alpha_composite(under, upright))[:, :, :3]


def solid(colour: object, mode: str = "RGB") -> Image.Image:
    return Image.new(mode, (2, 3), colour)


@pytest.mark.parametrize(("form", "mode"), [(f, m) for f, modes in MODES.items() for m in modes])
@pytest.mark.parametrize("background", [(255, 255, 255), (3, 200, 90)])
def test_every_mode_of_every_format_equals_pillow(form, mode, background):
    data = encode(picture(mode), form)
    np.testing.assert_array_equal(pixels_of(data, background), pillow(data, background))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("value", range(10))
def test_every_orientation_equals_pillow(form, value):
    exif = Image.Exif()
    exif[0x0112] = value
    data = encode(picture("RGB"), form, exif=exif)
    np.testing.assert_array_equal(pixels_of(data), pillow(data))


def test_transparent_red_on_white_is_pink_and_invisible_black_is_white():
    assert pixels_of(encode(solid((255, 0, 0, 128), "RGBA"), "PNG"))[0, 0].tolist() == [255, 127, 127]
    assert pixels_of(encode(solid((0, 0, 0, 0), "RGBA"), "PNG"))[0, 0].tolist() == [255, 255, 255]


def test_an_animated_gif_is_its_first_frame():
    frames = [solid(c) for c in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert probe(data, ALLOWED_PIXELS).animated
    assert pixels_of(data).tolist() == [[[255, 0, 0]] * 2] * 3


def test_a_cmyk_jpeg_with_the_adobe_marker_is_red():
    data = encode(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=100)
    assert pixels_of(data)[4, 4].tolist() == [255, 0, 0]


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_sixteen_bit_grayscale_keeps_its_upper_byte(form):
    samples = np.array([[0, 255, 256, 0x1234, 0xFFFF]], np.uint16)
    data = encode(Image.fromarray(samples), form)
    assert pixels_of(data)[0].tolist() == [[v] * 3 for v in (0, 0, 1, 0x12, 255)]


def test_a_truncated_jpeg_is_an_invalid_image():
    data = encode(picture("RGB", (200, 200)), "JPEG")[:-128]
    with pytest.raises(InvalidImage, match="jpeg is damaged"):
        pixels_of(data)


def test_the_header_of_another_image_is_refused():
    data = encode(picture("RGB"), "GIF")
    with pytest.raises(InvalidImage, match="contradicts"):
        decode(data, ImageHeader(ImageFormat.GIF, (5, 5)))


def png_of(header: tuple[int, int, int, int], rows: bytes, key: bytes) -> bytes:
    width, height, depth, colour = header
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)),
        (b"tRNS", key),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    packed = (struct.pack(">I", len(b)) + n + b + struct.pack(">I", zlib.crc32(n + b)) for n, b in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


@pytest.mark.parametrize(
    ("header", "rows", "key", "expected"),
    [
        ((4, 1, 1, 0), b"\0\xa0", b"\0\1", [9, 0, 9, 0]),
        ((4, 1, 2, 0), b"\0\x1b", b"\0\2", [0, 85, 9, 255]),
        ((2, 1, 4, 0), b"\0\x5a", b"\0\5", [9, 170]),
        ((3, 1, 8, 0), b"\0\1\2\3", b"\0\2", [1, 9, 3]),
        ((3, 1, 8, 0), b"\0\1\2\3", b"\1\2", [1, 2, 3]),
        ((3, 1, 16, 0), b"\0\1\2\1\3\2\2", b"\1\2", [9, 1, 2]),
    ],
)
def test_a_transparent_gray_is_compared_as_it_is_stored(header, rows, key, expected):
    pixels = pixels_of(png_of(header, rows, key), (9, 9, 9))
    assert pixels[0].tolist() == [[v] * 3 for v in expected]


def test_a_transparent_sixteen_bit_colour_is_compared_with_all_its_bits():
    rows = b"\0" + struct.pack(">9H", 0x1234, 0x5678, 0x9ABC, 0x1234, 0x5678, 0x9ABD, 0xFFFF, 0, 0x80)
    data = png_of((3, 1, 16, 2), rows, struct.pack(">3H", 0x1234, 0x5678, 0x9ABC))
    assert pixels_of(data, (1, 2, 3))[0].tolist() == [[1, 2, 3], [0x12, 0x56, 0x9A], [255, 0, 0]]


def test_the_same_picture_has_the_same_shape_from_every_format():
    image = picture("RGB").resize((8, 6))
    for form in MODES:
        pixels = pixels_of(encode(image, form))
        assert (pixels.shape, pixels.dtype, pixels.strides[2]) == ((6, 8, 3), np.uint8, 1)


def test_gray_and_rgb_jpegs_of_a_size_have_the_same_shape():
    gray, colour = (pixels_of(encode(picture(mode, (640, 384)), "JPEG")) for mode in ("L", "RGB"))
    assert gray.shape == colour.shape == (384, 640, 3)
    assert (gray[:, :, :1] == gray).all()


def test_a_single_pixel_is_decoded():
    assert pixels_of(encode(Image.new("RGB", (1, 1), (5, 6, 7)), "PNG")).tolist() == [[[5, 6, 7]]]


def test_the_first_frame_of_an_animated_png_and_webp_counts():
    frames = [solid(c) for c in ((255, 0, 0), (0, 255, 0))]
    for options in ({"format": "PNG"}, {"format": "WEBP", "lossless": True}):
        buffer = io.BytesIO()
        frames[0].save(buffer, save_all=True, append_images=frames[1:], **options)
        assert pixels_of(buffer.getvalue()).tolist() == [[[255, 0, 0]] * 2] * 3


def test_pixels_lie_in_the_memory_that_was_allocated():
    arrays = []

    def allocate(shape: tuple[int, int, int]) -> np.ndarray:
        arrays.append(np.empty(shape, np.uint8))
        return arrays[-1]

    data = encode(picture("RGB"), "PNG")
    pixels = decode(data, probe(data, ALLOWED_PIXELS), allocate=allocate)
    assert np.shares_memory(pixels, arrays[0])


@pytest.mark.parametrize("form", ["PNG", "JPEG", "BMP"])
def test_pillow_is_not_asked_what_size_is_too_large(form, monkeypatch):
    data = encode(picture("RGB"), form)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert by_pillow(data, probe(data, ALLOWED_PIXELS), (0, 0, 0)).shape[:2] == (37, 53)


@pytest.mark.parametrize("form", ["GIF", "TIFF", "WEBP"])
def test_where_pillow_asks_the_probe_has_refused_before(form, monkeypatch):
    data = encode(picture("RGB"), form)
    ceilings = {form.lower(): 100}
    monkeypatch.setattr("patchloom_service.media.probe._CEILINGS", ceilings)
    with pytest.raises(LimitExceeded, match="53x37 = 1961 pixels; at most 100 are allowed"):
        probe(data, ALLOWED_PIXELS)


def test_warming_up_needs_no_image():
    warm_up()
