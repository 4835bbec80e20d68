import pytest
from patchloom_service.errors import InvalidMessage
from patchloom_service.models import llama4
from patchloom_service.models.image_config import ConfigRefused
from patchloom_service.types import ImageOptions

from tests.support.families import (
    assert_equals_processor,
    assert_slices_cover,
    build,
    cases,
    expanded,
    plans_of,
    recorded_rule,
)


@pytest.mark.parametrize(("name", "index"), cases("llama4"))
def test_ids_and_tensors_equal_the_processor(name, index):
    assert_equals_processor(name, index)


def test_pixel_bounds_of_an_image_are_refused():
    with pytest.raises(InvalidMessage, match="no options"):
        build("llama4").plan_image((40, 40), ImageOptions(max_pixels=5), 1)


def test_items_follow_one_another():
    assert_slices_cover(build("llama4"), [(57, 83), (300, 140), (140, 300)])


def test_no_image_means_no_tensor():
    layout = build("llama4").layout([])
    assert (layout.pixels, dict(layout.constants), layout.slices) == ((), {}, ())


@pytest.mark.parametrize(
    "settings",
    [
        {"size": {"height": 336, "width": 300}},
        {"do_normalize": False},
        {"sharpen": 1},
    ],
)
def test_settings_that_cannot_be_reproduced_are_refused(settings):
    with pytest.raises(ConfigRefused):
        build("llama4", **settings)


def test_the_family_is_found_by_architecture_or_model_type():
    assert llama4.match({"model_type": "llama4"})
    assert not llama4.match({"architectures": ["Llama4ForCausalLM"]})


def test_canvas_and_content_are_those_of_transformers():
    spec = build("llama4")
    for height, width, *want in recorded_rule("llama4"):
        (plan,) = plans_of(spec, [(height, width)])
        assert [*plan.pieces[0].piece.canvas, *plan.resized] == want, (height, width)


def test_patches_of_a_tile_are_a_range_and_separators_are_not():
    spec = build("llama4")
    (plan,) = plans_of(spec, [(500, 300)])
    (span,) = expanded("llama4", spec, [plan]).spans
    assert (plan.grid.shape, plan.token_count) == ((2, 1), 432)
    assert [length for _, length in span.ranges] == [144, 144, 144]
    assert [offset - span.offset for offset, _ in span.ranges] == [1, 146, 292]
