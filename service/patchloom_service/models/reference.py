"""Any checkpoint whose processor is a class of transformers: pixels by that class, on the CPU.

The slow row. What an image becomes is found by processing a black image of its size once, since the number of
placeholders and the shapes depend on nothing else. No network, no code of the checkpoint.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from patchloom_kernels.layout import Parity, PatchLayout, Piece
from patchloom_kernels.normalize import NormalizeFormula, NormalizeTable
from transformers.models.auto import processing_auto
from transformers.utils import import_utils

from patchloom_service.errors import SizeRefused
from patchloom_service.models.base import (
    Checkpoint,
    Grid,
    GridKind,
    MediaPlan,
    ModelSpec,
    ReferenceProcessor,
    RunToken,
    Size,
    TensorLayout,
    TensorPiece,
    TensorSlice,
)
from patchloom_service.models.image_config import ConfigRefused
from patchloom_service.models.size_options import refuse_pixel_bounds
from patchloom_service.models.tokens import image_token_types
from patchloom_service.types import ImageOptions, Modality

PROBES: tuple[Size, Size] = ((64, 96), (96, 64))
"""Sizes of the images that are processed at load, to see how the tensors of two images join."""

MEMO = 4096
"""Sizes whose plan is kept."""

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class _Processor:
    """A processor of transformers, and the vocabulary to read its replacements with."""

    own: Any
    added: Mapping[str, int]
    checkpoint: Checkpoint

    @property
    def name(self) -> str:
        return f"{_public(type(self.own)).__name__} with {type(self.own.image_processor).__name__}"

    def process(self, images: Sequence[npt.NDArray[np.uint8]]) -> tuple[Arrays, list[str]]:
        """Tensors of images [H, W, 3], and what stands in the prompt for each."""
        own = self.own
        arguments = own._merge_kwargs(tokenizer_init_kwargs=own.tokenizer.init_kwargs)["images_kwargs"]
        arguments |= {"return_tensors": "pt", "input_data_format": "channels_last"}
        nested, *_ = own.prepare_inputs_layout(images=list(images), text=[own.image_token * len(images)])
        made, replacements = own._process_images(nested, **arguments)
        unused = set(own.unused_input_names)
        return {k: _array(v) for k, v in made.items() if k not in unused}, list(replacements)


def match(config: Mapping[str, Any]) -> bool:
    """True: whether it can is found out by building."""
    return True


def build(checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a checkpoint; ConfigRefused where transformers has no processor for it."""
    own = _load(checkpoint)
    processor = _Processor(own, own.tokenizer.get_added_vocab(), checkpoint)
    axes = _axes(processor)
    placeholder = processor.own.image_token
    probe = _plan(processor, axes, PROBES[0])
    media = {token.id for token in probe.run if isinstance(token, RunToken)}
    structural = [text for text, id in processor.added.items() if id in media and text != placeholder]
    return ModelSpec(
        family="reference",
        architectures=checkpoint.architectures,
        placeholders={Modality.IMAGE: placeholder},
        structural=tuple(structural),
        plan_image=partial(_plan_image, lru_cache(MEMO)(partial(_plan, processor, axes))),
        layout=partial(_layout, axes),
        table=_no_table,
        token_types=image_token_types if processor.own.return_mm_token_type_ids else None,
        settings={
            "processor": processor.name,
            "image_processor": dict(checkpoint.image_processor),
            "processor_config": dict(checkpoint.processor),
            "transformers": transformers.__version__,
            "torch": torch.__version__,
        },
        oracle=f"transformers {processor.name}: it is the implementation",
        reference=ReferenceProcessor(run=lambda images: processor.process(images)[0]),
    )


def _load(checkpoint: Checkpoint) -> Any:
    """The checkpoint's processor without its video and audio side."""
    kind = _processor_class(checkpoint)
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        checkpoint.path, local_files_only=True, trust_remote_code=False
    )
    # Without torchvision transformers has no video processors; images need none.
    images_only = type(kind.__name__, (kind,), {"check_argument_for_proper_class": lambda *_: None})
    parts: dict[str, Any] = dict.fromkeys(kind.get_attributes(), SimpleNamespace())
    parts |= {"tokenizer": tokenizer, "image_processor": _image_processor(checkpoint)}
    known = {"processor_class", "auto_map", "image_processor", "video_processor", "feature_extractor"}
    settings = {key: value for key, value in checkpoint.processor.items() if key not in known}
    try:
        processor = images_only(**parts, **settings)
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigRefused(
            f"{kind.__name__} cannot be built without its video processor: {error}"
        ) from error
    if not isinstance(getattr(processor, "image_token", None), str):
        raise ConfigRefused(f"{kind.__name__} has no image_token; the service needs one")
    return processor


def _processor_class(checkpoint: Checkpoint) -> Any:
    """The processor class that the checkpoint names, or that transformers has for its model type."""
    files = (checkpoint.processor, checkpoint.image_processor, checkpoint.tokenizer_config)
    name = next((file["processor_class"] for file in files if file.get("processor_class")), None)
    if name is None:
        name = vars(processing_auto)["PROCESSOR_MAPPING_NAMES"].get(str(checkpoint.config.get("model_type")))
    kind = getattr(transformers, str(name), None)
    if not isinstance(kind, type) or not issubclass(kind, transformers.ProcessorMixin):
        named = ", ".join(checkpoint.architectures) or checkpoint.config.get("model_type", "none")
        raise ConfigRefused(
            f"no family takes the architecture {named}, and transformers has no processor {name}"
        )
    return kind


def _image_processor(checkpoint: Checkpoint) -> Any:
    """The image processor of the checkpoint, on the torchvision backend if that is installed."""
    settings = dict(checkpoint.image_processor)
    name = str(settings.get("image_processor_type") or settings.get("feature_extractor_type"))
    name = re.sub("FeatureExtractor$", "ImageProcessor", name).removesuffix("Fast")
    backends = ("",) if import_utils.is_torchvision_available() else ("Pil",)
    for suffix in (*backends, "Pil"):
        kind = getattr(transformers, name + suffix, None)
        if isinstance(kind, type) and issubclass(kind, transformers.BaseImageProcessor):
            return kind.from_dict(settings)
    raise ConfigRefused(f"transformers has no image processor {name} that runs here")


def _public(kind: type) -> type:
    """The class of transformers that an images-only class is made from."""
    return kind.__mro__[1]


def _array(value: Any) -> npt.NDArray[Any]:
    if isinstance(value, torch.Tensor):
        exact = value.float() if value.dtype is torch.bfloat16 else value
        return exact.contiguous().numpy()
    return np.asarray(value)


def _axes(processor: _Processor) -> dict[str, int]:
    """The axis along which the tensors of several images join, by name."""
    blanks = [_blank(size) for size in PROBES]
    both = processor.process(blanks)[0]
    alone = [processor.process([blank])[0] for blank in blanks]
    axes: dict[str, int] = {}
    for name, array in both.items():
        first, second = (made[name].shape for made in alone)
        joined = (
            axis
            for axis, length in enumerate(array.shape)
            if len(first) == len(second) == array.ndim and first[axis] + second[axis] == length
        )
        axis = next(joined, None)
        if axis is None:
            raise ConfigRefused(f"{processor.name}: {name} of two images does not join along an axis")
        axes[name] = axis
    return axes


def _blank(size: Size) -> npt.NDArray[np.uint8]:
    return np.zeros((*size, 3), np.uint8)


def _plan_image(plan: Any, size: Size, options: ImageOptions, item_count: int) -> MediaPlan:
    refuse_pixel_bounds("a model that runs through its reference processor", options)
    made: MediaPlan = plan(size)
    return made


def _plan(processor: _Processor, axes: Mapping[str, int], size: Size) -> MediaPlan:
    try:
        arrays, (replacement,) = processor.process([_blank(size)])
    except (ValueError, ZeroDivisionError) as error:
        raise SizeRefused(
            f"{processor.name} takes no image of {size[0]}x{size[1]} (height x width); send another size"
        ) from error
    run = tuple(_run(processor, replacement))
    whole = Piece(size, size, size, PatchLayout(size))
    return MediaPlan(
        modality=Modality.IMAGE,
        grid=_grid(arrays, axes),
        token_count=sum(token.count for token in run if isinstance(token, RunToken) and token.placeholder),
        run=run,
        size=size,
        pieces=(TensorPiece("", whole),),
        facts={name: array.shape for name, array in arrays.items()},
    )


def _grid(arrays: Arrays, axes: Mapping[str, int]) -> Grid:
    patches = arrays.get("image_grid_thw")
    if patches is not None and patches.shape == (1, 3):
        return Grid(GridKind.PATCHES, tuple(int(side) for side in patches[0]))
    name, axis = next(iter(axes.items()))
    return Grid(GridKind.TILES, (arrays[name].shape[axis],))


def _run(processor: _Processor, replacement: str) -> Iterator[RunToken | str]:
    """The replacement as tokens; text at its ends stays text."""
    spellings = sorted(processor.added, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, spellings))})", replacement) if spellings else [replacement]
    tokens = [processor.added[text] for text in parts[1::2]]
    if not tokens:
        raise ConfigRefused(f"{processor.name} replaces an image by text without added tokens")
    media = _placeholder_id(processor, tokens)
    if parts[0]:
        yield parts[0]
    for token, text in zip(tokens, (*parts[2:-1:2], ""), strict=True):
        yield RunToken(token, placeholder=token == media)
        if text:
            assert processor.checkpoint.encode is not None
            yield from (RunToken(id, placeholder=False) for id in processor.checkpoint.encode(text))
    if parts[-1]:
        yield parts[-1]


def _placeholder_id(processor: _Processor, tokens: Sequence[int]) -> int:
    """The token that stands for features: the model's image token, if a run has it."""
    config = processor.checkpoint.config
    names = (config.get("image_token_id"), config.get("image_token_index"), processor.own.image_token_id)
    return next((id for id in tokens if id in names), max(set(tokens), key=tokens.count))


def _layout(axes: Mapping[str, int], plans: Sequence[MediaPlan]) -> TensorLayout:
    """No tensor is written here; each item's slices of what the processor gives."""
    starts = dict.fromkeys(axes, 0)
    slices: list[tuple[TensorSlice, ...]] = []
    for plan in plans:
        own = []
        for name, axis in axes.items():
            count = plan.facts[name][axis] if name in plan.facts else 0
            own.append(TensorSlice(name, axis, starts[name], count))
            starts[name] += count
        slices.append(tuple(own))
    return TensorLayout((), {}, tuple(slices))


def _no_table(parity: Parity) -> NormalizeTable:
    return NormalizeTable.build(NormalizeFormula.HF_PIL, None, None, None)
