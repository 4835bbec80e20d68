from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchloom_service.errors import InvalidMessage, SizeRefused
from patchloom_service.models import step3p7
from patchloom_service.models.image_config import ConfigRefused
from patchloom_service.types import ImageOptions
from transformers.models.step3p7.image_processing_step3p7 import Step3p7ImageProcessor

from tests.support.families import (
    assert_equals_processor,
    assert_slices_cover,
    build,
    cases,
    plans_of,
)


@pytest.mark.parametrize(("name", "index"), cases("step3p7"))
def test_ids_and_tensors_equal_the_processor(name, index):
    assert_equals_processor(name, index)


def test_pixel_bounds_of_an_image_are_refused():
    with pytest.raises(InvalidMessage, match="no options"):
        build("step3p7").plan_image((40, 40), ImageOptions(max_pixels=5), 1)


def test_items_follow_one_another():
    assert_slices_cover(build("step3p7"), [(57, 83), (300, 140), (140, 300)])


def test_no_image_means_no_tensor():
    layout = build("step3p7").layout([])
    assert (layout.pixels, dict(layout.constants), layout.slices) == ((), {}, ())


@pytest.mark.parametrize(
    "settings",
    [
        {"size": {"height": 728, "width": 300}},
        {"sharpen": 1},
    ],
)
def test_settings_that_cannot_be_reproduced_are_refused(settings):
    with pytest.raises(ConfigRefused):
        build("step3p7", **settings)


def test_the_family_is_found_by_architecture_or_model_type():
    assert step3p7.match({"model_type": "step3p7"})
    assert not step3p7.match({"architectures": ["Step3VLForConditionalGeneration"]})


@given(st.tuples(st.integers(1, 6000), st.integers(1, 6000)))
def test_windows_are_those_of_transformers(size):
    own = SimpleNamespace(max_image_size=3024, _is_extreme_aspect=Step3p7ImageProcessor._is_extreme_aspect)
    kept, cut, side, across, down, _ = Step3p7ImageProcessor._plan_patches(own, size[1], size[0], 728, 504)
    (plan,) = plans_of(build("step3p7"), [size])
    assert plan.grid.shape == (down, across)
    assert plan.token_count == 169 + 81 * down * across
    assert plan.pieces[0].piece.source == kept[::-1]
    if side:
        assert plan.resized == cut[::-1]


@pytest.mark.parametrize(
    ("size", "message"), [((5, 20000), "padded to a square"), ((33, 200000), "no pixel")]
)
def test_sizes_that_cannot_be_made_are_refused(size, message):
    with pytest.raises(SizeRefused, match=message):
        plans_of(build("step3p7"), [size])
