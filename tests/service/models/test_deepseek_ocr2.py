import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchloom_service.errors import InvalidMessage, SizeRefused
from patchloom_service.models import deepseek_ocr2
from patchloom_service.models.image_config import ConfigRefused
from patchloom_service.types import ImageOptions
from transformers.models.deepseek_ocr2.image_processing_pil_deepseek_ocr2 import get_optimal_tiled_canvas

from tests.support.families import (
    assert_equals_pil,
    assert_equals_processor,
    assert_slices_cover,
    build,
    cases,
    plans_of,
)


@pytest.mark.parametrize(("name", "index"), cases("deepseek_ocr2"))
def test_ids_and_tensors_equal_the_processor(name, index):
    assert_equals_processor(name, index)


@pytest.mark.parametrize("sizes", [[(1, 1)], [(57, 83)], [(477, 641)], [(900, 500)], [(57, 83), (300, 140)]])
def test_pixels_equal_the_pil_class(sizes):
    assert_equals_pil("deepseek_ocr2", sizes)


def test_pixel_bounds_of_an_image_are_refused():
    with pytest.raises(InvalidMessage, match="no options"):
        build("deepseek_ocr2").plan_image((40, 40), ImageOptions(max_pixels=5), 1)


def test_items_follow_one_another():
    assert_slices_cover(build("deepseek_ocr2"), [(57, 83), (300, 140), (140, 300)])


def test_no_image_means_no_tensor():
    layout = build("deepseek_ocr2").layout([])
    assert (layout.pixels, dict(layout.constants), layout.slices) == ((), {}, ())


@pytest.mark.parametrize(
    "settings",
    [
        {"size": {"height": 1024, "width": 300}},
        {"sharpen": 1},
    ],
)
def test_settings_that_cannot_be_reproduced_are_refused(settings):
    with pytest.raises(ConfigRefused):
        build("deepseek_ocr2", **settings)


def test_the_family_is_found_by_architecture_or_model_type():
    assert deepseek_ocr2.match({"model_type": "deepseek_ocr2"})
    assert not deepseek_ocr2.match({"architectures": ["DeepseekOCRForCausalLM"]})


@given(st.tuples(st.integers(10, 6000), st.integers(10, 6000)))
def test_tiles_are_those_of_transformers(size):
    (plan,) = plans_of(build("deepseek_ocr2"), [size])
    across, down = get_optimal_tiled_canvas(size, (768, 768), 2, 6) if max(size) > 768 else (0, 0)
    assert plan.grid.shape == (down, across)
    assert plan.token_count == 256 + 144 * down * across + 1


def test_an_image_that_would_have_no_pixel_left_is_refused():
    with pytest.raises(SizeRefused, match="no pixel left"):
        plans_of(build("deepseek_ocr2"), [(1, 4000)])
