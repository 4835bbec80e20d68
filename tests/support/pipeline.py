"""The whole pipeline in the test's process, on checkpoints with small tokenizers that load at once."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import tokenizers
from patchloom_client.protocols import PROTOCOLS, apply_options
from patchloom_client.tensors import Response, read_response
from patchloom_kernels import backend
from patchloom_service.config import Config
from patchloom_service.loading import load_model
from patchloom_service.preprocessor import Preprocessor
from patchloom_service.servicer import typed
from patchloom_service.wire import read_request, write_response
from tokenizers import decoders, models, pre_tokenizers

from bench import checkpoints
from tests.oracles.families import FAMILIES as ORACLES
from tests.support.dialects import Picture
from tests.support.tokenizers import CACHE, build_tokenizer

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Served:
    """A template and the checkpoint family that it is served with.

    `results` says where the results of parallel calls stand: as they came (message), in the order of
    their calls (call); `inline` is false where images leave their place in the text.
    """

    name: str
    family: str
    template: str | None = None
    results: str = "message"
    inline: bool = True
    tokens: tuple[str, ...] = ()
    bos: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    image_processor: Mapping[str, Any] = field(default_factory=dict)


class Pipeline:
    """One model, served in this process. A context manager."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        config = Config(**{"device": "cpu", **settings})
        self.model = load_model(str(directory), config, "model")
        self._config = config
        self.preprocessor = Preprocessor(config, {"model": self.model}, backend.select("cpu"))
        self._runner = asyncio.Runner()

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.preprocessor.close()
        self._runner.close()

    def run(
        self, body: Mapping[str, Any], dialect: str = "chat", count: bool = False, **options: Any
    ) -> Response:
        """The answer to a body, pixels as uint8 levels; raises the service's and the converter's errors."""
        request = PROTOCOLS[dialect](body)
        request.model = "model"
        apply_options(request, {"encoding": "uint8", **options})
        return self.answer(read_request(request, limits=self._config), count)

    def answer(self, request: Any, count: bool = False) -> Response:
        """The answer to the service's own request."""
        work = self.preprocessor.count if count else self.preprocessor.preprocess
        try:
            return read_response(write_response(self._runner.run(work(request))))
        except ExceptionGroup as group:
            raise typed(group, "Preprocess") from group

    def text(self, ids: Sequence[int]) -> str:
        """Ids as text."""
        return self.model.tokenizer.decode(list(ids))


def levels(response: Response, index: int) -> list[int]:
    """The distinct uint8 levels of an item's pixels, ascending; 0 is what some families pad with."""
    found = {
        int(level)
        for tensor in response.item_tensors(index).values()
        if tensor.dtype == "uint8"
        for level in np.unique(tensor.array)
    }
    return sorted(found - {0})


def shows(response: Response, index: int, picture: Picture) -> bool:
    """Whether an item's own slice of the pixels, and its size, are those of a picture."""
    item = response.items[index]
    size = (item.size.height, item.size.width)
    return levels(response, index) == sorted(set(picture.colour)) and size == (picture.height, picture.width)


def check_contract(pipeline: Pipeline, response: Response, expected_items: int) -> None:
    """Counts, ranges and token types: ranges cover exactly the placeholder ids of the prompt."""
    ids = response.token_ids
    assert [item.index for item in response.items] == list(range(expected_items))
    covered: list[int] = []
    for item in response.items:
        positions = [p for r in item.ranges for p in range(r.offset, r.offset + r.length)]
        assert len(positions) == item.token_count > 0
        assert item.span.offset <= positions[0]
        assert positions[-1] < item.span.offset + item.span.length
        covered += positions
    assert covered == sorted(set(covered))
    media = {ids[position] for position in covered}
    assert [position for position, token in enumerate(ids) if token in media] == covered
    spans = {p for i in response.items for p in range(i.span.offset, i.span.offset + i.span.length)}
    written = {pipeline.model.tokenizer.control_id(s) for s in pipeline.model.spec.placeholders.values()}
    assert {position for position, token in enumerate(ids) if token in written} <= spans
    if response.token_types is not None and len(response.token_types):
        assert np.flatnonzero(response.token_types).tolist() == covered


def write_checkpoint(served: Served, directory: Path) -> Path:
    """The checkpoint of a family with a template and a tokenizer of single bytes."""
    if served.family in checkpoints.families():
        checkpoints.build_checkpoint(
            served.family,
            directory,
            template=served.template,
            config=served.config,
            image_processor=served.image_processor,
            cache_dir=CACHE,
        )
        _forget_ids(directory / "config.json")
        attributes: Mapping[str, str] = {}
        tokens = _spellings(checkpoints.tokenizer_of(served.family))
    else:
        oracle = ORACLES[served.family]
        directory.mkdir(parents=True, exist_ok=True)
        files = {
            "config.json": {"architectures": [oracle.architecture], **oracle.config},
            "preprocessor_config.json": oracle.image,
            "processor_config.json": oracle.processor,
        }
        for name, value in files.items():
            (directory / name).write_text(json.dumps(dict(value)), encoding="utf-8")
        (directory / "chat_template.jinja").write_text(served.template or "", encoding="utf-8")
        attributes, tokens = oracle.attributes, oracle.added
    bos = {"bos_token": served.bos} if served.bos else {}
    _write_tokenizer(directory, (*tokens, *served.tokens, *bos.values()), {**attributes, **bos})
    return directory


def plain(family: str) -> Served:
    """A family of the oracles under a template that writes texts and images one after the other."""
    template = (
        "{% for message in messages %}[{{ message.role }}]"
        "{% if message.content is string %}{{ message.content }}"
        "{% else %}{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}"
        "{% elif part.type == 'image' %}IMAGE{% endif %}{% endfor %}{% endif %}\n{% endfor %}"
    )
    return Served(family, family, template.replace("IMAGE", ORACLES[family].placeholder))


def _forget_ids(path: Path) -> None:
    """The ids of the real tokenizer, which the small one does not have."""
    config = json.loads(path.read_text(encoding="utf-8"))
    kept = {key: value for key, value in config.items() if not key.endswith("_token_id")}
    path.write_text(json.dumps(kept), encoding="utf-8")


@cache
def _spellings(family: str) -> tuple[str, ...]:
    state = json.loads((build_tokenizer(family) / "tokenizer.json").read_text(encoding="utf-8"))
    reserved = ("<|reserved", "<|unused_2000")
    return tuple(
        token["content"]
        for token in state["added_tokens"]
        if not token["content"].startswith(reserved) or token["content"] in _KEPT
    )


_KEPT = frozenset({"<|unused_200024|>", "<|unused_200053|>", "<|unused_200054|>"})


def _write_tokenizer(directory: Path, tokens: Sequence[str], attributes: Mapping[str, str]) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_tokens([tokenizers.AddedToken(t, special=True, normalized=False) for t in dict.fromkeys(tokens)])
    made.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **attributes}
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


ZOO_TOKENS = ("<|start|>", "<|end|>", "<|audio|>")


def zoo_source(name: str) -> str:
    """One of our own templates, its placeholders under the names of the Qwen line."""
    source = (ROOT / "data" / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    return source.replace("<|image|>", "<|image_pad|>").replace("<|video|>", "<|video_pad|>")


def _zoo(name: str, **facts: Any) -> Served:
    return Served(name, "qwen2_5_vl", zoo_source(name), tokens=ZOO_TOKENS, **facts)


# One tile instead of up to twelve: an image of any size is then one tile, which is fast.
ONE_TILE = {"max_patches": 1}

OWN: tuple[Served, ...] = (
    Served("own_qwen", "qwen2_5_vl"),
    Served("own_internvl", "internvl3", image_processor=ONE_TILE),
    Served("own_internvl_chat", "internvl_chat", config={"max_dynamic_patch": 1}),
    Served("own_glm", "glm5_next", results="call"),
    Served("own_kimi", "kimi_k25"),
    Served("inkling", "inkling"),
    *(
        _zoo(name)
        for name in (
            *("loop", "macros", "namespaces", "indexing", "stripped", "controls", "strict_system"),
            "separated",
        )
    ),
    _zoo("by_call", results="call"),
    _zoo("by_call_with_media", results="call"),
    _zoo("hoisted_behind", inline=False),
    _zoo("hoisted_front", inline=False),
)
"""Our own templates that carry tool images, and Inkling."""

OFFICIAL: tuple[Served, ...] = (
    Served("qwen2_5_vl", "qwen2_5_vl"),
    Served("qwen3_vl", "qwen3_vl"),
    Served("qwen3_5", "qwen3_5"),
    Served("qwen3_6", "qwen3_5"),
    Served("glm_5_3_flash", "glm5_next", results="call"),
    Served("glm_5_3_flash_earlier", "glm5_next", results="call"),
    Served("internvl_hf", "internvl3", image_processor=ONE_TILE),
)
"""The official templates that carry tool images, by the names of their files."""

REFUSING: tuple[Served, ...] = (
    Served("gemma4", "gemma4", bos="<bos>", tokens=("<|turn>", "<turn|>")),
    Served("gemma3", "gemma3", bos="<bos>"),
    Served("llava_next", "llava_onevision"),
    Served("minicpmv4_5_fallback", "qwen2_5_vl"),
    Served("qwen2_5_text", "qwen2_5_vl"),
)
"""The official templates that carry no tool images."""


def with_template(served: Served, read: Callable[[str], str]) -> Served:
    """The same with the template's text, by the `official` fixture."""
    return replace(served, template=read(served.name))
