import numpy as np
import pytest
from patchloom_service.media.decode import by_pillow
from patchloom_service.media.fast import decode_fast
from patchloom_service.media.header import ImageHeader
from patchloom_service.media.probe import probe
from PIL import Image, ImageFilter

from tests.support.pictures import encode


def photo(size: tuple[int, int]) -> Image.Image:
    samples = np.random.default_rng(3).integers(0, 256, (*size[::-1], 3), np.uint8)
    return Image.fromarray(samples).filter(ImageFilter.GaussianBlur(1))


def fast(data: bytes, background: tuple[int, int, int] = (255, 255, 255)) -> np.ndarray | None:
    def poisoned(shape: tuple[int, int, int]) -> np.ndarray:
        return np.full(shape, 0xA5, np.uint8)

    return decode_fast(data, probe(data, 1 << 24), background, poisoned)


def assert_equals_pillow(data: bytes, background: tuple[int, int, int] = (255, 255, 255)) -> None:
    pixels = fast(data, background)
    assert pixels is not None
    expected = by_pillow(data, probe(data, 1 << 24), background)[:, :, :3]
    np.testing.assert_array_equal(pixels, expected)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (17, 31), (64, 48), (121, 1), (1, 90)])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg_equals_pillow(size, subsampling, progressive):
    options = {"subsampling": subsampling, "progressive": progressive}
    for quality in (5, 85, 100):
        assert_equals_pillow(encode(photo(size), "JPEG", quality=quality, **options))


@pytest.mark.parametrize("options", [{"restart_marker_blocks": 2}, {"keep_rgb": True}, {"optimize": True}])
def test_unusual_jpegs_equal_pillow(options):
    assert_equals_pillow(encode(photo((50, 40)), "JPEG", **options))
    assert_equals_pillow(encode(photo((50, 40)).convert("L"), "JPEG"))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1"])
def test_png_equals_pillow(mode):
    image = photo((53, 37))
    image = image.convert("RGBA") if mode == "RGBA" else image.convert(mode)
    if mode == "RGBA":
        image.putalpha(photo((53, 37)).convert("L"))
    assert_equals_pillow(encode(image, "PNG"), (10, 200, 30))


@pytest.mark.parametrize("mode", ["L", "RGB", "P"])
def test_png_with_a_transparent_colour_equals_pillow(mode):
    image = photo((20, 20)).quantize(8).convert(mode) if mode != "P" else photo((20, 20)).quantize(8)
    key = image.getpixel((3, 3))
    assert_equals_pillow(encode(image, "PNG", transparency=key), (1, 2, 3))


def test_pillow_decides_about_damage_and_cmyk_and_depth():
    data = encode(photo((64, 64)), "JPEG")
    assert fast(data[:-60]) is None
    assert fast(encode(Image.new("CMYK", (8, 8)), "JPEG")) is None
    assert fast(encode(Image.fromarray(np.zeros((4, 4), np.uint16)), "PNG")) is None
    png = bytearray(encode(photo((64, 64)), "PNG"))
    png[len(png) // 2] ^= 1
    assert fast(bytes(png)) is None


def test_other_formats_have_no_fast_way():
    for form in ("WEBP", "GIF", "BMP", "TIFF"):
        assert fast(encode(photo((8, 8)), form)) is None


def test_a_jpeg_that_is_larger_than_its_header_said_is_not_written():
    data = encode(photo((64, 64)), "JPEG")
    header = probe(data, 1 << 24)
    smaller = ImageHeader(header.format, (8, 8))
    assert decode_fast(data, smaller, (0, 0, 0), lambda shape: np.empty(shape, np.uint8)) is None


def test_without_the_optional_package_pillow_decodes_jpeg(monkeypatch):
    monkeypatch.setattr("patchloom_service.media.fast.simplejpeg", None)
    assert fast(encode(photo((8, 8)), "JPEG")) is None
