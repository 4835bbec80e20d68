"""The content key: what an item's tensors depend on, hashed.

Transport and spelling of the source are no part of it; the encoded bytes are, not the pixels.
"""

import hashlib
import json
from dataclasses import asdict
from functools import lru_cache
from typing import Any, TypeAlias

from patchloom_service.types import ImageOptions

Options: TypeAlias = "bool | int | float | str | ImageOptions | tuple[Options, ...] | None"


def content_key(
    namespace: str, encoded: bytes, policy: str, fingerprint: str, options: Options, dtype: str
) -> str:
    """SHA-256, 64 hexadecimal digits, over the fields, each behind its length (8 bytes, big-endian).

    `policy` names the rules of decoding. Releases the interpreter lock for the encoded bytes.
    """
    digest = hashlib.sha256(_framed(namespace, policy, fingerprint, options, dtype))
    digest.update(len(encoded).to_bytes(8, "big"))
    digest.update(encoded)
    return digest.hexdigest()


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
