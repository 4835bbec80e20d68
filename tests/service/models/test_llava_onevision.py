import pytest
from patchloom_service.errors import InvalidMessage
from patchloom_service.models import llava_onevision
from patchloom_service.models.image_config import ConfigRefused
from patchloom_service.types import ImageOptions

from tests.support.families import (
    assert_equals_pil,
    assert_equals_processor,
    assert_slices_cover,
    build,
    cases,
)


@pytest.mark.parametrize(("name", "index"), cases("llava_onevision"))
def test_ids_and_tensors_equal_the_processor(name, index):
    assert_equals_processor(name, index)


@pytest.mark.parametrize("sizes", [[(1, 1)], [(57, 83)], [(477, 641)], [(900, 500)], [(57, 83), (300, 140)]])
def test_pixels_equal_the_pil_class(sizes):
    assert_equals_pil("llava_onevision", sizes)


def test_pixel_bounds_of_an_image_are_refused():
    with pytest.raises(InvalidMessage, match="no options"):
        build("llava_onevision").plan_image((40, 40), ImageOptions(max_pixels=5), 1)


def test_items_follow_one_another():
    assert_slices_cover(build("llava_onevision"), [(57, 83), (300, 140)], apart=["batch_num_images"])


def test_no_image_means_no_tensor():
    layout = build("llava_onevision").layout([])
    assert (layout.pixels, dict(layout.constants), layout.slices) == ((), {}, ())


@pytest.mark.parametrize(
    "settings",
    [
        {"size": {"height": 384, "width": 300}},
        {"image_grid_pinpoints": [[384, 400]]},
        {"do_pad": False},
        {"sharpen": 1},
    ],
)
def test_settings_that_cannot_be_reproduced_are_refused(settings):
    with pytest.raises(ConfigRefused):
        build("llava_onevision", **settings)


def test_the_family_is_found_by_architecture_or_model_type():
    assert llava_onevision.match({"model_type": "llava_onevision"})
    assert not llava_onevision.match({"architectures": ["LlavaForConditionalGeneration"]})
