import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchloom_service.errors import InvalidMessage
from patchloom_service.models import minicpmv
from patchloom_service.models.image_config import ConfigRefused
from patchloom_service.types import ImageOptions
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil

from tests.oracles.families import FAMILIES
from tests.support.families import (
    assert_equals_pil,
    assert_equals_processor,
    assert_slices_cover,
    build,
    cases,
    expanded,
    plans_of,
)


@pytest.mark.parametrize(("name", "index"), cases("minicpmv4_6", "minicpmv4_6_4x", "minicpmv4_7"))
def test_ids_and_tensors_equal_the_processor(name, index):
    assert_equals_processor(name, index)


@pytest.mark.parametrize("sizes", [[(1, 1)], [(57, 83)], [(477, 641)], [(900, 500)], [(57, 83), (300, 140)]])
def test_pixels_equal_the_pil_class(sizes):
    assert_equals_pil("minicpmv4_6", sizes)


def test_pixel_bounds_of_an_image_are_refused():
    with pytest.raises(InvalidMessage, match="no options"):
        build("minicpmv4_6").plan_image((40, 40), ImageOptions(max_pixels=5), 1)


def test_items_follow_one_another():
    assert_slices_cover(build("minicpmv4_6"), [(57, 83), (300, 140), (140, 300)])


def test_no_image_means_no_tensor():
    layout = build("minicpmv4_6").layout([])
    assert (layout.pixels, dict(layout.constants), layout.slices) == ((), {}, ())


@pytest.mark.parametrize(
    "settings",
    [
        {"downsample_mode": "2x"},
        {"sharpen": 1},
    ],
)
def test_settings_that_cannot_be_reproduced_are_refused(settings):
    with pytest.raises(ConfigRefused):
        build("minicpmv4_6", **settings)


def test_the_family_is_found_by_architecture_or_model_type():
    assert minicpmv.match({"model_type": "minicpmv4_6"})
    assert not minicpmv.match({"architectures": ["MiniCPMV"]})


@given(
    st.tuples(st.integers(1, 6000), st.integers(1, 6000)), st.sampled_from(["minicpmv4_6", "minicpmv4_6_4x"])
)
def test_slices_are_those_of_transformers(size, name):
    spec, own = build(name), MiniCPMV4_6ImageProcessorPil()
    (plan,) = plans_of(spec, [size])
    mode = spec.settings["downsample_mode"]
    grid = own.get_sliced_grid(size, 9, 448)
    whole = own.find_best_resize(size, 448, 14, mode, allow_upscale=grid is None)
    assert plan.pieces[0].piece.target == whole
    assert plan.grid.shape == tuple(grid or (0, 0))
    if grid:
        assert plan.resized == own.get_refine_size(size, grid, 448, 14, mode, allow_upscale=True)


def test_slices_of_one_image_carry_its_number():
    spec = build("minicpmv4_6")
    plans = plans_of(spec, [(40, 40)] * 11)
    ids = expanded("minicpmv4_6", spec, plans).ids.tolist()
    start = FAMILIES["minicpmv4_6"].added.index("<image_id>") + 300
    numbers = [bytes(ids[at + 1 : ids.index(start + 3, at)]) for at, id in enumerate(ids) if id == start]
    assert numbers == [str(number).encode() for number in range(11)]
