import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchloom_service.errors import InvalidMessage, SizeRefused
from patchloom_service.models import gemma4
from patchloom_service.models.image_config import ConfigRefused
from patchloom_service.types import ImageOptions
from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size

from tests.support.families import (
    assert_equals_pil,
    assert_equals_processor,
    assert_slices_cover,
    build,
    cases,
    plans_of,
)


@pytest.mark.parametrize(("name", "index"), cases("gemma4"))
def test_ids_and_tensors_equal_the_processor(name, index):
    assert_equals_processor(name, index)


@pytest.mark.parametrize("sizes", [[(1, 1)], [(57, 83)], [(477, 641)], [(900, 500)], [(57, 83), (300, 140)]])
def test_pixels_equal_the_pil_class(sizes):
    assert_equals_pil("gemma4", sizes)


def test_pixel_bounds_of_an_image_are_refused():
    with pytest.raises(InvalidMessage, match="no options"):
        build("gemma4").plan_image((40, 40), ImageOptions(max_pixels=5), 1)


def test_items_follow_one_another():
    assert_slices_cover(build("gemma4"), [(57, 83), (300, 140), (140, 300)])


def test_no_image_means_no_tensor():
    layout = build("gemma4").layout([])
    assert (layout.pixels, dict(layout.constants), layout.slices) == ((), {}, ())


@pytest.mark.parametrize(
    "settings",
    [
        {"max_soft_tokens": 100},
        {"sharpen": 1},
    ],
)
def test_settings_that_cannot_be_reproduced_are_refused(settings):
    with pytest.raises(ConfigRefused):
        build("gemma4", **settings)


def test_the_family_is_found_by_architecture_or_model_type():
    assert gemma4.match({"model_type": "gemma4"})
    assert not gemma4.match({"architectures": ["Gemma4ForCausalLM"]})


@given(st.tuples(st.integers(1, 6000), st.integers(1, 6000)), st.sampled_from([70, 280, 1120]))
def test_sizes_are_those_of_transformers(size, tokens):
    spec = build("gemma4", max_soft_tokens=tokens)
    try:
        want = get_aspect_ratio_preserving_size(*size, 16, tokens * 9, 3)
    except ValueError:
        with pytest.raises(SizeRefused):
            plans_of(spec, [size])
        return
    assert plans_of(spec, [size])[0].resized == want
