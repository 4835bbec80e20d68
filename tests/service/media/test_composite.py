import numpy as np
import pytest
from patchloom_service.media.composite import composite
from PIL import Image


@pytest.mark.parametrize("background", [(255, 255, 255), (0, 0, 0), (1, 127, 254)])
def test_all_pairs_of_colour_and_alpha_equal_pillow(background):
    rgba = np.empty((256, 256, 4), np.uint8)
    rgba[:, :, :3] = np.arange(256)[None, :, None]
    rgba[:, :, 3] = np.arange(256)[:, None]
    under = Image.new("RGBA", (256, 256), (*background, 255))
    expected = np.asarray(Image.alpha_composite(under, Image.fromarray(rgba)))[:, :, :3]
    composite(rgba, *background)
    np.testing.assert_array_equal(rgba[:, :, :3], expected)
