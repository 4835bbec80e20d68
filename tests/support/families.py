"""Compares a family of the service with transformers: with recorded processors and with its PIL classes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from patchloom_kernels.cpu.resize import resize_patchify
from patchloom_kernels.layout import Parity
from patchloom_kernels.normalize import Dtype
from patchloom_service.chat.expand import Expanded, expand
from patchloom_service.models import find_family
from patchloom_service.models.base import Checkpoint, MediaPlan, ModelSpec, TensorLayout
from patchloom_service.pictures import resized_images, resized_key
from patchloom_service.types import (
    ControlToken,
    ImageOptions,
    ImagePart,
    MediaItem,
    MediaSource,
    Modality,
    Prompt,
    Segment,
    Slot,
    SourceKind,
    TextSegment,
)
from PIL import Image

from tests.oracles.families import FAMILIES, Family, build_tokenizer, digest, image, run_lengths, token_id

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden"
Size = tuple[int, int]
NO_OPTIONS = ImageOptions()


def checkpoint(name: str, **image_processor: Any) -> Checkpoint:
    """The checkpoint that the oracle's settings describe, with settings of the image processor changed."""
    family = FAMILIES[name]
    return Checkpoint(
        path=Path(),
        config={"architectures": [family.architecture], **family.config},
        image_processor={**family.image, **image_processor},
        processor=family.processor,
        tokenizer_config=dict(family.attributes),
        template=None,
        token_id=lambda spelling: token_id(family, spelling),
        encode=lambda text: build_tokenizer(family).encode(text, add_special_tokens=False).ids,
    )


def build(name: str, **image_processor: Any) -> ModelSpec:
    """The spec of a family under the oracle's settings."""
    made = checkpoint(name, **image_processor)
    return find_family(made).build(made)


@cache
def golden(name: str) -> Sequence[Mapping[str, Any]]:
    """The recorded cases of a family."""
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))["cases"]


def recorded_rule(name: str) -> list[list[int]]:
    """[height, width, *result] of the family's size rule for many sizes."""
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))["rule"]


def cases(*names: str) -> list[Any]:
    """A pytest parameter (family, index) for each recorded case."""
    return [
        pytest.param(name, index, id=f"{name}-" + "+".join(f"{h}x{w}" for h, w in case["sizes"]))
        for name in names
        for index, case in enumerate(golden(name))
    ]


def plans_of(spec: ModelSpec, sizes: Sequence[Size], options: ImageOptions = NO_OPTIONS) -> list[MediaPlan]:
    """The plans of images that stand in one request."""
    return [spec.plan_image((h, w), options, len(sizes)) for h, w in sizes]


def expanded(name: str, spec: ModelSpec, plans: Sequence[MediaPlan]) -> Expanded:
    """The oracle's prompt, expanded."""
    family = FAMILIES[name]
    tokenizer = build_tokenizer(family)
    prompt, items = prompt_of(family, len(plans))

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]

    return expand(prompt, items, plans, encode, 1 << 20)


def prompt_of(family: Family, count: int) -> tuple[Prompt, list[MediaItem]]:
    """The oracle's prompt with `count` images, rendered, and its items."""
    segments = _segments(family, family.prompt(count))
    return Prompt(tuple(segments)), [_item(index) for index in range(count)]


def compute(
    spec: ModelSpec, layout: TensorLayout, images: Sequence[np.ndarray], parity: Parity, dtype: Dtype
) -> dict[str, np.ndarray]:
    """The tensors of a layout, as the pixel engine computes them; bfloat16 as its bits."""
    sources = list(images)
    table = spec.table(parity)
    tensors: dict[str, np.ndarray] = dict(layout.constants)
    for tensor in layout.pixels:
        out = np.full(np.prod(tensor.shape), 77, dtype.numpy)
        if tensor.fill is not None:
            out[:] = table.to(dtype)[0, tensor.fill]
        for job in tensor.jobs:
            made = resized_images(resize_patchify, sources[job.source], [job.piece], parity)
            piece = replace(job.piece, source=job.piece.target, via=())
            picture = made[resized_key(job.piece)]
            resize_patchify([picture], [replace(job, source=0, piece=piece)], table, out, dtype, parity)
        tensors[tensor.name] = out.reshape(tensor.shape)
    return tensors


def tensors_of(
    spec: ModelSpec,
    sizes: Sequence[Size],
    parity: Parity,
    dtype: Dtype,
    options: ImageOptions = NO_OPTIONS,
) -> dict[str, np.ndarray]:
    """The tensors of the oracle's images of these sizes."""
    layout = spec.layout(plans_of(spec, sizes, options))
    return compute(spec, layout, [image(size) for size in sizes], parity, dtype)


def assert_equals_processor(name: str, index: int) -> None:
    """Ids, token types, shapes and (where they were recorded) pixels equal the processor's."""
    case, spec = golden(name)[index], build(name)
    sizes = [tuple(size) for size in case["sizes"]]
    plans = plans_of(spec, sizes)
    made = expanded(name, spec, plans)
    assert run_lengths(made.ids.tolist()) == case["ids"]
    if case["types"]:
        assert spec.token_types is not None
        types = run_lengths(spec.token_types(made.ids, made.spans).tolist())
        assert {spec.token_types_name: types} == case["types"]
    else:
        assert spec.token_types is None
    layout = spec.layout(plans)
    shapes = {tensor.name: tensor.shape for tensor in layout.pixels}
    shapes |= {key: value.shape for key, value in layout.constants.items()}
    assert shapes == {key: tuple(value["shape"]) for key, value in case["tensors"].items()}
    for key, value in layout.constants.items():
        recorded = case["tensors"][key]
        assert (key, value.dtype.name, digest(value)) == (key, recorded["dtype"], recorded["sha256"])
    if any("sha256" in case["tensors"][tensor.name] for tensor in layout.pixels):
        dtype = Dtype(spec.dtype or "float32")
        tensors = compute(spec, layout, [image(size) for size in sizes], Parity.ATEN_U8, dtype)
        for tensor in layout.pixels:
            recorded = case["tensors"][tensor.name]
            assert (tensor.name, dtype.value) == (tensor.name, recorded["dtype"])
            assert digest(tensors[tensor.name]) == recorded["sha256"], tensor.name


def assert_equals_pil(name: str, sizes: Sequence[Size], bounds: tuple[int, int] | None = None) -> None:
    """The tensors of images of these sizes equal those of the family's PIL class, in its Pillow's mode.

    `bounds` are pixel bounds of the request; the class gets them as its size.
    """
    family = FAMILIES[name]
    settings = {key: value for key, value in family.image.items() if key != "image_processor_type"}
    options = NO_OPTIONS
    if bounds:
        settings["size"] = dict(zip(("shortest_edge", "longest_edge"), bounds, strict=True))
        options = ImageOptions(min_pixels=bounds[0], max_pixels=bounds[1])
    processor = getattr(transformers, f"{family.image_class}Pil")(**settings)
    pictures = [Image.fromarray(image(size)) for size in sizes]
    want = processor([pictures] if name == "llava_onevision" and len(sizes) > 1 else pictures)
    made = tensors_of(build(name), sizes, Parity.PILLOW13, Dtype.FLOAT32, options)
    for key, value in made.items():
        np.testing.assert_array_equal(value, np.array(want[key]), strict=False, err_msg=key)


def assert_slices_cover(spec: ModelSpec, sizes: Sequence[Size], apart: Sequence[str] = ()) -> None:
    """Every item has a slice of every tensor but those `apart`, in order, without gaps along its axis."""
    layout = spec.layout(plans_of(spec, sizes))
    shapes = {tensor.name: tensor.shape for tensor in layout.pixels}
    shapes |= {key: value.shape for key, value in layout.constants.items() if key not in apart}
    ends = dict.fromkeys(shapes, 0)
    for own in layout.slices:
        assert {part.tensor for part in own} == set(shapes)
        for part in own:
            assert part.start == ends[part.tensor]
            ends[part.tensor] += part.count
            axis = part.axis
            assert ends[part.tensor] <= shapes[part.tensor][axis]
    axes = {part.tensor: part.axis for own in layout.slices for part in own}
    assert ends == {name: shape[axes[name]] for name, shape in shapes.items()}


def _item(index: int) -> MediaItem:
    part = ImagePart(MediaSource(SourceKind.DATA, data=b"x"))
    return MediaItem(index, Modality.IMAGE, part, f"messages[0].content[{index}]", 0, index)


def _segments(family: Family, text: str) -> list[Segment]:
    segments: list[Segment] = []
    slots = 0
    while text:
        found = (
            min((at, spelling) for spelling in family.added if (at := text.find(spelling)) >= 0)
            if any(spelling in text for spelling in family.added)
            else (len(text), "")
        )
        at, spelling = found
        if at:
            segments.append(TextSegment(text[:at]))
        if spelling == family.placeholder:
            segments.append(Slot(slots))
            slots += 1
        elif spelling:
            id = token_id(family, spelling)
            assert id is not None
            segments.append(ControlToken(id))
        text = text[at + len(spelling) :]
    return segments
