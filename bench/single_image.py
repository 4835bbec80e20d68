"""Encoded image to Qwen2.5-VL patches (float32): CPU time against transformers' two backends, same bytes.

A row is printed only where the patches equal the peer's, bit for bit.
"""

import asyncio
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from patchloom_service.config import Config
from patchloom_service.loading import load_model
from patchloom_service.media.storage import prepare_process
from patchloom_service.preprocessor import Preprocessor
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
            times, digest = ours[index]
            if digest != theirs["sha256"]:
                raise SystemExit(
                    f"{image.name}: our {parity} patches differ from the {peer} backend's; no timing"
                )
            least = LEAST[peer] if image.name.startswith("1080p") and "WebP" not in image.name else None
            rows.append(Row(f"{image.name} vs {peer}", times, theirs["cpu_s"], least))
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


async def _ours(
    images: Sequence[EncodedImage], repeats: int, model_dir: Path, parity: str
) -> list[tuple[list[float], str]]:
    config = Config(
        device="cpu", parity=parity, pixel_cache_bytes=0, decode_threads=1, kernel_threads=1, render_threads=1
    )
    model = load_model(str(model_dir), config, "bench")
    from patchloom_kernels import backend

    preprocessor = Preprocessor(config, {"bench": model}, backend.select("cpu"))
    results = []
    for image in images:
        request = read_request(request_of([image.data]))
        first = await preprocessor.preprocess(request)
        digest = hashlib.sha256(first.tensors["pixel_values"].array.tobytes()).hexdigest()
        preprocessor.recycle(first)
        times: list[float] = []
        while len(times) < repeats or sum(times) < SECONDS:
            start = time.process_time()
            result = await preprocessor.preprocess(request)
            times.append(time.process_time() - start)
            preprocessor.recycle(result)
        results.append((times, digest))
    preprocessor.close()
    return results
