"""Resident memory of a server over many distinct images: flat once its pools and caches are full."""

import asyncio
import statistics
from pathlib import Path

import numpy as np
from patchloom_client.client import AsyncClient
from patchloom_client.protocols import apply_options
from PIL import Image

from bench.serving import Served, serving
from bench.table import Row
from bench.workloads import encode, request_of

IMAGES = 10_000
_BATCH = 10
_GROWTH = 1.05
_CACHE = 8 << 20


def run(model_dir: Path, images: int = IMAGES) -> list[Row]:
    """Memory of the last quarter against that of the second one, which may grow by a twentieth."""
    with serving(model_dir, "--pixel-cache-bytes", str(_CACHE)) as served:
        samples = asyncio.run(_samples(served, images))
    quarter = max(len(samples) // 4, 1)
    before, after = samples[quarter : 2 * quarter], samples[-quarter:]
    row = Row(
        f"resident memory over {images} images vs warmed up",
        [statistics.median(after)],
        [statistics.median(before)],
        least=1 / _GROWTH,
        scale=1 / 2**20,
        unit="MiB",
    )
    return [row]


async def _samples(served: Served, images: int) -> list[float]:
    """Resident bytes after every ten images."""
    samples = []
    async with AsyncClient(served.address) as client:
        for start in range(0, images, _BATCH):
            await asyncio.gather(*(_send(client, seed) for seed in range(start, start + _BATCH)))
            samples.append(float(served.resident_bytes()))
    return samples


async def _send(client: AsyncClient, seed: int) -> None:
    drawn = np.random.default_rng(seed)
    height, width = (int(side) for side in drawn.integers(100, 420, 2))
    picture = Image.fromarray(drawn.integers(0, 256, (height, width, 3), np.uint8))
    request = request_of([encode(picture, ("PNG", "JPEG", "WEBP")[seed % 3])])
    apply_options(request, {"transport": ("inline", "shared_memory")[seed % 2]})
    (await client.preprocess(request)).close()
