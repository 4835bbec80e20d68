"""Writes model directories in Hugging Face layout, without weights and without a hub.

A directory holds config.json, preprocessor_config.json (processor_config.json where the family has
one), the tokenizer files and chat_template.jinja: all that preprocessing reads. It knows nothing of
the service. Run it as `python -m bench.checkpoints FAMILY DIRECTORY`.
"""

import argparse
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.rank_tokenizer import build_tokenizer

__all__ = ["Family", "build_checkpoint", "build_tokenizer", "families", "tokenizer_of"]

ROOT = Path(__file__).resolve().parents[1]
TOKENIZER_CACHE = ROOT / ".cache" / "tokenizers"
TEMPLATES = Path(__file__).resolve().parent / "templates"

Json = dict[str, Any]

_CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
_IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
_STEPS = {
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "do_convert_rgb": True,
    "resample": 3,
}


@dataclass(frozen=True, slots=True)
class Family:
    """The files of one family: its tokenizer, its template (None has none) and its JSON files."""

    tokenizer: str
    template: str | None
    config: Mapping[str, Any]
    image_processor: Mapping[str, Any]
    processor: Mapping[str, Any] = field(default_factory=dict)


def build_checkpoint(
    family: str,
    directory: Path,
    *,
    template: str | None = None,
    config: Mapping[str, Any] | None = None,
    image_processor: Mapping[str, Any] | None = None,
    cache_dir: Path = TOKENIZER_CACHE,
) -> Path:
    """Write the checkpoint of `family` into `directory` and return it.

    `template` is the text of another chat template than our own; `config` and `image_processor` hold
    keys that replace or extend those of the family's files.
    """
    facts = _family(family)
    directory.mkdir(parents=True, exist_ok=True)
    for file in build_tokenizer(facts.tokenizer, cache_dir).iterdir():
        shutil.copyfile(file, directory / file.name)
    _write_json(directory / "config.json", {**facts.config, **(config or {})})
    _write_json(directory / "preprocessor_config.json", {**facts.image_processor, **(image_processor or {})})
    if facts.processor:
        _write_json(directory / "processor_config.json", facts.processor)
    text = template if template is not None else _own_template(facts)
    if text is not None:
        (directory / "chat_template.jinja").write_text(text, encoding="utf-8")
    return directory


def families() -> tuple[str, ...]:
    """The families that `build_checkpoint` knows."""
    return tuple(_FAMILIES)


def tokenizer_of(family: str) -> str:
    """The tokenizer family that a checkpoint family uses."""
    return _family(family).tokenizer


def _family(name: str) -> Family:
    if name not in _FAMILIES:
        raise ValueError(f"no checkpoint family {name!r}; known are {', '.join(_FAMILIES)}")
    return _FAMILIES[name]


def _own_template(facts: Family) -> str | None:
    if facts.template is None:
        return None
    return (TEMPLATES / facts.template).read_text(encoding="utf-8")


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _config(architecture: str, model_type: str, vision: Json, **tokens: int) -> Json:
    """config.json: the names by which a family is found, the vision geometry, the token ids."""
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vision_config": vision,
        **tokens,
    }


def _qwen_tokens(first: int) -> dict[str, int]:
    """The ids of a Qwen vocabulary, whose vision tokens follow one another from `first` on."""
    return {
        "vision_start_token_id": first,
        "vision_end_token_id": first + 1,
        "image_token_id": first + 3,
        "video_token_id": first + 4,
    }


def _patches(patch_size: int) -> Json:
    return {"patch_size": patch_size, "spatial_merge_size": 2, "temporal_patch_size": 2}


def _qwen_images(patch_size: int, shortest: int, longest: int, mean_std: Json) -> Json:
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        **_STEPS,
        **mean_std,
        "size": {"shortest_edge": shortest, "longest_edge": longest},
        "min_pixels": shortest,
        "max_pixels": longest,
        "patch_size": patch_size,
        "temporal_patch_size": 2,
        "merge_size": 2,
    }


_QWEN2_IMAGES = _qwen_images(14, 3136, 12845056, _CLIP)
_QWEN3_IMAGES = _qwen_images(16, 65536, 16777216, _HALF)
_INTERNVL_VISION = {"image_size": [448, 448], "patch_size": [14, 14]}

_FAMILIES = {
    "qwen2_vl": Family(
        tokenizer="qwen2_5",
        template="qwen.jinja",
        config=_config("Qwen2VLForConditionalGeneration", "qwen2_vl", _patches(14), **_qwen_tokens(151652)),
        image_processor=_QWEN2_IMAGES,
        processor={"processor_class": "Qwen2VLProcessor"},
    ),
    "qwen2_5_vl": Family(
        tokenizer="qwen2_5",
        template="qwen.jinja",
        config=_config(
            "Qwen2_5_VLForConditionalGeneration",
            "qwen2_5_vl",
            _patches(14) | {"tokens_per_second": 2},
            **_qwen_tokens(151652),
        ),
        image_processor=_QWEN2_IMAGES,
        processor={"processor_class": "Qwen2_5_VLProcessor"},
    ),
    "qwen3_vl": Family(
        tokenizer="qwen3",
        template="qwen.jinja",
        config=_config("Qwen3VLForConditionalGeneration", "qwen3_vl", _patches(16), **_qwen_tokens(151652)),
        image_processor=_QWEN3_IMAGES,
        processor={"processor_class": "Qwen3VLProcessor"},
    ),
    "qwen3_5": Family(
        tokenizer="qwen3_5",
        template="qwen.jinja",
        config=_config("Qwen3_5ForConditionalGeneration", "qwen3_5", _patches(16), **_qwen_tokens(248053)),
        image_processor=_QWEN3_IMAGES,
        processor={"processor_class": "Qwen3VLProcessor"},
    ),
    "internvl3": Family(
        tokenizer="internvl3",
        template="internvl.jinja",
        config={
            "architectures": ["InternVLForConditionalGeneration"],
            "model_type": "internvl",
            "vision_config": _INTERNVL_VISION,
            "image_token_id": 151667,
            "image_seq_length": 256,
            "downsample_ratio": 0.5,
        },
        image_processor={
            "image_processor_type": "GotOcr2ImageProcessor",
            **_STEPS,
            **_IMAGENET,
            "size": {"height": 448, "width": 448},
            "crop_to_patches": False,
            "min_patches": 1,
            "max_patches": 12,
        },
        processor={"processor_class": "InternVLProcessor", "image_seq_length": 256},
    ),
    "internvl_chat": Family(
        tokenizer="internvl3",
        template="internvl_chat.jinja",
        config={
            "architectures": ["InternVLChatModel"],
            "model_type": "internvl_chat",
            "vision_config": {"image_size": 448, "patch_size": 14},
            "force_image_size": 448,
            "downsample_ratio": 0.5,
            "dynamic_image_size": True,
            "min_dynamic_patch": 1,
            "max_dynamic_patch": 12,
            "use_thumbnail": True,
        },
        image_processor={
            "feature_extractor_type": "CLIPFeatureExtractor",
            "crop_size": 448,
            "do_center_crop": True,
            "do_normalize": True,
            "do_resize": True,
            **_IMAGENET,
            "resample": 3,
            "size": 448,
        },
    ),
    "glm5_next": Family(
        tokenizer="glm5",
        template="glm.jinja",
        config=_config(
            "Glm5NextForConditionalGeneration",
            "glm5_next",
            _patches(14),
            image_token_id=154854,
            video_token_id=154855,
            image_start_token_id=154830,
            image_end_token_id=154831,
            video_start_token_id=154832,
            video_end_token_id=154833,
        ),
        image_processor={
            "image_processor_type": "Glm5NextImageProcessor",
            **_STEPS,
            **_CLIP,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "patch_expand_factor": 1,
            "min_image_tokens": 16,
            "max_image_tokens": 8000,
        },
        processor={"processor_class": "Glm5NextProcessor"},
    ),
    "kimi_k25": Family(
        tokenizer="kimi_k25",
        template="kimi.jinja",
        config=_config(
            "Kimi_K25ForConditionalGeneration",
            "kimi_k25",
            {"patch_size": 14, "merge_kernel_size": [2, 2]},
            image_token_id=163605,
            vision_start_token_id=163602,
            vision_end_token_id=163604,
        ),
        image_processor={
            "image_processor_type": "Kimi_K25ImageProcessor",
            **_STEPS,
            **_HALF,
            "size": {"max_height": 512, "max_width": 512},
            "max_patches": 16384,
            "patch_size": 14,
            "merge_size": 2,
        },
        processor={"processor_class": "Kimi_K25Processor"},
    ),
    "inkling": Family(
        tokenizer="inkling",
        template=None,
        config=_config(
            "InklingForConditionalGeneration",
            "inkling_mm_model",
            {"patch_size": 40, "temporal_patch_size": 2},
            image_token_id=200054,
            audio_token_id=200053,
            image_bos_token_id=200005,
            audio_bos_token_id=200020,
        ),
        image_processor={
            "image_processor_type": "InklingImageProcessor",
            **_STEPS,
            **_CLIP,
            "resample": 1,
            "size": {"height": 40, "width": 40},
            "rescale_image_frac": None,
            "rescale_image_max_upscaled_long_edge": 2048,
        },
        processor={
            "processor_class": "InklingProcessor",
            "num_dmel_bins": 16,
            "dmel_min_value": -7.0,
            "dmel_max_value": 2.0,
            "feature_extractor": {
                "feature_extractor_type": "InklingFeatureExtractor",
                "feature_size": 80,
                "sampling_rate": 16000,
                "padding_value": 0.0,
                "audio_token_duration_s": 0.05,
                "window_size_multiplier": 2.0,
                "n_fft": 1600,
            },
        },
    ),
}


def main() -> None:
    """Write one checkpoint and print its path."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", choices=families())
    parser.add_argument("directory", type=Path)
    parser.add_argument("--template", type=Path, help="another chat template than our own")
    options = parser.parse_args()
    template = options.template.read_text(encoding="utf-8") if options.template else None
    print(build_checkpoint(options.family, options.directory, template=template))


if __name__ == "__main__":
    main()
