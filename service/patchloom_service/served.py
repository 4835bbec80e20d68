"""One served model: its spec with a tokenizer, a renderer and everything that its fingerprint covers."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from patchloom_service.chat.tokenize import Tokenizer
from patchloom_service.models.base import ModelSpec
from patchloom_service.types import Conversation, Encoding, MediaItem, Modality, OutputOptions, Prompt

DECODE_POLICY = "upright rgb8, alpha composited, 16 bit scaled, frame 0; v1"
"""Names how an image is read; it changes whenever the same file would give other pixels."""


class Renderer(Protocol):
    """Turns a normalized conversation into a prompt with one slot per item; thread-safe."""

    def render(self, conversation: Conversation, items: Sequence[MediaItem]) -> Prompt:
        """Raises TemplateRefused where an item has no slot that is certainly its own."""
        ...


@dataclass(frozen=True, slots=True)
class PixelSettings:
    """What one request asks of the pixels, defaults filled in."""

    parity: str
    dtype: str
    background: tuple[int, int, int]
    encoding: Encoding


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """SHA-256 in hex: of all that changes a resized pixel, and of all that changes a value or an id."""

    pixels: str
    whole: str


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """A model as it is served. `identity` has the hashes of template and tokenizer files."""

    name: str
    spec: ModelSpec
    tokenizer: Tokenizer
    renderer: Renderer
    identity: Mapping[str, str]
    info: Mapping[str, Any]
    vocabulary: int  # ids below it are tokens of the model

    @property
    def placeholder_ids(self) -> dict[Modality, int]:
        """The token that stands for one unexpanded item of each modality."""
        control = self.tokenizer.control
        return {modality: control[token] for modality, token in self.spec.placeholders.items()}

    def pixel_settings(self, output: OutputOptions, defaults: PixelSettings) -> PixelSettings:
        """The settings of a request over the server's defaults; the family may fix the dtype."""
        return PixelSettings(
            parity=output.parity or defaults.parity,
            dtype=self.spec.dtype or output.dtype or defaults.dtype,
            background=output.background or defaults.background,
            encoding=output.encoding,
        )

    @lru_cache(maxsize=256)  # noqa: B019 - models live as long as the process
    def fingerprints(self, settings: PixelSettings) -> Fingerprints:
        """Those under `settings`. The encoding changes no pixel, and a key is of one dtype."""
        pixels = _digest(
            {
                "family": self.spec.family,
                "settings": self.spec.settings,
                "parity": settings.parity,
                "background": settings.background,
                "decode": DECODE_POLICY,
                "dtype": settings.dtype,
            }
        )
        whole = _digest(
            {
                "pixels": pixels,
                "renderer": self.spec.renderer,
                "identity": dict(self.identity),
            }
        )
        return Fingerprints(pixels, whole)


def _digest(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=list)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
