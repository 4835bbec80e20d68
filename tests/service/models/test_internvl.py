import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patchloom_kernels import reference
from patchloom_kernels.layout import Parity
from patchloom_kernels.normalize import Dtype
from patchloom_service.errors import InvalidMessage
from patchloom_service.models import internvl
from patchloom_service.models.base import ModelSpec, RunToken
from patchloom_service.models.image_config import ConfigRefused
from patchloom_service.types import ImageOptions
from PIL import Image
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import (
    GotOcr2ImageProcessorPil,
    get_optimal_tiled_canvas,
)

from tests.support.checkpoints import read_built

IMG, IMG_END, CONTEXT = 151665, 151666, 151667


def spec(family: str, directory, config=None, **image_processor) -> ModelSpec:
    return internvl.build(read_built(family, directory, config=config, image_processor=image_processor))


@pytest.fixture(scope="module")
def hf(tmp_path_factory) -> ModelSpec:
    return spec("internvl3", tmp_path_factory.mktemp("hf"))


@pytest.fixture(scope="module")
def chat(tmp_path_factory) -> ModelSpec:
    return spec("internvl_chat", tmp_path_factory.mktemp("chat"))


def plan(model: ModelSpec, height: int, width: int):
    return model.plan_image((height, width), ImageOptions(), 1)


@settings(max_examples=500)
@given(
    st.tuples(st.integers(1, 5000), st.integers(1, 5000)),
    st.sampled_from([(448, 448), (384, 384), (300, 448)]),
    st.sampled_from([(1, 12), (1, 6), (2, 6), (1, 1), (1, 24)]),
)
def test_the_grid_is_that_of_transformers(size, tile, tiles):
    across, down = get_optimal_tiled_canvas(size, tile, *tiles)
    assert internvl.tile_grid(size, tile, *tiles) == (down, across)


def test_the_grids_of_round_ratios_are_those_of_transformers():
    sides = [1, 100, 224, 317, 448, 449, 633, 634, 896, 1344, 1792, 2688, 5376]
    for size in [(a, b) for a in sides for b in sides]:
        across, down = get_optimal_tiled_canvas(size, (448, 448), 1, 12)
        assert internvl.tile_grid(size, (448, 448), 1, 12) == (down, across)


@pytest.mark.parametrize(
    ("size", "grid", "tokens"),
    [
        ((480, 640), (3, 4), 13 * 256),
        ((1080, 1920), (2, 4), 9 * 256),
        ((448, 448), (1, 1), 256),
        ((64, 5000), (1, 12), 13 * 256),
    ],
)
def test_every_tile_and_the_thumbnail_have_256_tokens(hf, chat, size, grid, tokens):
    for model in (hf, chat):
        made = plan(model, *size)
        assert (made.grid.shape, made.token_count) == (grid, tokens)


def test_the_run_of_the_processor_form_brings_its_frame(hf):
    assert plan(hf, 448, 448).run == (
        RunToken(IMG, placeholder=False),
        RunToken(CONTEXT, 256),
        RunToken(IMG_END, placeholder=False),
    )


def test_the_run_of_the_chat_form_stands_in_the_frame_of_the_prompt(chat):
    assert plan(chat, 448, 448).run == (RunToken(CONTEXT, 256),)


def computed(model: ModelSpec, images, parity: Parity) -> np.ndarray:
    (tensor,) = model.layout([plan(model, *image.shape[:2]) for image in images]).pixels
    out = np.full(np.prod(tensor.shape), np.nan, np.float32)
    reference.resize_patchify(images, tensor.jobs, model.table(parity), out, Dtype.FLOAT32, parity)
    return out.reshape(tensor.shape)


def test_pixels_equal_those_of_transformers(tmp_path):
    model = spec("internvl3", tmp_path, size={"height": 56, "width": 56})
    rng = np.random.default_rng(3)
    images = [rng.integers(0, 256, (*size, 3), np.uint8) for size in [(60, 150), (56, 56), (170, 50)]]
    processor = GotOcr2ImageProcessorPil.from_pretrained(tmp_path, crop_to_patches=True)
    want = processor([Image.fromarray(image) for image in images], return_tensors="np")
    np.testing.assert_array_equal(computed(model, images, Parity.PILLOW13), want["pixel_values"])
    layout = model.layout([plan(model, *image.shape[:2]) for image in images])
    assert [own[0].count for own in layout.slices] == want["num_patches"].tolist()


def test_both_forms_have_the_same_pixels(hf, chat):
    image = np.random.default_rng(4).integers(0, 256, (90, 50, 3), np.uint8)
    np.testing.assert_array_equal(
        computed(hf, [image], Parity.ATEN_U8), computed(chat, [image], Parity.ATEN_U8)
    )


def test_the_chat_form_reads_its_tiling_from_the_config(tmp_path):
    model = spec(
        "internvl_chat",
        tmp_path,
        {"max_dynamic_patch": 6, "use_thumbnail": False, "force_image_size": 224},
    )
    made = plan(model, 480, 640)
    assert (made.grid.shape, made.token_count) == ((2, 3), 6 * 64)
    assert plan(model, 200, 400).token_count == 2 * 64


def test_the_chat_form_without_dynamic_size_is_one_tile(tmp_path):
    model = spec("internvl_chat", tmp_path, {"dynamic_image_size": False})
    assert plan(model, 480, 640).token_count == 256


def test_tokens_a_tile_come_from_the_processor_config(tmp_path):
    checkpoint = read_built("internvl3", tmp_path)
    checkpoint.processor["image_seq_length"] = 64
    assert plan(internvl.build(checkpoint), 448, 448).token_count == 64


@pytest.mark.parametrize("options", [ImageOptions(min_pixels=1), ImageOptions(max_pixels=1)])
def test_pixel_bounds_are_refused(hf, options):
    with pytest.raises(InvalidMessage, match="no options of InternVL"):
        hf.plan_image((40, 40), options, 1)


def test_both_forms_are_found_by_architecture_or_model_type():
    assert internvl.match({"architectures": ["InternVLForConditionalGeneration"]})
    assert internvl.match({"architectures": ["InternVLChatModel"]})
    assert internvl.match({"model_type": "internvl_chat"})
    assert not internvl.match({"architectures": ["InternVideo"], "model_type": "internvl"})
    assert not internvl.match({})


@pytest.mark.parametrize(
    ("family", "config", "processor"),
    [
        ("internvl3", {"image_token_id": 5}, {}),
        ("internvl3", {}, {"max_patches": 0}),
        ("internvl3", {}, {"size": {"shortest_edge": 448}}),
        ("internvl3", {}, {"sharpen": True}),
        ("internvl_chat", {"min_dynamic_patch": 13}, {}),
        ("internvl_chat", {"force_image_size": 7}, {}),
    ],
)
def test_settings_that_cannot_be_reproduced_are_refused(tmp_path, family, config, processor):
    with pytest.raises(ConfigRefused):
        spec(family, tmp_path, config, **processor)
