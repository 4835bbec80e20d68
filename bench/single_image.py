"""Encoded image to Qwen2.5-VL patches (float32): CPU time against transformers' two backends, same bytes.

The promised rows are what the peer's image processor does: bytes in, patches out. The rows of whole requests
have the content key, the text and the hand-overs of the pipeline too, which the peer has not. A row is
printed only where the patches equal the peer's, bit for bit.
"""

import asyncio
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from patchloom_kernels import backend
from patchloom_kernels.cpu.resize import resize_patchify
from patchloom_kernels.layout import Parity
from patchloom_kernels.normalize import Dtype
from patchloom_service.config import Config
from patchloom_service.loading import load_model
from patchloom_service.media.decode import decode
from patchloom_service.media.probe import probe
from patchloom_service.media.storage import prepare_process
from patchloom_service.models.base import ModelSpec
from patchloom_service.preprocessor import Preprocessor
from patchloom_service.types import ImageOptions, Request
from patchloom_service.wire import read_request

from bench.checkpoints import ROOT, build_checkpoint
from bench.table import Row
from bench.workloads import EncodedImage, request_of

ORACLES = ROOT / ".venv-oracles" / "bin" / "python"
LEAST = {"pil": 8.0, "torchvision": 5.0}
"""The ratios promised at 1080p."""

SECONDS = 0.5
"""How long either side is measured at least, whatever the repeats: a moment may be a bad one."""

PEERS = {"pil": (sys.executable, "pillow13"), "torchvision": (str(ORACLES), "aten_u8")}


def run(images: Sequence[EncodedImage], repeats: int) -> list[Row]:
    """One row per image and peer; a peer whose environment is missing is left out."""
    prepare_process()
    torch.set_num_threads(1)
    model_dir = build_checkpoint("qwen2_5_vl", ROOT / ".cache" / "bench" / "qwen2_5_vl")
    rows = []
    for peer, (python, parity) in PEERS.items():
        if not Path(python).exists():
            print(f"{peer}: no environment at {python}; run `make oracles`")
            continue
        report = _peer(peer, python, images, repeats, model_dir)
        ours = asyncio.run(_ours(images, repeats, model_dir, parity))
        for index, image in enumerate(images):
            theirs = report[str(index)]
            own = ours[index]
            if set(own.digests) != {theirs["sha256"]}:
                raise SystemExit(
                    f"{image.name}: our {parity} patches differ from the {peer} backend's; no timing"
                )
            promised = image.name.startswith("1080p") and "WebP" not in image.name
            least = LEAST[peer] if promised else None
            rows.append(Row(f"{image.name} vs {peer}", own.pixels, theirs["cpu_s"], least))
            rows.append(Row(f"{image.name}, whole request vs {peer}", own.request, theirs["cpu_s"]))
    return rows


def _peer(
    peer: str, python: str, images: Sequence[EncodedImage], repeats: int, model_dir: Path
) -> dict[str, dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder:
        for index, image in enumerate(images):
            (Path(folder) / f"{index}.bin").write_bytes(image.data)
        settings = (model_dir / "preprocessor_config.json").read_text()
        (Path(folder) / "settings.json").write_text(settings)
        command = [python, str(ROOT / "bench" / "peer.py"), peer, folder, str(repeats), str(SECONDS)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    files: dict[str, dict[str, object]] = json.loads(done.stdout.splitlines()[-1])["files"]
    return files


@dataclass(frozen=True, slots=True)
class _Measured:
    """CPU seconds of each repeat, and the SHA-256 of the patches of both ways."""

    pixels: list[float]
    request: list[float]
    digests: tuple[str, str]


async def _ours(
    images: Sequence[EncodedImage], repeats: int, model_dir: Path, parity: str
) -> list[_Measured]:
    config = Config(
        device="cpu", parity=parity, pixel_cache_bytes=0, decode_threads=1, kernel_threads=1, render_threads=1
    )
    model = load_model(str(model_dir), config, "bench")
    preprocessor = Preprocessor(config, {"bench": model}, backend.select("cpu"))
    results = []
    for image in images:
        request = read_request(request_of([image.data]))
        first = await preprocessor.preprocess(request)
        patches = first.tensors["pixel_values"].array
        out = np.empty(patches.size, np.float32)

        async def whole(request: Request = request) -> None:
            preprocessor.recycle(await preprocessor.preprocess(request))

        async def pixels(data: bytes = image.data, out: npt.NDArray[np.float32] = out) -> None:
            _patches(data, model.spec, config, out)

        await pixels()
        digests = hashlib.sha256(patches.tobytes()).hexdigest(), hashlib.sha256(out.tobytes()).hexdigest()
        preprocessor.recycle(first)
        results.append(_Measured(await _timed(pixels, repeats), await _timed(whole, repeats), digests))
    preprocessor.close()
    return results


async def _timed(work: Callable[[], Awaitable[None]], repeats: int) -> list[float]:
    times: list[float] = []
    while len(times) < repeats or sum(times) < SECONDS:
        start = time.process_time()
        await work()
        times.append(time.process_time() - start)
    return times


def _patches(data: bytes, spec: ModelSpec, config: Config, out: npt.NDArray[np.float32]) -> None:
    """The pixel path of the service on one thread: header, plan, decode, patches into reused memory."""
    header, parity = probe(data, config.max_image_pixels), Parity(config.parity)
    layout = spec.layout([spec.plan_image(header.size, ImageOptions(), 1)])
    pixels = decode(data, header)
    resize_patchify([pixels], layout.pixels[0].jobs, spec.table(parity), out, Dtype.FLOAT32, parity)
