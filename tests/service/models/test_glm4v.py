from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from patchloom_service.errors import InvalidMessage, SizeRefused
from patchloom_service.models import find_family, glm4v
from patchloom_service.models.image_config import ConfigRefused
from patchloom_service.types import ImageOptions
from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize
from transformers.models.glm4v.modeling_glm4v import Glm4vModel
from transformers.models.glm46v.modeling_glm46v import Glm46VModel
from transformers.models.glm_ocr.modeling_glm_ocr import GlmOcrModel

from tests.support.families import (
    assert_equals_pil,
    assert_equals_processor,
    assert_slices_cover,
    build,
    cases,
    checkpoint,
    expanded,
    plans_of,
)

SIZES = [(1, 1), (57, 83), (10, 1500), (477, 641), (300, 140)]


@pytest.mark.parametrize(("name", "index"), cases("glm4v", "glm46v"))
def test_ids_and_tensors_equal_the_processor(name, index):
    assert_equals_processor(name, index)


@pytest.mark.parametrize("name", ["glm4v", "glm46v"])
@pytest.mark.parametrize("size", SIZES)
def test_pixels_equal_the_pil_class(name, size):
    assert_equals_pil(name, [size])


@pytest.mark.parametrize("size", [(1, 202), (2000, 9)])
def test_an_aspect_ratio_over_200_is_refused(size):
    with pytest.raises(SizeRefused, match="at most 200"):
        plans_of(build("glm4v"), [size])


def test_pixel_bounds_of_an_image_win_over_those_of_the_checkpoint():
    spec = build("glm4v")
    assert spec.plan_image((480, 640), ImageOptions(max_pixels=2 * 28 * 28 * 16), 1).resized == (84, 112)
    assert spec.plan_image((28, 28), ImageOptions(min_pixels=2 * 28 * 28 * 16), 1).resized == (112, 112)
    with pytest.raises(InvalidMessage, match="0 < min_pixels <= max_pixels"):
        spec.plan_image((480, 640), ImageOptions(min_pixels=100, max_pixels=99), 1)


@pytest.mark.parametrize("name", ["glm4v", "glm46v"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bounds", [(12544, 50000), (400000, 600000)])
def test_pixels_under_bounds_equal_the_pil_class_with_that_size(name, size, bounds):
    assert_equals_pil(name, [size], bounds)


def test_size_without_bounds_is_refused():
    with pytest.raises(ConfigRefused, match="shortest_edge"):
        build("glm4v", size={"height": 4, "width": 4})


@pytest.mark.parametrize("model", [Glm4vModel, Glm46VModel, GlmOcrModel])
@pytest.mark.parametrize("sizes", [[(300, 140)], [(57, 83), (300, 140), (140, 300)]])
def test_positions_equal_get_rope_index(model, sizes):
    spec = build("glm4v")
    made = expanded("glm4v", spec, plans_of(spec, sizes))
    assert spec.positions is not None
    assert spec.token_types is not None
    positions, deltas = spec.positions(made.ids, made.spans)
    types = torch.from_numpy(spec.token_types(made.ids, made.spans).astype(np.int64))[None]
    grids = torch.tensor([span.plan.grid.shape for span in made.spans])
    fake = SimpleNamespace(config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2)))
    fake.get_vision_position_ids = model.get_vision_position_ids.__get__(fake)
    want, delta = model.get_rope_index(fake, torch.from_numpy(made.ids)[None], types, image_grid_thw=grids)
    np.testing.assert_array_equal(positions, want[:, 0].numpy())
    np.testing.assert_array_equal(deltas, delta.numpy())


def test_items_follow_one_another():
    assert_slices_cover(build("glm4v"), [(57, 83), (300, 140), (140, 300)])


def test_the_line_is_found_by_architecture_or_model_type():
    assert find_family(checkpoint("glm46v")) is glm4v
    assert glm4v.match({"model_type": "glm_ocr"})
    assert not glm4v.match({"architectures": ["Glm4ForCausalLM"]})


@given(
    st.tuples(st.integers(1, 6000), st.integers(1, 6000)),
    st.none() | st.integers(1, 12544),
    st.none() | st.integers(12544, 1 << 27),
)
def test_sizes_are_those_of_transformers(size, low, high):
    spec, options = build("glm4v"), ImageOptions(min_pixels=low, max_pixels=high)
    try:
        want = smart_resize(2, *size, 2, 28, low or 12544, high or 47040000)
    except ValueError:
        with pytest.raises(SizeRefused):
            spec.plan_image(size, options, 1)
        return
    assert spec.plan_image(size, options, 1).resized == want
