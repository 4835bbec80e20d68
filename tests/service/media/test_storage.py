import gc
import subprocess
import sys

import numpy as np
import pytest
from patchloom_service.media.storage import view
from PIL import Image


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
@pytest.mark.parametrize("size", [(1, 1), (3, 2), (1920, 1080)])
def test_a_view_has_the_pixels_of_its_image(mode, size):
    image = Image.effect_noise(size, 90).convert(mode)
    pixels = view(image)
    assert pixels.shape == (size[1], size[0], 4)
    np.testing.assert_array_equal(pixels[:, :, : len(mode)], np.asarray(image))
    assert (pixels[:, :, 3] == 255).all()


def test_a_view_shares_the_storage_and_outlives_its_image():
    image = Image.new("RGB", (50, 40), (1, 2, 3))
    pixels = view(image)
    pixels[0, 0, 0] = 77
    assert image.getpixel((0, 0)) == (77, 2, 3)
    del image
    gc.collect()
    Image.new("RGB", (50, 40), (9, 9, 9))
    assert pixels[1].tolist() == [[1, 2, 3, 255]] * 50


def test_an_image_in_several_blocks_is_copied():
    image = Image.new("RGB", (4096, 1200), (1, 2, 3))
    image.putpixel((4095, 1199), (7, 8, 9))
    pixels = view(image)
    assert (pixels[1199, 4095].tolist()[:3], pixels[5, 5].tolist()[:3]) == ([7, 8, 9], [1, 2, 3])
    pixels[0, 0, 0] = 5


def test_a_prepared_process_views_large_images_without_a_copy():
    script = (
        "from PIL import Image\n"
        "from patchloom_service.media.storage import prepare_process, view\n"
        "prepare_process()\n"
        "image = Image.new('RGB', (8192, 4096))\n"
        "view(image)[4095, 8191, :3] = 1, 2, 3\n"
        "assert image.getpixel((8191, 4095)) == (1, 2, 3)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
