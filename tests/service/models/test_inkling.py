import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchloom_kernels import reference
from patchloom_kernels.layout import PAD_ENTRY, Parity
from patchloom_kernels.normalize import Dtype
from patchloom_service.chat.expand import expand
from patchloom_service.chat.inkling import InklingRenderer
from patchloom_service.chat.normalize import harvest, normalize
from patchloom_service.errors import InvalidAudio, InvalidMessage
from patchloom_service.models import inkling
from patchloom_service.models.base import AudioInfo, GridKind, ModelSpec, RunToken
from patchloom_service.models.image_config import ConfigRefused
from patchloom_service.types import (
    AudioPart,
    Conversation,
    ImageOptions,
    ImagePart,
    MediaSource,
    Message,
    Modality,
    Role,
    SourceKind,
    TextPart,
    ToolCall,
)
from PIL import Image

from tests.support.checkpoints import read_built, tokenizer

IMAGE, AUDIO = 200054, 200053
MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)


def spec(directory, config=None, **image_processor) -> ModelSpec:
    checkpoint = read_built("inkling", directory, config=config, image_processor=image_processor)
    return inkling.build(checkpoint)


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> ModelSpec:
    return spec(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def doubling(tmp_path_factory) -> ModelSpec:
    return spec(tmp_path_factory.mktemp("doubling"), rescale_image_frac=2.0)


def plan(model: ModelSpec, height: int, width: int):
    return model.plan_image((height, width), ImageOptions(), 1)


@pytest.mark.parametrize(
    ("source", "resized", "grid", "tokens"),
    [
        ((40, 40), (80, 80), (2, 3), 6),
        ((64, 64), (128, 128), (4, 4), 16),
        ((80, 80), (160, 160), (4, 5), 20),
        ((480, 640), (960, 1280), (24, 33), 792),
        ((1024, 1024), (2048, 2048), (52, 52), 2704),
        ((720, 1280), (1152, 2048), (29, 52), 1508),
        ((1080, 1920), (1152, 2048), (29, 52), 1508),
        ((2000, 3000), (2000, 3000), (50, 76), 3800),
        ((2160, 3840), (2160, 3840), (54, 97), 5238),
    ],
)
def test_doubling_gives_the_published_sizes(doubling, source, resized, grid, tokens):
    made = plan(doubling, *source)
    assert (made.resized, made.grid.shape, made.token_count) == (resized, (1, *grid), tokens)


@pytest.mark.parametrize(
    ("source", "tokens"), [((480, 640), 204), ((1080, 1920), 1323), ((3000, 4000), 7575), ((1, 1), 1)]
)
def test_without_a_fraction_nothing_is_resized(plain, source, tokens):
    made = plan(plain, *source)
    assert (made.resized, made.token_count) == (source, tokens)


def test_a_width_of_whole_patches_gets_one_more_column_of_padding(plain):
    made = plan(plain, 40, 80)
    assert made.grid.shape == (1, 1, 3)
    assert made.pieces[0].piece.canvas == (40, 120)


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_the_grid_covers_the_resized_image(doubling, height, width):
    made = plan(doubling, height, width)
    _, down, across = made.grid.shape
    assert (down - 1) * 40 < made.resized[0] <= down * 40
    assert (across - 1) * 40 <= made.resized[1] < across * 40
    assert max(made.resized) <= max(2048, height, width)


def test_without_a_cap_growth_is_not_limited(tmp_path):
    model = spec(tmp_path, rescale_image_frac=2.0, rescale_image_max_upscaled_long_edge=None)
    assert plan(model, 2000, 3000).resized == (4000, 6000)


def test_a_run_is_one_placeholder_per_patch(plain):
    assert plan(plain, 40, 40).run == (RunToken(IMAGE, 2),)


@pytest.mark.parametrize("options", [ImageOptions(min_pixels=1), ImageOptions(max_pixels=1)])
def test_pixel_bounds_are_refused(plain, options):
    with pytest.raises(InvalidMessage, match="no options of Inkling"):
        plain.plan_image((40, 40), options, 1)


@pytest.mark.parametrize(
    ("frames", "rate", "tokens"),
    [
        *((1, 16000, 1), (800, 16000, 1), (801, 16000, 2), (16000, 16000, 20)),
        *((48000, 48000, 20), (44100, 44100, 20), (44101, 44100, 21), (8000, 8000, 20)),
        *((400, 8000, 1), (401, 8000, 2)),
    ],
)
def test_audio_has_a_placeholder_for_every_800_samples_at_16_khz(plain, frames, rate, tokens):
    made = plain.plan_audio(AudioInfo(frames, rate))
    assert made.run == (RunToken(AUDIO, tokens),)
    assert (made.modality, made.grid.kind, made.grid.shape) == (
        Modality.AUDIO,
        GridKind.FRAMES,
        (tokens,),
    )


def test_audio_without_samples_is_refused(plain):
    with pytest.raises(InvalidAudio):
        plain.plan_audio(AudioInfo(0, 16000))


def test_images_follow_one_another_and_audio_has_no_slice(plain):
    plans = [plan(plain, 40, 40), plain.plan_audio(AudioInfo(800, 16000)), plan(plain, 80, 40)]
    layout = plain.layout(plans)
    (tensor,) = layout.pixels
    assert (tensor.name, tensor.shape) == ("pixel_values", (6, 2, 40, 40, 3))
    assert [job.source for job in tensor.jobs] == [0, 2]
    assert [[(s.start, s.count) for s in own] for own in layout.slices] == [[(0, 2)], [], [(2, 4)]]


def test_audio_alone_has_no_tensor(plain):
    layout = plain.layout([plain.plan_audio(AudioInfo(800, 16000))])
    assert (layout.pixels, dict(layout.constants), layout.slices) == ((), {}, ((),))


def padded(image: np.ndarray) -> np.ndarray:
    """[H, W, 3] levels on their canvas as float32, -1 around, cut to [patches, 2, 40, 40, 3]."""
    height, width = image.shape[:2]
    down, across = -(-height // 40), width // 40 + 1
    canvas = np.full((down * 40, across * 40, 3), -1.0, np.float32)
    canvas[:height, :width] = image
    patches = canvas.reshape(down, 40, across, 40, 3).swapaxes(1, 2).reshape(-1, 1, 40, 40, 3)
    return np.repeat(patches, 2, axis=1)


def computed(model: ModelSpec, image: np.ndarray, parity: Parity) -> np.ndarray:
    (tensor,) = model.layout([plan(model, *image.shape[:2])]).pixels
    out = np.full(np.prod(tensor.shape), np.nan, np.float32)
    reference.resize_patchify([image], tensor.jobs, model.table(parity), out, Dtype.FLOAT32, parity)
    return out.reshape(tensor.shape)


@pytest.mark.parametrize("size", [(40, 40), (57, 83), (1, 1), (80, 39)])
def test_pixels_equal_the_torchvision_formula(plain, size):
    image = np.random.default_rng(7).integers(0, 256, (*size, 3), np.uint8)
    scale = np.float32(1 / (1 / 255))
    want = (padded(image) - MEAN * scale) / (STD * scale)
    np.testing.assert_array_equal(computed(plain, image, Parity.ATEN_U8), want)


@pytest.mark.parametrize("size", [(30, 45), (20, 40)])
def test_rescaled_pixels_equal_pillow_and_the_pil_formula(doubling, size):
    image = np.random.default_rng(8).integers(0, 256, (*size, 3), np.uint8)
    larger = Image.fromarray(image).resize((size[1] * 2, size[0] * 2), Image.Resampling.LANCZOS)
    scaled = (padded(np.asarray(larger)).astype(np.float64) * (1 / 255)).astype(np.float32)
    np.testing.assert_array_equal(computed(doubling, image, Parity.PILLOW13), (scaled - MEAN) / STD)


def test_padding_is_a_level_below_black(plain):
    for parity in Parity:
        values = plain.table(parity).values
        exact = (-1 / 255 - MEAN.astype(np.float64)) / STD.astype(np.float64)
        np.testing.assert_allclose(values[:, PAD_ENTRY], exact, rtol=1e-6)
        assert (values[:, PAD_ENTRY] < values[:, 0]).all()


def test_settings_tell_the_rescaling(plain, doubling):
    assert plain.settings["rescale_image_frac"] is None
    assert doubling.settings["rescale_image_frac"] == 2.0
    assert plain.renderer == "inkling"


def test_the_family_is_found_by_architecture_or_model_type():
    assert inkling.match({"architectures": ["InklingForConditionalGeneration"]})
    assert inkling.match({"model_type": "inkling_mm_model"})
    assert not inkling.match({"architectures": ["Inkling2ForConditionalGeneration"]})
    assert not inkling.match({})


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ({"vision_config": {"patch_size": 16, "temporal_patch_size": 2}}, {}),
        ({"vision_config": {"patch_size": 40, "temporal_patch_size": 1}}, {}),
        ({"image_token_id": 5}, {}),
        ({}, {"size": {"height": 40, "width": 20}}),
        ({}, {"rescale_image_frac": 0.0}),
        ({}, {"rescale_image_max_upscaled_long_edge": 0}),
        ({}, {"do_normalize": False}),
        ({}, {"do_rescale": False}),
        ({}, {"sharpen": True}),
    ],
)
def test_settings_that_cannot_be_reproduced_are_refused(tmp_path, config, settings):
    with pytest.raises(ConfigRefused):
        spec(tmp_path, config, **settings)


def test_a_rendered_conversation_expands_to_its_ids(plain):
    source = MediaSource(SourceKind.DATA, data=b"x")
    made = normalize(
        Conversation(
            (
                Message(Role.ASSISTANT, tool_calls=(ToolCall("c", "look", {}),)),
                Message(
                    Role.TOOL,
                    (TextPart("<|content_image|>"), ImagePart(source), AudioPart(source)),
                    tool_call_id="c",
                ),
            )
        ),
        10,
    )
    items, words = harvest(made), tokenizer("inkling")
    plans = [plan(plain, 40, 40), plain.plan_audio(AudioInfo(1600, 16000))]
    prompt = InklingRenderer(words, default_effort=None).render(made, items)
    expanded = expand(prompt, items, plans, words.encode_many, max_tokens=1000)
    look = words.encode("look")
    assert expanded.ids.tolist() == [
        *(200001, *look, 200049, *words.encode('{"name":"look","args":{}}'), 200010, 200006),
        *(200003, *look, 200004, *words.encode("<|content_image|>"), 200010),
        *(200003, *look, 200005, IMAGE, IMAGE, 200010),
        *(200003, *look, 200020, AUDIO, AUDIO, 200043, 200010),
    ]
    assert 200005 not in words.encode("<|content_image|>")
    assert [span.plan.modality for span in expanded.spans] == [Modality.IMAGE, Modality.AUDIO]
