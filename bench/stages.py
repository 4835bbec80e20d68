"""The stages of one 1080p image, each against who else does it, in this process on one thread: CPU time.

Decoding and resizing against Pillow, resizing against torch's native uint8 antialias, the layout against
transformers' processor with its resizing switched off. Bytes are compared before anything is timed.
"""

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from patchloom_kernels.cpu.resize import resize_patchify
from patchloom_kernels.layout import Job, Parity, PatchLayout, Piece
from patchloom_kernels.normalize import Dtype, NormalizeTable
from patchloom_service.config import Config
from patchloom_service.loading import load_model
from patchloom_service.media.decode import decode
from patchloom_service.media.probe import probe
from patchloom_service.media.storage import prepare_process
from PIL import Image
from transformers import Qwen2VLImageProcessorPil

from bench.table import Row
from bench.workloads import encode, photo, screenshot

SOURCE, TARGET = (1080, 1920), (1092, 1932)
QWEN = PatchLayout((14, 14), merge=2, temporal=2)
Pixels = npt.NDArray[np.uint8]


def run(model_dir: Path, repeats: int) -> list[Row]:
    """One row per stage and peer."""
    prepare_process()
    torch.set_num_threads(1)
    table = load_model(str(model_dir), Config(device="cpu"), "bench").spec.table(Parity.PILLOW13)
    picture = photo(*SOURCE)
    pixels = np.array(picture)
    resized = np.asarray(picture.resize(TARGET[::-1], Image.Resampling.BICUBIC))
    planes = torch.from_numpy(pixels).permute(2, 0, 1)[None].contiguous()
    processor = Qwen2VLImageProcessorPil.from_pretrained(str(model_dir), do_resize=False)
    compared = [
        (f"decode, {name}, vs Pillow", *_decoders(data), np.array_equal) for name, data in files().items()
    ]
    compared += [
        (
            "resize to uint8 vs Pillow",
            _resizer(pixels, Parity.PILLOW13),
            lambda: np.asarray(picture.resize(TARGET[::-1], Image.Resampling.BICUBIC)),
            np.array_equal,
        ),
        (
            "resize to uint8 vs torch",
            _resizer(pixels, Parity.ATEN_U8),
            lambda: torch.nn.functional.interpolate(planes, TARGET, mode="bicubic", antialias=True),
            lambda ours, theirs: np.array_equal(ours, theirs[0].permute(1, 2, 0).numpy()),
        ),
        (
            "normalise and lay out vs transformers",
            _layouter(resized, table),
            lambda: processor([resized], return_tensors="np")["pixel_values"],
            lambda ours, theirs: np.array_equal(ours, theirs.reshape(-1)),
        ),
    ]
    rows = []
    for name, ours, theirs, equal in compared:
        if not equal(ours(), theirs()):
            raise SystemExit(f"{name}: the bytes differ; no timing")
        rows.append(Row(name, timed(ours, repeats), timed(theirs, repeats)))
    return rows


def files() -> dict[str, bytes]:
    """The encoded images."""
    picture = photo(*SOURCE)
    return {
        "JPEG photo": encode(picture, "JPEG"),
        "PNG screenshot": encode(screenshot(*SOURCE), "PNG"),
        "PNG photo": encode(picture, "PNG"),
    }


def timed(function: Callable[[], Any], repeats: int) -> list[float]:
    """CPU seconds of every repeat."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return times


def _decoders(data: bytes) -> tuple[Callable[[], Pixels], Callable[[], Pixels]]:
    header = probe(data, 1 << 28)
    return (
        lambda: decode(data, header)[..., :3],
        lambda: np.asarray(Image.open(io.BytesIO(data)).convert("RGB")),
    )


def _resizer(pixels: Pixels, parity: Parity) -> Callable[[], Pixels]:
    piece = Piece(SOURCE, TARGET, TARGET, PatchLayout(TARGET, columns="tyxc"))
    out = np.empty((*TARGET, 3), np.uint8)

    def resize() -> Pixels:
        job = Job.contiguous(0, piece, 0)
        resize_patchify([pixels], [job], None, out.reshape(-1), Dtype.UINT8, parity)
        return out

    return resize


def _layouter(resized: Pixels, table: NormalizeTable) -> Callable[[], npt.NDArray[np.float32]]:
    piece = Piece(TARGET, TARGET, TARGET, QWEN)
    out = np.empty(piece.rows * QWEN.row_size(), np.float32)

    def lay_out() -> npt.NDArray[np.float32]:
        job = Job.contiguous(0, piece, 0)
        resize_patchify([resized], [job], table, out, Dtype.FLOAT32, Parity.PILLOW13)
        return out

    return lay_out
