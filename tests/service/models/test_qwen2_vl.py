from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from patchloom_kernels.cpu.resize import resize_patchify
from patchloom_kernels.layout import Parity
from patchloom_kernels.normalize import Dtype
from patchloom_service.errors import InvalidMessage, SizeRefused
from patchloom_service.models import qwen2_vl
from patchloom_service.models.image_config import ConfigRefused
from patchloom_service.types import ImageOptions
from PIL import Image
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5Model
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoePreTrainedModelForConditionalGeneration,
)
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

from tests.oracles.families import FAMILIES, image, token_id
from tests.support.families import (
    assert_equals_pil,
    assert_equals_processor,
    assert_slices_cover,
    build,
    cases,
    checkpoint,
    expanded,
    plans_of,
    tensors_of,
)

LINE = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_omni_moe")
SIZES = [(1, 1), (57, 83), (4, 700), (448, 448), (477, 641), (300, 140)]


@pytest.mark.parametrize(("name", "index"), cases(*LINE))
def test_ids_and_tensors_equal_the_processor(name, index):
    assert_equals_processor(name, index)


@pytest.mark.parametrize("name", LINE[1:3])
@pytest.mark.parametrize("size", SIZES)
def test_pixels_equal_the_pil_class(name, size):
    assert_equals_pil(name, [size])


@pytest.mark.parametrize(
    ("dtype", "kind"), [(Dtype.BFLOAT16, torch.bfloat16), (Dtype.FLOAT16, torch.float16)]
)
def test_half_types_are_the_float32_values_rounded(dtype, kind):
    spec = build("qwen2_vl")
    full = tensors_of(spec, [(57, 83)], Parity.PILLOW13, Dtype.FLOAT32)["pixel_values"]
    half = tensors_of(spec, [(57, 83)], Parity.PILLOW13, dtype)["pixel_values"]
    rounded = torch.from_numpy(full).to(kind).view(torch.int16).numpy()
    np.testing.assert_array_equal(half.view(np.int16), rounded)


def test_resizing_and_laying_out_in_one_step_gives_the_same():
    spec, size = build("qwen2_vl"), (477, 641)
    (tensor,) = spec.layout(plans_of(spec, [size])).pixels
    out = np.full(np.prod(tensor.shape), np.nan, np.float32)
    table = spec.table(Parity.ATEN_U8)
    resize_patchify([image(size)], tensor.jobs, table, out, Dtype.FLOAT32, Parity.ATEN_U8)
    want = tensors_of(spec, [size], Parity.ATEN_U8, Dtype.FLOAT32)["pixel_values"]
    np.testing.assert_array_equal(out.reshape(tensor.shape), want)


@pytest.mark.parametrize(
    ("name", "size", "resized", "tokens"),
    [
        ("qwen2_vl", (27, 332), (28, 336), 12),
        ("qwen2_vl", (19, 500), (28, 504), 18),
        ("qwen2_vl", (27, 257), (28, 252), 9),
        ("qwen2_vl", (26, 28), (56, 84), 6),
        ("qwen3_vl", (30, 305), (96, 832), 78),
        ("qwen2_vl", (1, 1), (56, 56), 4),
        ("qwen2_vl", (1, 200), (28, 812), 29),
        ("qwen2_vl", (484, 1024), (476, 1036), 629),
    ],
)
def test_sizes_of_public_fault_reports(name, size, resized, tokens):
    (plan,) = plans_of(build(name), [size])
    assert (plan.resized, plan.token_count) == (resized, tokens)


def test_a_single_pixel_becomes_one_colour():
    pixels = tensors_of(build("qwen2_vl"), [(1, 1)], Parity.ATEN_U8, Dtype.FLOAT32)["pixel_values"]
    assert all(len(np.unique(channel)) == 1 for channel in pixels.reshape(16, 3, -1).swapaxes(0, 1))


@pytest.mark.parametrize("size", [(1, 201), (201, 1), (10, 2001)])
def test_an_aspect_ratio_over_200_is_refused(size):
    with pytest.raises(SizeRefused, match=r"aspect ratio .* at most 200"):
        plans_of(build("qwen2_vl"), [size])


def test_pixel_bounds_of_an_image_win_over_those_of_the_checkpoint():
    spec = build("qwen2_vl")
    plan = spec.plan_image((480, 640), ImageOptions(max_pixels=28 * 28 * 16), 1)
    assert plan.resized == (84, 112)
    with pytest.raises(InvalidMessage):
        spec.plan_image((480, 640), ImageOptions(min_pixels=100, max_pixels=99), 1)


def test_the_checkpoint_may_give_its_bounds_as_min_and_max_pixels():
    spec = build("qwen2_vl", size=None, min_pixels=28 * 28 * 4, max_pixels=28 * 28 * 16)
    assert plans_of(spec, [(480, 640)])[0].resized == (84, 112)
    assert plans_of(spec, [(1, 1)])[0].resized == (56, 56)


@pytest.mark.parametrize(
    "settings",
    [
        {"do_resize": False},
        {"resample": 0},
        {"crop_size": {"height": 2, "width": 2}, "do_center_crop": True},
        {"blur": 3},
        {"size": {"shortest_edge": 10, "longest_edge": 5}},
    ],
)
def test_settings_that_cannot_be_reproduced_are_refused(settings):
    with pytest.raises(ConfigRefused):
        build("qwen2_vl", **settings)


@pytest.mark.parametrize(
    "settings", [{"do_rescale": False}, {"do_normalize": False}, {"rescale_factor": 1 / 127.5}]
)
def test_settings_that_change_values_are_honoured(settings):
    made = tensors_of(build("qwen2_vl", **settings), [(57, 83)], Parity.PILLOW13, Dtype.FLOAT32)
    family = {k: v for k, v in FAMILIES["qwen2_vl"].image.items() if k != "image_processor_type"}
    want = Qwen2VLImageProcessorPil(**{**family, **settings})(Image.fromarray(image((57, 83))))
    np.testing.assert_array_equal(made["pixel_values"], np.asarray(want["pixel_values"], np.float32))


@pytest.mark.parametrize("model", [Qwen2VLModel, Qwen2_5_VLModel, Qwen3VLModel, Qwen3_5Model])
@pytest.mark.parametrize("sizes", [[], [(300, 140)], [(57, 83), (300, 140), (140, 300)]])
def test_positions_equal_get_rope_index(model, sizes):
    spec = build("qwen2_vl")
    made = expanded("qwen2_vl", spec, plans_of(spec, sizes))
    assert spec.positions is not None
    assert spec.token_types is not None
    positions, deltas = spec.positions(made.ids, made.spans)
    types = torch.from_numpy(spec.token_types(made.ids, made.spans).astype(np.int64))[None]
    grids = torch.tensor([span.plan.grid.shape for span in made.spans]) if sizes else None
    vision = SimpleNamespace(spatial_merge_size=2, tokens_per_second=2)
    fake = SimpleNamespace(config=SimpleNamespace(vision_config=vision))
    fake.get_vision_position_ids = model.get_vision_position_ids.__get__(fake)
    want, delta = model.get_rope_index(fake, torch.from_numpy(made.ids)[None], types, image_grid_thw=grids)
    np.testing.assert_array_equal(positions, want[:, 0].numpy())
    np.testing.assert_array_equal(deltas, delta.numpy())


def test_positions_equal_get_rope_index_of_the_omni_model():
    sizes = [(57, 83), (300, 140), (140, 300)]
    spec = build("qwen3_omni_moe")
    made = expanded("qwen3_omni_moe", spec, plans_of(spec, sizes))
    assert spec.positions is not None
    positions, deltas = spec.positions(made.ids, made.spans)
    omni = FAMILIES["qwen3_omni_moe"]
    tokens = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "audio_token_id": "<|audio_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "audio_start_token_id": "<|audio_start|>",
    }
    ids = {key: token_id(omni, spelling) for key, spelling in tokens.items()}
    fake = SimpleNamespace(spatial_merge_size=2, config=SimpleNamespace(position_id_per_seconds=25, **ids))
    model = Qwen3OmniMoePreTrainedModelForConditionalGeneration
    fake.get_llm_pos_ids_for_vision = model.get_llm_pos_ids_for_vision.__get__(fake)
    grids = torch.tensor([span.plan.grid.shape for span in made.spans])
    prompt = torch.from_numpy(made.ids)[None]
    mask = torch.ones_like(prompt)
    want, delta = model.get_rope_index(fake, prompt, image_grid_thw=grids, attention_mask=mask)
    np.testing.assert_array_equal(positions, want[:, 0].numpy())
    np.testing.assert_array_equal(deltas, delta.numpy())


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen3_vl"])
def test_items_follow_one_another(name):
    assert_slices_cover(build(name), [(57, 83), (300, 140), (140, 300)])


def test_no_image_means_no_tensor():
    layout = build("qwen2_vl").layout([])
    assert (layout.pixels, dict(layout.constants), layout.slices) == ((), {}, ())


def test_rows_without_temporal_copies_are_shorter():
    spec = build("qwen2_vl")
    (plan,) = plans_of(spec, [(57, 83)])
    single = replace(plan.pieces[0].piece, layout=replace(plan.pieces[0].piece.layout, temporal=1))
    short = replace(plan, pieces=(replace(plan.pieces[0], piece=single),))
    assert spec.layout([short]).pixels[0].shape == (24, 588)


@given(
    st.tuples(st.integers(1, 6000), st.integers(1, 6000)),
    st.sampled_from([("qwen2_vl", 28, 3136, 12845056), ("qwen3_vl", 32, 65536, 16777216)]),
)
def test_sizes_are_those_of_transformers(size, case):
    name, *rule = case
    try:
        want = smart_resize(*size, *rule)
    except ValueError:
        with pytest.raises(SizeRefused):
            plans_of(build(name), [size])
        return
    assert plans_of(build(name), [size])[0].resized == want


def test_intern_s1_pro_is_taken_where_it_names_the_image_processor():
    made = replace(checkpoint("qwen3_vl"), config={"architectures": ["InternS1ProForConditionalGeneration"]})
    spec = qwen2_vl.build(made)
    assert spec.family == "intern_s1_pro"
    assert plans_of(spec, [(480, 640)]) == plans_of(build("qwen3_vl"), [(480, 640)])
    with pytest.raises(ConfigRefused, match="image_processor_type=Other"):
        qwen2_vl.build(
            replace(made, image_processor={**FAMILIES["qwen3_vl"].image, "image_processor_type": "Other"})
        )
