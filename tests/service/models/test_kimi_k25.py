import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchloom_service.errors import InvalidMessage
from patchloom_service.models import kimi_k25
from patchloom_service.models.image_config import ConfigRefused
from patchloom_service.types import ImageOptions

from tests.support.families import (
    assert_equals_processor,
    assert_slices_cover,
    build,
    cases,
    plans_of,
    recorded_rule,
)


@pytest.mark.parametrize(("name", "index"), cases("kimi_k25"))
def test_ids_and_tensors_equal_the_processor(name, index):
    assert_equals_processor(name, index)


@given(st.integers(1, 20000), st.integers(1, 20000))
def test_budgets_are_kept_and_nothing_is_enlarged(height, width):
    (plan,) = plans_of(build("kimi_k25"), [(height, width)])
    resized, canvas = plan.resized, plan.pieces[0].piece.canvas
    assert resized is not None
    assert resized[0] <= min(height, 7168)
    assert resized[1] <= min(width, 7168)
    assert all(0 <= side - own < 28 for side, own in zip(canvas, resized, strict=True))


def test_a_size_without_equal_sides_is_refused():
    with pytest.raises(ConfigRefused, match="max_height"):
        build("kimi_k25", size={"max_height": 512, "max_width": 256})


def test_pixel_bounds_of_an_image_are_refused():
    with pytest.raises(InvalidMessage):
        build("kimi_k25").plan_image((40, 40), ImageOptions(min_pixels=5), 1)


def test_items_follow_one_another():
    assert_slices_cover(build("kimi_k25"), [(57, 83), (300, 140), (140, 300)])


def test_the_family_is_found_by_architecture_or_model_type():
    assert kimi_k25.match({"model_type": "kimi_k25"})
    assert not kimi_k25.match({"architectures": ["KimiVLForConditionalGeneration"]})


def test_content_and_canvas_are_those_of_transformers():
    spec = build("kimi_k25")
    for height, width, *want in recorded_rule("kimi_k25"):
        (plan,) = plans_of(spec, [(height, width)])
        assert [*plan.resized, *plan.pieces[0].piece.canvas] == want, (height, width)
