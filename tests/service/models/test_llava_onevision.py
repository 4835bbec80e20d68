from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchloom_service.errors import InvalidMessage, SizeRefused
from patchloom_service.models import llava_onevision
from patchloom_service.models.image_config import ConfigRefused
from patchloom_service.types import ImageOptions
from transformers.image_processing_utils import get_patch_output_size, select_best_resolution
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor

from tests.support.families import (
    assert_equals_pil,
    assert_equals_processor,
    assert_slices_cover,
    build,
    cases,
    plans_of,
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


PINPOINTS = [[384 * a, 384 * b] for a in range(1, 7) for b in range(1, 7)]


@given(st.tuples(st.integers(1, 6000), st.integers(1, 6000)))
def test_tiles_and_counts_are_those_of_transformers(size):
    (plan,) = plans_of(build("llava_onevision"), [size])
    canvas = select_best_resolution(size, PINPOINTS)
    blank = np.broadcast_to(np.uint8(0), (3, *size))
    assert plan.pieces[1].piece.canvas == canvas
    assert plan.resized == get_patch_output_size(blank, canvas, "channels_first")
    own = SimpleNamespace(num_image_tokens=729, vision_aspect_ratio="anyres_max_9")
    own.image_processor = SimpleNamespace(image_grid_pinpoints=PINPOINTS)
    own._get_unpadded_features = LlavaOnevisionProcessor._get_unpadded_features.__get__(own)
    assert plan.token_count == LlavaOnevisionProcessor._get_number_of_features(own, *size, 384, 384)


def test_one_of_several_images_is_one_square():
    plans = plans_of(build("llava_onevision"), [(57, 83), (384, 384)])
    assert [plan.token_count for plan in plans] == [730, 730]
    assert [len(plan.pieces[0].piece.via) for plan in plans] == [1, 0]


def test_a_square_too_large_for_memory_is_refused():
    with pytest.raises(SizeRefused, match="padded to a square"):
        plans_of(build("llava_onevision"), [(4, 20000), (4, 4)])
