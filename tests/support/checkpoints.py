"""Checkpoints of every family for tests, with real tokenizers."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from patchloom_service.chat.tokenize import Tokenizer
from patchloom_service.models.base import Checkpoint, read_json

from bench import checkpoints
from tests.support.tokenizers import CACHE, build_tokenizer


def read_built(
    family: str,
    directory: Path,
    *,
    config: Mapping[str, Any] | None = None,
    image_processor: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """The checkpoint of a family, written to `directory` with the given settings changed."""
    checkpoints.build_checkpoint(
        family, directory, config=config, image_processor=image_processor, cache_dir=CACHE
    )
    template = directory / "chat_template.jinja"
    return Checkpoint(
        path=directory,
        config=read_json(directory / "config.json"),
        image_processor=read_json(directory / "preprocessor_config.json"),
        processor=read_json(directory / "processor_config.json"),
        tokenizer_config=read_json(directory / "tokenizer_config.json"),
        template=template.read_text(encoding="utf-8") if template.is_file() else None,
        token_id=tokenizer(checkpoints.tokenizer_of(family)).token_id,
    )


@cache
def tokenizer(family: str) -> Tokenizer:
    """The loaded tokenizer of a tokenizer family, shared by all tests of a process."""
    return Tokenizer.load(build_tokenizer(family))
