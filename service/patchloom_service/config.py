"""The service's settings: one frozen value, checked at construction, passed as an argument.

The flags of `patchloom serve` are made from these fields, so a default is written here and nowhere else.
"""

import math
from dataclasses import dataclass, field, fields
from typing import Any

from patchloom_kernels.layout import Parity

DTYPES = {
    "float32": "float32",
    "fp32": "float32",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
}
DEVICES = ("auto", "cuda", "cpu", "interpreter")
SHM_FALLBACKS = ("inline", "error")
SHM_READERS = ("user", "group", "all")


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True)
class Config:
    """All settings. `check` names the value that is wrong and what is allowed."""

    address: str = _setting("127.0.0.1:50055", "host:port to listen on")
    device: str = _setting("auto", "auto, cuda, cpu or interpreter")
    parity: str = _setting("aten_u8", "default parity: aten_u8, pillow12 or pillow13")
    dtype: str = _setting("float32", "default dtype of pixels: float32, bfloat16 or float16")
    background: str = _setting("#ffffff", "default colour that alpha is composited on, #rrggbb")

    max_items: int = _setting(256, "media items per request")
    max_encoded_bytes: int = _setting(64 << 20, "encoded bytes per media item")
    max_request_encoded_bytes: int = _setting(512 << 20, "encoded bytes per request")
    max_image_pixels: int = _setting(64_000_000, "pixels per image, decided before decoding")
    max_request_pixels: int = _setting(512_000_000, "pixels per request, decided before decoding")
    max_prompt_tokens: int = _setting(1 << 20, "tokens of the expanded prompt")
    max_tool_results: int = _setting(4096, "tool results per turn")
    max_text_bytes: int = _setting(16 << 20, "UTF-8 bytes of all text of a request")
    max_message_bytes: int = _setting(1 << 30, "bytes of one gRPC message, both ways")
    template_steps: int = _setting(10_000_000, "steps a chat template may take")
    max_template_output: int = _setting(64 << 20, "characters a chat template may write")

    queue_length: int = _setting(256, "requests waiting or running, more are refused")
    decode_threads: int = _setting(2, "images decoded at a time")
    render_threads: int = _setting(2, "conversations rendered at a time")
    kernel_threads: int = _setting(2, "images resized at a time on a CPU")
    request_timeout: float = _setting(300.0, "seconds a request may take without a deadline of its own")
    drain_timeout: float = _setting(30.0, "seconds that running requests have after SIGTERM")
    pixel_cache_bytes: int = _setting(512 << 20, "bytes of images kept, on a GPU in its memory; 0 for none")
    segment_cache_bytes: int = _setting(128 << 20, "bytes of token segments kept; 0 switches the memo off")
    batch_bytes: int = _setting(256 << 20, "source bytes that close a batch of images")
    batch_wait: float = _setting(0.002, "seconds a batch waits for more images, on a GPU")
    device_pool_bytes: int = _setting(16 << 30, "GPU memory of the batches in work")
    max_inflight_bytes: int = _setting(8 << 30, "bytes of decoded images and tensors in work")
    max_unsent_bytes: int = _setting(512 << 20, "bytes of inline responses in memory until they are sent")

    allow_fetch: tuple[str, ...] = _setting((), "host whose https URLs may be fetched; repeatable")
    fetch_timeout: float = _setting(10.0, "seconds to fetch one URL")
    fetch_redirects: int = _setting(3, "redirects followed per URL")

    shm_bytes: int = _setting(4 << 30, "bound of the shared-memory arena")
    shm_fallback: str = _setting("inline", "what a full arena does: inline or error")
    shm_readers: str = _setting("user", "whose processes may map shared memory: user, group or all")
    lease_time: float = _setting(60.0, "seconds that a lease lasts unless renewed")
    cuda_ipc_bytes: int = _setting(0, "bound of the CUDA memory for executors; 0 switches CUDA IPC off")

    stream_requests: int = _setting(64, "requests in flight per stream, more are refused")
    stream_bytes: int = _setting(1 << 30, "bytes of unread tensors per stream")
    stream_stall: float = _setting(60.0, "seconds that a stream's client may leave an answer unread")
    chunk_bytes: int = _setting(1 << 20, "bytes of a tensor chunk; larger tensors of a stream are cut")

    metrics_address: str = _setting("", "host:port that answers GET /metrics over HTTP; empty for none")

    def __post_init__(self) -> None:
        _one_of("device", self.device, DEVICES)
        _one_of("parity", self.parity, tuple(p.value for p in Parity))
        _one_of("dtype", self.dtype, tuple(DTYPES))
        _one_of("shm_fallback", self.shm_fallback, SHM_FALLBACKS)
        _one_of("shm_readers", self.shm_readers, SHM_READERS)
        object.__setattr__(self, "dtype", DTYPES[self.dtype])
        parse_colour(self.background)
        for item in fields(self):
            value = getattr(self, item.name)
            least = 0 if item.name in _MAY_BE_ZERO else 1
            if isinstance(value, int) and value < least:
                raise ValueError(f"{item.name} must be at least {least}, got {value}")
            if isinstance(value, float):
                _check_seconds(item.name, value)
        for host in self.allow_fetch:
            if not host.strip(".") or any(c in host for c in "/@ ?#"):
                raise ValueError(
                    f"allow_fetch takes a host such as example.com or .example.com, got {host!r}"
                )


_MAY_BE_ZERO = frozenset(
    {"pixel_cache_bytes", "segment_cache_bytes", "fetch_redirects", "cuda_ipc_bytes", "batch_wait"}
)


def _check_seconds(name: str, value: float) -> None:
    if not math.isfinite(value) or value < 0 or (value == 0 and name not in _MAY_BE_ZERO):
        raise ValueError(f"{name} must be a positive number of seconds, got {value}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def parse_colour(text: str) -> tuple[int, int, int]:
    """The (red, green, blue) of "#rrggbb"."""
    digits = text.removeprefix("#")
    if len(digits) != 6 or any(c not in "0123456789abcdefABCDEF" for c in digits):
        raise ValueError(f"a colour is written #rrggbb, got {text!r}")
    value = int(digits, 16)
    return value >> 16, value >> 8 & 255, value & 255
