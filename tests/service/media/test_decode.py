import io

import numpy as np
import pytest
from patchloom_service.errors import InvalidImage
from patchloom_service.media.decode import decode
from patchloom_service.media.header import ImageFormat, ImageHeader
from patchloom_service.media.probe import probe
from PIL import Image, ImageOps

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


def encode(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


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
