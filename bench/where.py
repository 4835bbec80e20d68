"""Where the CPU time of one request with a 1080p image goes: `python -m bench.where`, printed as markdown.

Every line but the last is measured by itself on the same input; the last is what the whole request takes
beyond them: the event loop, the hand-over between threads, the result.
"""

import asyncio
import hashlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit
from patchloom_kernels.cpu import compiled, resize
from patchloom_kernels.cpu.resize import resize_patchify
from patchloom_kernels.layout import Job, Parity, Piece
from patchloom_kernels.normalize import Dtype
from patchloom_service.config import Config
from patchloom_service.loading import load_model
from patchloom_service.media.decode import decode
from patchloom_service.media.probe import probe
from patchloom_service.types import Request

from bench import stages
from bench.checkpoints import ROOT, build_checkpoint
from bench.local import pipeline, read
from bench.stages import QWEN, SOURCE, TARGET
from bench.workloads import request_of

_REPEATS = 41
MODEL = ROOT / ".cache" / "bench" / "qwen2_5_vl"


def main() -> None:
    """Prints one table per file."""
    build_checkpoint("qwen2_5_vl", MODEL)
    for name, data in stages.files().items():
        print(
            f"## {name}, {len(data)} bytes, to Qwen2.5-VL float32\n\n| part | ms | share |\n|---|---:|---:|"
        )
        parts = _parts(data)
        whole = asyncio.run(_whole(data))
        parts["the rest"] = whole - sum(parts.values())
        for part, ms in parts.items():
            print(f"| {part} | {ms:.2f} | {100 * ms / whole:.0f} % |")
        print(f"| **whole** | **{whole:.2f}** | |\n")


def _ms(function: Callable[[], object]) -> float:
    return statistics.median(stages.timed(function, _REPEATS)) * 1000


def _parts(data: bytes) -> dict[str, float]:
    header = probe(data, 1 << 28)
    pixels = decode(data, header)
    table = load_model(str(MODEL), Config(device="cpu"), "bench").spec.table(Parity.ATEN_U8)
    piece = Piece(SOURCE, TARGET, TARGET, QWEN)
    job = Job.contiguous(0, piece, 0)
    out = np.empty(piece.rows * QWEN.row_size(), np.float32)
    whole = _ms(lambda: resize_patchify([pixels], [job], table, out, Dtype.FLOAT32, Parity.ATEN_U8))
    horizontal = _horizontal(pixels, piece)
    return {
        "decode": _ms(lambda: decode(data, header)),
        "horizontal pass": horizontal,
        "vertical pass, normalise, write 50 MB of patches": whole - horizontal,
        "content key (SHA-256)": _ms(lambda: hashlib.sha256(data).digest()),
        "text: probe, render, tokenize, expand": asyncio.run(_count(data)),
    }


def _horizontal(pixels: npt.NDArray[np.uint8], piece: Piece) -> float:
    """The horizontal pass alone, in steps of the rows that the kernel makes together."""
    columns = resize._from_zero(resize._window(piece, 1, Parity.ATEN_U8)[1])
    height, pitch = pixels.shape[0] // compiled.ROWS * compiled.ROWS, pixels.strides[0]
    rows = (pixels.ctypes.data + np.arange(height) * pitch).reshape(-1, compiled.ROWS)
    ring = np.empty((compiled.ROWS, len(columns.first)), np.uint32)

    @njit(nogil=True)
    def run(rows: Any, columns: Any, to: Any) -> None:
        for i in range(rows.shape[0] - 1):  # behind the last row there is no room to read
            compiled._narrow_columns_rgb(rows[i], rows.shape[1], columns, to)

    run(rows, columns, ring.ctypes.data)
    return _ms(lambda: run(rows, columns, ring.ctypes.data))


async def _count(data: bytes) -> float:
    """CPU milliseconds of everything but the pixels, without the content key."""
    key = _ms(lambda: hashlib.sha256(data).digest())
    with pipeline(MODEL, pixel_cache_bytes=0) as preprocessor:
        request = read(request_of([data]))
        times = []
        for _ in range(_REPEATS):
            start = time.process_time()
            await preprocessor.count(request)
            times.append(time.process_time() - start)
    return statistics.median(times) * 1000 - key


async def _whole(data: bytes) -> float:
    settings = {"decode_threads": 1, "kernel_threads": 1, "render_threads": 1}
    with pipeline(MODEL, pixel_cache_bytes=0, parity="aten_u8", **settings) as preprocessor:
        request: Request = read(request_of([data]))
        times = []
        for _ in range(_REPEATS):
            start = time.process_time()
            preprocessor.recycle(await preprocessor.preprocess(request))
            times.append(time.process_time() - start)
    return statistics.median(times) * 1000


if __name__ == "__main__":
    main()
