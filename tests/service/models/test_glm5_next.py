import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchloom_service.errors import InvalidMessage
from patchloom_service.models import glm5_next
from patchloom_service.models.image_config import ConfigRefused
from patchloom_service.types import ImageOptions
from transformers.models.glm5_next.image_processing_pil_glm5_next import smart_resize

from tests.support.families import (
    assert_equals_pil,
    assert_equals_processor,
    assert_slices_cover,
    build,
    cases,
    plans_of,
)


@pytest.mark.parametrize(("name", "index"), cases("glm5_next"))
def test_ids_and_tensors_equal_the_processor(name, index):
    assert_equals_processor(name, index)


@pytest.mark.parametrize("size", [(1, 1), (57, 83), (10, 1500), (477, 641), (300, 140)])
def test_pixels_equal_the_pil_class(size):
    assert_equals_pil("glm5_next", [size])


@given(st.tuples(st.integers(1, 9000), st.integers(1, 9000)), st.sampled_from([(16, 8000), (1, 1), (4, 60)]))
def test_the_canvas_is_that_of_transformers(size, tokens):
    spec = build("glm5_next", min_image_tokens=tokens[0], max_image_tokens=tokens[1])
    (plan,) = plans_of(spec, [size])
    canvas = smart_resize(2, *size, 2, 28, *tokens)
    assert plan.grid.shape == (1, canvas[0] // 14, canvas[1] // 14)
    assert plan.token_count <= tokens[1]


def test_an_image_above_the_least_budget_is_not_enlarged():
    (plan,) = plans_of(build("glm5_next"), [(480, 640)])
    assert (plan.resized, plan.pieces[0].piece.canvas) == ((480, 640), (504, 644))


@pytest.mark.parametrize("settings", [{"min_image_tokens": 0}, {"max_image_tokens": 3}, {"sharpen": 1}])
def test_settings_that_cannot_be_reproduced_are_refused(settings):
    with pytest.raises(ConfigRefused):
        build("glm5_next", **settings)


def test_pixel_bounds_of_an_image_are_refused():
    with pytest.raises(InvalidMessage):
        build("glm5_next").plan_image((40, 40), ImageOptions(min_pixels=5), 1)


def test_items_follow_one_another():
    assert_slices_cover(build("glm5_next"), [(57, 83), (300, 140), (140, 300)])


def test_the_family_is_found_by_architecture_or_model_type():
    assert glm5_next.match({"architectures": ["Glm5NextForConditionalGeneration"]})
    assert glm5_next.match({"model_type": "glm5_next"})
    assert not glm5_next.match({"architectures": ["Glm4vForConditionalGeneration"]})
