from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from patchloom_service.chat.expand import expand
from patchloom_service.errors import InvalidMessage, SizeRefused
from patchloom_service.models import find_family, reference
from patchloom_service.models.base import Checkpoint, GridKind, RunToken
from patchloom_service.models.image_config import ConfigRefused
from patchloom_service.types import ImageOptions
from PIL import Image

from tests.oracles.families import Family, build_tokenizer, image, token_id
from tests.support.families import prompt_of
from tests.support.reference_models import AYA, LLAVA, QWEN

SIZES = [(57, 83), (140, 300), (140, 300)]


def checkpoint(family: Family, directory: Path) -> Checkpoint:
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer(family),
        extra_special_tokens=dict(family.attributes),
        pad_token="unused299",
    )
    tokenizer.save_pretrained(directory)
    return Checkpoint(
        path=directory,
        config={"architectures": [family.architecture]},
        image_processor=family.image,
        processor=family.processor,
        tokenizer_config={},
        template=None,
        token_id=lambda spelling: token_id(family, spelling),
        encode=lambda text: build_tokenizer(family).encode(text, add_special_tokens=False).ids,
    )


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    return reference.build(checkpoint(LLAVA, tmp_path_factory.mktemp("llava")))


@pytest.fixture(scope="module")
def aya(tmp_path_factory):
    return reference.build(checkpoint(AYA, tmp_path_factory.mktemp("aya")))


def plans_of(spec, sizes):
    return [spec.plan_image(size, ImageOptions(), len(sizes)) for size in sizes]


@pytest.mark.parametrize("family", [LLAVA, AYA], ids=["llava", "aya"])
def test_ids_and_tensors_are_those_of_the_processor(family, tmp_path):
    spec = reference.build(checkpoint(family, tmp_path))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    images = getattr(transformers, f"{family.image_class}Pil")(
        **{k: v for k, v in family.image.items() if k != "image_processor_type"}
    )
    settings = {k: v for k, v in family.processor.items() if k != "processor_class"}
    processor = getattr(transformers, family.processor_class)(
        image_processor=images, tokenizer=tokenizer, **settings
    )
    pictures = [Image.fromarray(image(size)) for size in SIZES]
    want = processor(images=pictures, text=[family.prompt(len(SIZES))], return_tensors="pt")
    plans = plans_of(spec, SIZES)
    prompt, items = prompt_of(family, len(SIZES))
    ordinary = build_tokenizer(family)

    def encode(texts):
        return [ordinary.encode(text, add_special_tokens=False).ids for text in texts]

    made = expand(prompt, items, plans, encode, 1 << 20)
    assert made.ids.tolist() == want["input_ids"][0].tolist()
    tensors = spec.reference.run([image(size) for size in SIZES])
    np.testing.assert_array_equal(tensors["pixel_values"], np.asarray(want["pixel_values"]))


def test_slices_follow_the_tiles_of_each_item(aya):
    plans = plans_of(aya, SIZES)
    slices = [own[0] for own in aya.layout(plans).slices]
    tiles = [plan.grid.shape[0] for plan in plans]
    assert [plan.grid.kind for plan in plans] == [GridKind.TILES] * 3
    assert [(s.tensor, s.axis, s.start, s.count) for s in slices] == [
        ("pixel_values", 0, 0, tiles[0]),
        ("pixel_values", 0, tiles[0], tiles[1]),
        ("pixel_values", 0, tiles[0] + tiles[1], tiles[2]),
    ]
    run = aya.reference.run([image(size) for size in SIZES])
    assert run["pixel_values"].shape[0] == sum(tiles)


def test_structural_tokens_of_the_run_are_no_placeholders(aya):
    (plan,) = plans_of(aya, [(57, 83)])
    patch = token_id(AYA, "<|IMG_PATCH|>")
    assert {t.id for t in plan.run if isinstance(t, RunToken) and t.placeholder} == {patch}
    assert "<|START_OF_IMG|>" in aya.structural
    assert aya.placeholders == {"image": "<image>"}


def test_a_processor_is_built_without_its_video_side(tmp_path):
    spec = reference.build(checkpoint(QWEN, tmp_path))
    (plan,) = plans_of(spec, [(57, 83)])
    assert (plan.grid.kind, plan.grid.shape, plan.token_count) == (GridKind.PATCHES, (1, 4, 6), 6)
    assert spec.token_types is not None


def test_a_size_is_processed_once(llava, monkeypatch):
    first = plans_of(llava, [(33, 44)])
    monkeypatch.setattr(reference, "_blank", None)
    assert plans_of(llava, [(33, 44)]) == first


def test_a_size_that_the_processor_refuses_is_an_error_of_the_request(tmp_path):
    spec = reference.build(checkpoint(QWEN, tmp_path))
    with pytest.raises(SizeRefused, match="takes no image of 1x300"):
        plans_of(spec, [(1, 300)])


def test_pixel_bounds_are_refused(llava):
    with pytest.raises(InvalidMessage):
        llava.plan_image((40, 40), ImageOptions(max_pixels=1), 1)


def test_the_row_takes_what_no_other_family_takes(tmp_path):
    assert find_family(checkpoint(AYA, tmp_path)) is reference


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"processor": {"processor_class": "NoSuchProcessor"}}, "no processor NoSuchProcessor"),
        ({"processor": {}, "image_processor": {}}, "no family takes the architecture LlavaFor"),
        ({"image_processor": {"image_processor_type": "AutoModel"}}, "no image processor AutoModel"),
    ],
)
def test_what_transformers_does_not_know_is_refused(change, message, tmp_path):
    with pytest.raises(ConfigRefused, match=message):
        reference.build(replace(checkpoint(LLAVA, tmp_path), **change))


def test_settings_name_classes_and_versions(llava):
    assert llava.settings["processor"] == "LlavaProcessor with CLIPImageProcessorPil"
    assert llava.settings["torch"] == torch.__version__
