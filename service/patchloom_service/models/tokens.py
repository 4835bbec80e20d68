"""Media tokens of a checkpoint, and the token types of prompts that hold images."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from patchloom_service.models.base import Checkpoint, IdArray, ItemSpan
from patchloom_service.models.image_config import ConfigRefused


def require_token(checkpoint: Checkpoint, spelling: str, *declared: str) -> int:
    """The id of an added token; ConfigRefused where it is none or config.json declares another id.

    `declared` are the keys of config.json that may name the id.
    """
    id = checkpoint.token_id(spelling)
    if id is None:
        raise ConfigRefused(f"the tokenizer has no token {spelling}; the model needs it")
    for key in declared:
        value = checkpoint.config.get(key)
        if value is not None and value != id:
            raise ConfigRefused(f"the tokenizer gives {spelling} the id {id}, config.json says {value}")
    return id


def named_token(checkpoint: Checkpoint, name: str, default: str) -> str:
    """The spelling that the tokenizer's config gives a token by attribute, such as image_token."""
    tokenizer = checkpoint.tokenizer_config
    extra = tokenizer.get("extra_special_tokens")
    value = tokenizer.get(name) or (extra.get(name) if isinstance(extra, dict) else None) or default
    return str(value["content"] if isinstance(value, dict) else value)


def known_tokens(checkpoint: Checkpoint, spellings: Iterable[str]) -> tuple[str, ...]:
    """Those of `spellings` that the tokenizer has as added tokens."""
    return tuple(spelling for spelling in spellings if checkpoint.token_id(spelling) is not None)


def image_token_types(ids: IdArray, spans: Sequence[ItemSpan]) -> npt.NDArray[np.uint8]:
    """1 for the placeholders of images, 0 for any other token."""
    types = np.zeros(len(ids), np.uint8)
    for span in spans:
        for offset, length in span.ranges:
            types[offset : offset + length] = 1
    return types
