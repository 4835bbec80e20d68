"""The content key: what an item's tensors depend on, hashed.

Transport and spelling of the source are no part of it; the encoded bytes are, not the pixels.
"""

import hashlib
import json
from collections.abc import Mapping

from patchloom_service.types import ImageOptions, Json

DECODE_POLICY = "upright rgb8 v1"
"""Names how `decode` reads an image; it changes whenever the same file would give other pixels."""


def content_key(
    *,
    namespace: str,
    encoded: bytes,
    policy: str,
    fingerprint: str,
    options: Mapping[str, Json],
    dtype: str,
) -> str:
    """SHA-256, 64 hexadecimal digits, over the fields, each behind its length (8 bytes, big-endian).

    Releases the interpreter lock for the encoded bytes. `policy` is DECODE_POLICY and the background.
    """
    digest = hashlib.sha256()
    canonical = json.dumps(options, sort_keys=True, separators=(",", ":"), allow_nan=False)
    for text in (namespace, policy, fingerprint, canonical, dtype):
        field = text.encode("utf-8", "surrogatepass")
        digest.update(len(field).to_bytes(8, "big"))
        digest.update(field)
    digest.update(len(encoded).to_bytes(8, "big"))
    digest.update(encoded)
    return digest.hexdigest()


def size_options(options: ImageOptions | None) -> dict[str, Json]:
    """An item's size options as a field of its key; absent options equal empty ones."""
    options = options or ImageOptions()
    return {
        "detail": options.detail,
        "max_pixels": options.max_pixels,
        "min_pixels": options.min_pixels,
    }
