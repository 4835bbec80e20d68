"""The content key: what an item's tensors depend on, hashed.

Transport and spelling of the source are no part of it; the encoded bytes are, not the pixels.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from patchloom_kernels.cpu.sha256 import available, sha256

from patchloom_service.types import ImageOptions

Options: TypeAlias = "bool | int | float | str | ImageOptions | tuple[Options, ...] | None"


@dataclass(frozen=True, slots=True)
class Keyed:
    """All that a content key depends on. `policy` names the rules of decoding."""

    namespace: str
    encoded: bytes
    policy: str
    fingerprint: str
    options: Options
    dtype: str

    def head(self) -> bytes:
        """What stands before the encoded bytes."""
        shared = _framed(self.namespace, self.policy, self.fingerprint, self.options, self.dtype)
        return shared + len(self.encoded).to_bytes(8, "big")


def content_keys(items: Sequence[Keyed]) -> list[str]:
    """SHA-256 of each item, 64 hexadecimal digits, over its fields, each behind its length.

    Lengths are 8 bytes, big-endian. Releases the interpreter lock for the encoded bytes.
    """
    messages = [(item.head(), item.encoded) for item in items]
    if len(messages) > 1 and available():
        return sha256(messages)
    digests = []
    for head, encoded in messages:
        digest = hashlib.sha256(head)
        digest.update(encoded)
        digests.append(digest.hexdigest())
    return digests


def warm_up() -> None:
    """Compile what hashing needs compiled."""
    content_keys([Keyed("", b"", "", "", None, "")] * 2)


@lru_cache(maxsize=256)
def _framed(namespace: str, policy: str, fingerprint: str, options: Options, dtype: str) -> bytes:
    """All but the encoded bytes, which the items of a request mostly share."""
    fields = [
        text.encode("utf-8", "surrogatepass")
        for text in (namespace, policy, fingerprint, _canonical(options), dtype)
    ]
    return b"".join(part for field in fields for part in (len(field).to_bytes(8, "big"), field))


def _canonical(options: Options) -> str:
    return json.dumps(_plain(options), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain(options: Options) -> Any:
    if isinstance(options, ImageOptions):
        return asdict(options)
    if isinstance(options, tuple):
        return [_plain(option) for option in options]
    return options
