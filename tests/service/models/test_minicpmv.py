import pytest
from patchloom_service.errors import InvalidMessage
from patchloom_service.models import minicpmv
from patchloom_service.models.image_config import ConfigRefused
from patchloom_service.types import ImageOptions

from tests.support.families import (
    assert_equals_pil,
    assert_equals_processor,
    assert_slices_cover,
    build,
    cases,
)


@pytest.mark.parametrize(("name", "index"), cases("minicpmv4_6", "minicpmv4_6_4x", "minicpmv4_7"))
def test_ids_and_tensors_equal_the_processor(name, index):
    assert_equals_processor(name, index)


@pytest.mark.parametrize("sizes", [[(1, 1)], [(57, 83)], [(477, 641)], [(900, 500)], [(57, 83), (300, 140)]])
def test_pixels_equal_the_pil_class(sizes):
    assert_equals_pil("minicpmv4_6", sizes)


def test_pixel_bounds_of_an_image_are_refused():
    with pytest.raises(InvalidMessage, match="no options"):
        build("minicpmv4_6").plan_image((40, 40), ImageOptions(max_pixels=5), 1)


def test_items_follow_one_another():
    assert_slices_cover(build("minicpmv4_6"), [(57, 83), (300, 140), (140, 300)])


def test_no_image_means_no_tensor():
    layout = build("minicpmv4_6").layout([])
    assert (layout.pixels, dict(layout.constants), layout.slices) == ((), {}, ())


@pytest.mark.parametrize(
    "settings",
    [
        {"downsample_mode": "2x"},
        {"sharpen": 1},
    ],
)
def test_settings_that_cannot_be_reproduced_are_refused(settings):
    with pytest.raises(ConfigRefused):
        build("minicpmv4_6", **settings)


def test_the_family_is_found_by_architecture_or_model_type():
    assert minicpmv.match({"model_type": "minicpmv4_6"})
    assert not minicpmv.match({"architectures": ["MiniCPMV"]})
