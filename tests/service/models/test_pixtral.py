import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchloom_service.errors import InvalidMessage, SizeRefused
from patchloom_service.models import pixtral
from patchloom_service.models.image_config import ConfigRefused
from patchloom_service.types import ImageOptions
from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size

from tests.support.families import (
    assert_equals_pil,
    assert_equals_processor,
    assert_slices_cover,
    build,
    cases,
    expanded,
    plans_of,
)


@pytest.mark.parametrize(("name", "index"), cases("pixtral", "mistral3"))
def test_ids_and_tensors_equal_the_processor(name, index):
    assert_equals_processor(name, index)


@pytest.mark.parametrize("sizes", [[(1, 1)], [(57, 83)], [(477, 641)], [(900, 500)], [(57, 83), (300, 140)]])
def test_pixels_equal_the_pil_class(sizes):
    assert_equals_pil("pixtral", sizes)


def test_pixel_bounds_of_an_image_are_refused():
    with pytest.raises(InvalidMessage, match="no options"):
        build("pixtral").plan_image((40, 40), ImageOptions(max_pixels=5), 1)


def test_items_follow_one_another():
    assert_slices_cover(build("pixtral"), [(57, 83), (300, 140), (140, 300)])


def test_no_image_means_no_tensor():
    layout = build("pixtral").layout([])
    assert (layout.pixels, dict(layout.constants), layout.slices) == ((), {}, ())


@pytest.mark.parametrize(
    "settings",
    [
        {"do_pad": False},
        {"size": {"shortest_edge": 5}},
        {"sharpen": 1},
    ],
)
def test_settings_that_cannot_be_reproduced_are_refused(settings):
    with pytest.raises(ConfigRefused):
        build("pixtral", **settings)


def test_the_family_is_found_by_architecture_or_model_type():
    assert pixtral.match({"model_type": "mistral3", "vision_config": {"model_type": "pixtral"}})
    assert not pixtral.match({"model_type": "llava", "vision_config": {"model_type": "clip_vision_model"}})


@given(
    st.tuples(st.integers(1, 6000), st.integers(1, 6000)),
    st.sampled_from([("pixtral", 1024, 16), ("mistral3", 1540, 28)]),
)
def test_sizes_are_those_of_transformers(size, case):
    name, longest, factor = case
    blank = np.broadcast_to(np.uint8(0), (3, *size))
    want = get_resize_output_image_size(blank, longest, factor, "channels_first")
    if min(want) < 1:
        with pytest.raises(SizeRefused, match="no pixel left"):
            plans_of(build(name), [size])
    else:
        assert plans_of(build(name), [size])[0].resized == want


def test_rows_of_patches_are_ranges_of_their_own():
    spec = build("pixtral")
    plans = plans_of(spec, [(33, 50)])
    (span,) = expanded("pixtral", spec, plans).spans
    assert span.ranges == tuple((span.offset + row * 5, 4) for row in range(3))
    assert (span.length, plans[0].token_count) == (15, 12)
