"""Eight concurrent requests: over shared memory from a server in its own process, against in-process calls.

`python -m bench.bench_transport`. Rounds of both alternate, so that a busy machine slows both; the pixel
cache is off. Appends a row to results/transport.csv.
"""

import argparse
import asyncio
import csv
import io
import platform
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
from patchloom_client.client import AsyncClient
from patchloom_client.protocols import PROTOCOLS, apply_options
from patchloom_kernels import backend
from patchloom_proto import preprocess_pb2 as pb
from patchloom_service.config import Config
from patchloom_service.loading import load_model
from patchloom_service.media.storage import prepare_process
from patchloom_service.preprocessor import Preprocessor
from patchloom_service.wire import read_request
from PIL import Image

from bench.checkpoints import build_checkpoint
from tests.integration.runner.launch import service

ROOT = Path(__file__).resolve().parents[1]
CONCURRENT = 8


def request(seed: int, transport: str) -> pb.PreprocessRequest:
    """A 1920x1080 JPEG of smooth noise."""
    small = np.random.default_rng(seed).integers(0, 256, (68, 120, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize((1920, 1080), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    made = PROTOCOLS["chat"]({"messages": [{"role": "user", "content": "look"}]})
    made.conversation.messages[0].content.add().image.source.data = file.getvalue()
    apply_options(made, {"transport": transport, "dtype": "float32"})
    return made


async def measure(rounds: int) -> tuple[list[float], list[float]]:
    """Wall seconds of each round: (in process, over shared memory)."""
    prepare_process()
    config = Config(device="cpu", pixel_cache_bytes=0)
    directory = build_checkpoint("qwen2_5_vl", ROOT / ".cache" / "checkpoints" / "qwen2_5_vl")
    model = load_model(str(directory), config, "tiny")
    preprocessor = Preprocessor(config, {"tiny": model}, backend.select("cpu"))
    requests = [request(seed, "shared_memory") for seed in range(CONCURRENT)]
    with service(directory, "--pixel-cache-bytes", "0") as served:
        async with AsyncClient(served.address) as client:

            async def local(message: pb.PreprocessRequest) -> None:
                parsed = await asyncio.to_thread(read_request, message)
                preprocessor.recycle(await preprocessor.preprocess(parsed))

            async def remote(message: pb.PreprocessRequest) -> None:
                (await client.preprocess(message)).close()

            for warm in (local, remote, local, remote):
                await _round(warm, requests)
            pairs = [(await _round(local, requests), await _round(remote, requests)) for _ in range(rounds)]
    preprocessor.close()
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


async def _round(
    ask: Callable[[pb.PreprocessRequest], Awaitable[None]], requests: list[pb.PreprocessRequest]
) -> float:
    start = time.perf_counter()
    await asyncio.gather(*(ask(message) for message in requests))
    return time.perf_counter() - start


def main() -> None:
    """Prints and records the percentiles and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    local, remote = asyncio.run(measure(parser.parse_args().rounds))
    names = ("p20", "p50", "p80")
    row = {"version": version("patchloom"), "device": platform.processor() or "cpu", "date": date.today()}
    for name, values in (("in_process", local), ("shared_memory", remote)):
        cuts = statistics.quantiles(values, n=5)
        chosen = (cuts[0], statistics.median(values), cuts[-1])
        row |= {f"{name}_{p}_ms": round(v * 1000, 1) for p, v in zip(names, chosen, strict=True)}
    ratios = [b / a for a, b in zip(local, remote, strict=True)]
    row["ratio_p50"] = round(statistics.median(ratios), 3)
    print(row)
    results = Path(__file__).resolve().parent / "results" / "transport.csv"
    results.parent.mkdir(exist_ok=True)
    fresh = not results.exists()
    with results.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        if fresh:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
