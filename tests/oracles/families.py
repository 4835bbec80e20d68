"""What the oracles run: per family a processor of transformers, its settings, and images by size.

It knows nothing of the service: the oracle environment has none.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

Size = tuple[int, int]
CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
SIZES: tuple[tuple[Size, ...], ...] = (
    *(((1, 1),), ((57, 83),), ((4, 700),), ((448, 448),), ((560, 280),), ((477, 641),), ((700, 500),)),
    ((57, 83), (300, 140), (140, 300)),
)
LARGE: tuple[tuple[Size, ...], ...] = (((3000, 4000),), ((1080, 1920),), ((1080, 1920), (2400, 1080)))


@dataclass(frozen=True, slots=True)
class Family:
    """A processor of transformers and the files that a checkpoint would have.

    `image` is preprocessor_config.json, `processor` processor_config.json, `config` config.json. `slot` is
    what a template writes per image, `placeholder` the token of it that is replaced. `attributes` are
    special tokens by the name under which the tokenizer knows them, `tokens` further added tokens. Tensors
    of `sizes` are compared in full, of `large` by shape.
    """

    processor_class: str
    image_class: str
    placeholder: str
    slot: str
    architecture: str
    image: Mapping[str, Any]
    tokens: Sequence[str] = ()
    processor: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)
    companions: Mapping[str, str] = field(default_factory=dict)
    sizes: Sequence[Sequence[Size]] = SIZES
    large: Sequence[Sequence[Size]] = LARGE

    @property
    def added(self) -> tuple[str, ...]:
        """All added tokens, each once, in the order of their ids."""
        return tuple(dict.fromkeys([self.placeholder, *self.attributes.values(), *self.tokens]))

    def cases(self) -> list[tuple[Sequence[Size], bool]]:
        """Sizes of the images of each case, and whether their pixels are compared."""
        return [(sizes, True) for sizes in self.sizes] + [(sizes, False) for sizes in self.large]

    def prompt(self, count: int) -> str:
        """A prompt with `count` images, two of them adjacent."""
        text = "a\n"
        for index in range(count):
            text += self.slot + ("\n b" if index % 2 else "")
        return text + "\nz"


def image(size: Size) -> np.ndarray:
    """A picture uint8 [H, W, 3] with smooth parts, edges and noise, the same on every machine."""
    height, width = size
    y, x = np.mgrid[:height, :width]
    base = np.stack([(3 * x + y) % 256, (x * y // 7) % 256, (5 * y - 2 * x) % 256], axis=-1)
    noise = np.random.default_rng([height, width]).integers(0, 64, base.shape)
    return np.clip(base + noise - 32, 0, 255).astype(np.uint8)


def rule_sizes() -> list[Size]:
    """Sizes from 1x1 to 10000 a side, evenly in the logarithm, with multiples of a tile among them."""
    sides = np.exp(np.random.default_rng(5).uniform(0, np.log(10000), (300, 2))).astype(int)
    tiles = [(336 * a + d, 336 * b) for a in range(1, 7) for b in range(1, 7) for d in (-1, 0, 1)]
    return [*((int(h), int(w)) for h, w in sides), *tiles]


def build_tokenizer(family: Family) -> Tokenizer:
    """Bytes as tokens, their value as id; two newlines merge; added tokens from 300 on."""
    letters = _letters()
    vocabulary = {letter: byte for byte, letter in enumerate(letters)}
    newline = letters[10]
    vocabulary[newline * 2], vocabulary[newline * 4] = 256, 257
    unused = {f"unused{i}": i for i in range(258, 300)}
    merges = [(newline, newline), (newline * 2, newline * 2)]
    tokenizer = Tokenizer(models.BPE({**vocabulary, **unused}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in family.added])
    return tokenizer


def token_id(family: Family, spelling: str) -> int | None:
    """The id of an added token."""
    return 300 + family.added.index(spelling) if spelling in family.added else None


def digest(array: np.ndarray) -> str:
    """SHA-256 in hex over the elements in C order."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def run_lengths(ids: Sequence[int]) -> list[list[int]]:
    """[[id, count], ...]"""
    runs: list[list[int]] = []
    for id in ids:
        if runs and runs[-1][0] == id:
            runs[-1][1] += 1
        else:
            runs.append([int(id), 1])
    return runs


def _letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = (byte for byte in range(256) if byte not in shown)
    letters = {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    return [letters[byte] for byte in range(256)]


def _qwen(patch: int, low: int, high: int, mean_std: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        **mean_std,
        "size": {"shortest_edge": low, "longest_edge": high},
        "patch_size": patch,
        "temporal_patch_size": 2,
        "merge_size": 2,
    }


_QWEN_SLOT = "<|vision_start|><|image_pad|><|vision_end|>"
_QWEN_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|video_pad|>")
_GLM_SLOT = "<|begin_of_image|><|image|><|end_of_image|>"
_GLM_TOKENS = (
    *("<|begin_of_image|>", "<|end_of_image|>"),
    *("<|begin_of_video|>", "<|end_of_video|>", "<|video|>"),
)


def _qwen_family(processor: str, architecture: str, image: Mapping[str, Any]) -> Family:
    return Family(
        processor_class=processor,
        image_class="Qwen2VLImageProcessor",
        placeholder="<|image_pad|>",
        slot=_QWEN_SLOT,
        architecture=architecture,
        image=image,
        tokens=_QWEN_TOKENS,
        companions={"video_processor": "Qwen2VLVideoProcessor"},
        sizes=(*SIZES, ((27, 332),), ((30, 305),), ((484, 1024),), ((1, 200),)),
    )


def _glm_family(name: str, architecture: str, image_class: str, image: Mapping[str, Any]) -> Family:
    return Family(
        processor_class=f"{name}Processor",
        image_class=image_class,
        placeholder="<|image|>",
        slot=_GLM_SLOT,
        architecture=architecture,
        image={"image_processor_type": image_class, **CLIP, **image},
        tokens=_GLM_TOKENS,
        companions={"video_processor": f"{name}VideoProcessor"},
        sizes=(*SIZES, ((10, 1500),)),
    )


def _minicpm(name: str, image: Mapping[str, Any]) -> Family:
    return Family(
        processor_class=f"{name}Processor",
        image_class="MiniCPMV4_6ImageProcessor",
        placeholder="<|image_pad|>",
        slot="<|image_pad|>",
        architecture=f"{name}ForConditionalGeneration",
        image={
            "image_processor_type": "MiniCPMV4_6ImageProcessor",
            **HALF,
            "scale_resolution": 448,
            "patch_size": 14,
            **image,
        },
        attributes={
            "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>",
            **{f"{kind}_start_token": f"<{kind}>" for kind in ("image", "slice", "image_id")},
            **{f"{kind}_end_token": f"</{kind}>" for kind in ("image", "slice", "image_id")},
        },
        companions={"video_processor": "MiniCPMV4_6VideoProcessor"},
        sizes=_TILED,
    )


def _pixtral(architecture: str, longest: int, patch: int, merge: int) -> Family:
    return Family(
        processor_class="PixtralProcessor",
        image_class="PixtralImageProcessor",
        placeholder="[IMG]",
        slot="[IMG]",
        architecture=architecture,
        image={
            "image_processor_type": "PixtralImageProcessor",
            **CLIP,
            "size": {"longest_edge": longest},
            "patch_size": {"height": patch, "width": patch},
        },
        processor={"patch_size": patch, "spatial_merge_size": merge},
        config={"vision_config": {"model_type": "pixtral"}},
        tokens=("[IMG_BREAK]", "[IMG_END]"),
    )


def _inkling(fraction: float | None) -> Family:
    return Family(
        processor_class="InklingProcessor",
        image_class="InklingImageProcessor",
        placeholder="<|unused_200054|>",
        slot="<|content_image|><|unused_200054|><|end_message|>",
        architecture="InklingForConditionalGeneration",
        image={
            "image_processor_type": "InklingImageProcessor",
            **CLIP,
            "resample": 1,
            "size": {"height": 40, "width": 40},
            "rescale_image_frac": fraction,
        },
        tokens=(
            *("<|content_image|>", "<|content_audio_input|>", "<|audio_end|>"),
            *("<|unused_200053|>", "<|end_message|>"),
        ),
        companions={"feature_extractor": "InklingFeatureExtractor"},
        sizes=(*SIZES, ((40, 80),), ((39, 41),)),
    )


_TILED = (*SIZES, ((900, 500),), ((1000, 1000),), ((40, 1400),))

FAMILIES: dict[str, Family] = {
    "qwen2_vl": _qwen_family(
        "Qwen2VLProcessor", "Qwen2VLForConditionalGeneration", _qwen(14, 3136, 12845056, CLIP)
    ),
    "qwen2_5_vl": _qwen_family(
        "Qwen2_5_VLProcessor", "Qwen2_5_VLForConditionalGeneration", _qwen(14, 3136, 1003520, CLIP)
    ),
    "qwen3_vl": _qwen_family(
        "Qwen3VLProcessor", "Qwen3VLForConditionalGeneration", _qwen(16, 65536, 16777216, HALF)
    ),
    "glm4v": _glm_family(
        "Glm4v",
        "Glm4vForConditionalGeneration",
        "Glm4vImageProcessor",
        {"size": {"shortest_edge": 12544, "longest_edge": 47040000}, "patch_size": 14, "merge_size": 2},
    ),
    "glm46v": _glm_family(
        "Glm46V",
        "Glm46VForConditionalGeneration",
        "Glm46VImageProcessor",
        {"size": {"shortest_edge": 12544, "longest_edge": 9633792}},
    ),
    "glm5_next": _glm_family(
        "Glm5Next",
        "Glm5NextForConditionalGeneration",
        "Glm5NextImageProcessor",
        {"patch_expand_factor": 1, "min_image_tokens": 16, "max_image_tokens": 8000},
    ),
    "kimi_k25": Family(
        processor_class="Kimi_K25Processor",
        image_class="Kimi_K25ImageProcessor",
        placeholder="<|media_pad|>",
        slot="<|media_begin|>image<|media_content|><|media_pad|><|media_end|>",
        architecture="Kimi_K25ForConditionalGeneration",
        image={
            "image_processor_type": "Kimi_K25ImageProcessor",
            **HALF,
            "size": {"max_height": 512, "max_width": 512},
            "max_patches": 16384,
            "patch_size": 14,
            "merge_size": 2,
        },
        tokens=("<|media_begin|>", "<|media_content|>", "<|media_end|>"),
        attributes={"image_token": "<|media_pad|>", "video_token": "<|kimi_k25_video_placeholder|>"},
        companions={"video_processor": "Kimi_K25VideoProcessor"},
        large=(*LARGE, ((7200, 20),)),
    ),
    "qwen3_omni_moe": Family(
        processor_class="Qwen3OmniMoeProcessor",
        image_class="Qwen2VLImageProcessor",
        placeholder="<|image_pad|>",
        slot=_QWEN_SLOT,
        architecture="Qwen3OmniMoeForConditionalGeneration",
        image=_qwen(16, 3136, 12845056, HALF),
        attributes={
            "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>",
            "audio_token": "<|audio_pad|>",
            "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
            "audio_bos_token": "<|audio_start|>",
            "audio_eos_token": "<|audio_end|>",
        },
        companions={
            "video_processor": "Qwen2VLVideoProcessor",
            "feature_extractor": "WhisperFeatureExtractor",
        },
    ),
    "minicpmv4_6": _minicpm("MiniCPMV4_6", {}),
    "minicpmv4_6_4x": _minicpm("MiniCPMV4_6", {"downsample_mode": "4x", "use_image_id": False}),
    "minicpmv4_7": _minicpm("MiniCPMV4_7", {"max_slice_nums": 4}),
    "pixtral": _pixtral("LlavaForConditionalGeneration", 1024, 16, 1),
    "mistral3": _pixtral("Mistral3ForConditionalGeneration", 1540, 14, 2),
    "gemma3": Family(
        processor_class="Gemma3Processor",
        image_class="Gemma3ImageProcessor",
        placeholder="<start_of_image>",
        slot="<start_of_image>",
        architecture="Gemma3ForConditionalGeneration",
        image={
            "image_processor_type": "Gemma3ImageProcessor",
            **HALF,
            "resample": 2,
            "size": {"height": 896, "width": 896},
            "do_pan_and_scan": None,
        },
        processor={"image_seq_length": 256},
        attributes={
            "boi_token": "<start_of_image>",
            "image_token": "<image_soft_token>",
            "eoi_token": "<end_of_image>",
        },
    ),
    "gemma4": Family(
        processor_class="Gemma4Processor",
        image_class="Gemma4ImageProcessor",
        placeholder="<|image|>",
        slot="<|image|>",
        architecture="Gemma4ForConditionalGeneration",
        image={"image_processor_type": "Gemma4ImageProcessor", "patch_size": 16, "max_soft_tokens": 280},
        attributes={
            "image_token": "<|image|>",
            "boi_token": "<|image>",
            "eoi_token": "<image|>",
            "audio_token": "<|audio|>",
            "boa_token": "<|audio>",
            "eoa_token": "<audio|>",
        },
        tokens=("<|video|>",),
        companions={
            "video_processor": "Gemma4VideoProcessor",
            "feature_extractor": "Gemma4AudioFeatureExtractor",
        },
        sizes=(*SIZES, ((3, 2000),), ((2000, 3),)),
    ),
    "llama4": Family(
        processor_class="Llama4Processor",
        image_class="Llama4ImageProcessor",
        placeholder="<|image|>",
        slot="<|image|>",
        architecture="Llama4ForConditionalGeneration",
        image={
            "image_processor_type": "Llama4ImageProcessor",
            **HALF,
            "resample": 2,
            "size": {"height": 336, "width": 336},
            "max_patches": 16,
        },
        tokens=(
            *("<|image_start|>", "<|image_end|>", "<|patch|>"),
            *("<|tile_x_separator|>", "<|tile_y_separator|>"),
        ),
        sizes=_TILED,
        large=(*LARGE, ((336, 5376),), ((337, 336),), ((5000, 335),), ((3, 9000),)),
    ),
    "llava_onevision": Family(
        processor_class="LlavaOnevisionProcessor",
        image_class="LlavaOnevisionImageProcessor",
        placeholder="<image>",
        slot="<image>",
        architecture="LlavaOnevisionForConditionalGeneration",
        image={
            "image_processor_type": "LlavaOnevisionImageProcessor",
            **CLIP,
            "size": {"height": 384, "width": 384},
            "image_grid_pinpoints": [[384 * a, 384 * b] for a in range(1, 7) for b in range(1, 7)],
        },
        processor={"num_image_tokens": 729, "vision_feature_select_strategy": "full"},
        tokens=("<video>",),
        companions={"video_processor": "LlavaOnevisionVideoProcessor"},
        sizes=_TILED,
    ),
    "deepseek_ocr2": Family(
        processor_class="DeepseekOcr2Processor",
        image_class="DeepseekOcr2ImageProcessor",
        placeholder="<image>",
        slot="<image>",
        architecture="DeepseekOcr2ForConditionalGeneration",
        image={"image_processor_type": "DeepseekOcr2ImageProcessor", **HALF},
        sizes=_TILED,
    ),
    "step3p7": Family(
        processor_class="Step3p7Processor",
        image_class="Step3p7ImageProcessor",
        placeholder="<im_patch>",
        slot="<im_patch>",
        architecture="Step3p7ForConditionalGeneration",
        image={"image_processor_type": "Step3p7ImageProcessor", **CLIP, "resample": 2},
        tokens=("<im_start>", "<im_end>", "<patch_start>", "<patch_end>", "<patch_newline>"),
        sizes=(*_TILED, ((20, 300),), ((3100, 700),), ((300, 1300),), ((610, 610), (90, 400))),
    ),
    "internvl": Family(
        processor_class="InternVLProcessor",
        image_class="GotOcr2ImageProcessor",
        placeholder="<IMG_CONTEXT>",
        slot="<IMG_CONTEXT>",
        architecture="InternVLForConditionalGeneration",
        image={
            "image_processor_type": "GotOcr2ImageProcessor",
            "image_mean": [0.485, 0.456, 0.406],
            "image_std": [0.229, 0.224, 0.225],
            "size": {"height": 448, "width": 448},
            "min_patches": 1,
            "max_patches": 12,
        },
        processor={"image_seq_length": 256},
        attributes={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
        companions={"video_processor": "InternVLVideoProcessor"},
        sizes=_TILED,
    ),
    "inkling": _inkling(None),
    "inkling_doubling": _inkling(2.0),
}
