"""Model directories in Hugging Face layout to served models."""

import hashlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from patchloom_service.chat import internvl
from patchloom_service.chat.inkling import InklingRenderer
from patchloom_service.chat.internvl import InternVLChatRenderer
from patchloom_service.chat.jinja_template import TemplateLimits
from patchloom_service.chat.render import JinjaRenderer
from patchloom_service.chat.tokenize import Tokenizer
from patchloom_service.config import Config
from patchloom_service.models import find_family
from patchloom_service.models.base import Checkpoint, ModelSpec, read_json
from patchloom_service.models.image_config import ConfigRefused
from patchloom_service.served import Renderer, ServedModel

_PLANS = 1024
"""Plans that are kept: the images of an agent have few sizes."""


def load_model(name_or_path: str, config: Config, served_name: str = "") -> ServedModel:
    """The model of a directory or hub id, served under `served_name` or else under the name given.

    ValueError says what is missing in the directory or cannot be reproduced exactly.
    """
    path = _directory(name_or_path)
    if not (path / "config.json").is_file():
        raise ValueError(f"{path}: no config.json; a model directory in Hugging Face layout is needed")
    try:
        return _load(path, config, served_name or name_or_path)
    except ConfigRefused as error:
        raise ConfigRefused(f"{name_or_path}: {error}") from error


def _directory(name_or_path: str) -> Path:
    path = Path(name_or_path)
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    patterns = ["*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken"]
    try:
        return Path(snapshot_download(name_or_path, allow_patterns=patterns))
    except (OSError, HFValidationError) as error:
        raise ValueError(f"{name_or_path}: no such directory, and the hub does not give it") from error


def _load(path: Path, config: Config, name: str) -> ServedModel:
    base = Tokenizer.load(path, memo_bytes=config.segment_cache_bytes)
    checkpoint = read_checkpoint(path, base)
    spec = find_family(checkpoint).build(checkpoint)
    spec = replace(spec, plan_image=lru_cache(_PLANS)(spec.plan_image))
    media = (*spec.placeholders.values(), *spec.structural)
    template = None if spec.renderer else checkpoint.template
    tokenizer = base.guarded(template, media)
    renderer, info = _renderer(checkpoint, spec, tokenizer, config)
    return ServedModel(
        name=name,
        spec=spec,
        tokenizer=tokenizer,
        renderer=renderer,
        identity=_identity(path, template),
        info={**_facts(spec), **info, "segment_memo": tokenizer.exact},
        vocabulary=_vocabulary(checkpoint, tokenizer),
    )


def _vocabulary(checkpoint: Checkpoint, tokenizer: Tokenizer) -> int:
    """One more than the highest id: the embedding's size where config.json says it, else the tokenizer's."""
    text = checkpoint.config.get("text_config") or {}
    declared = checkpoint.config.get("vocab_size") or text.get("vocab_size") or 0
    return max(int(declared), tokenizer.size)


def _renderer(
    checkpoint: Checkpoint, spec: ModelSpec, tokenizer: Tokenizer, config: Config
) -> tuple[Renderer, dict[str, Any]]:
    if spec.renderer == "inkling":
        return InklingRenderer(tokenizer), {"template": {"builtin": "inkling"}}
    if checkpoint.template is None:
        raise ConfigRefused("no chat template; add chat_template.jinja to the model directory")
    kind = InternVLChatRenderer if internvl.ARCHITECTURE in checkpoint.architectures else JinjaRenderer
    renderer = kind(
        checkpoint.template,
        tokenizer,
        spec.placeholders,
        spec.structural,
        checkpoint.architectures,
        TemplateLimits(config.template_steps, config.max_template_output),
    )
    return renderer, {"template": renderer.probe.as_json()}


def _facts(spec: ModelSpec) -> dict[str, Any]:
    return {
        "family": spec.family,
        "architectures": list(spec.architectures),
        "pixels": "reference" if spec.reference else "kernels",
        "oracle": spec.oracle,
        "placeholders": {modality.value: token for modality, token in spec.placeholders.items()},
        "structural": list(spec.structural),
        "settings": dict(spec.settings),
        "positions": spec.positions is not None,
    }


def read_checkpoint(path: Path, tokenizer: Tokenizer) -> Checkpoint:
    """The parsed files of a model directory."""
    config = read_json(path / "config.json")
    processor = read_json(path / "processor_config.json")
    image_processor = {**read_json(path / "preprocessor_config.json"), **processor.get("image_processor", {})}
    return Checkpoint(
        path=path,
        config=config,
        image_processor=image_processor,
        processor=processor,
        tokenizer_config=read_json(path / "tokenizer_config.json"),
        template=_template(path),
        token_id=tokenizer.token_id,
        encode=tokenizer.encode,
    )


def _template(path: Path) -> str | None:
    """chat_template.jinja, else chat_template.json, else the template in tokenizer_config.json."""
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    for name in ("chat_template.json", "processor_config.json", "tokenizer_config.json"):
        template = read_json(path / name).get("chat_template")
        if isinstance(template, str):
            return template
    return None


def _identity(path: Path, template: str | None) -> dict[str, str]:
    identity = {}
    for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt"):
        if (path / name).is_file():
            identity[name] = _sha256((path / name).read_bytes())
    if template is not None:
        identity["template"] = _sha256(template.encode("utf-8"))
    return identity


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
