"""Model families, one file each, and the table that finds the one for a checkpoint."""

from collections.abc import Mapping
from typing import Any, Protocol

from patchloom_service.models import (
    deepseek_ocr2,
    gemma3,
    gemma4,
    glm4v,
    glm5_next,
    inkling,
    internvl,
    kimi_k25,
    llama4,
    llava_onevision,
    minicpmv,
    pixtral,
    qwen2_vl,
    reference,
    step3p7,
)
from patchloom_service.models.base import Checkpoint, ModelSpec


class Family(Protocol):
    """What a family file offers."""

    def match(self, config: Mapping[str, Any], /) -> bool:
        """Whether a checkpoint with this config.json is of the family."""
        ...

    def build(self, checkpoint: Checkpoint, /) -> ModelSpec:
        """The spec of the checkpoint; refuses a setting that would change a pixel and is not honoured."""
        ...


FAMILIES: tuple[Family, ...] = (
    qwen2_vl,
    glm4v,
    glm5_next,
    internvl,
    inkling,
    kimi_k25,
    minicpmv,
    pixtral,
    gemma3,
    gemma4,
    llama4,
    llava_onevision,
    deepseek_ocr2,
    step3p7,
    reference,
)
"""In the order in which they are asked; the last takes any that transformers has a processor for."""


def find_family(checkpoint: Checkpoint) -> Family:
    """The first family that takes a checkpoint; its `build` may still refuse it."""
    return next(family for family in FAMILIES if family.match(checkpoint.config))
