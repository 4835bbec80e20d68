"""One request with eight images against the same batch in transformers' processors: CPU time, cold cache."""

import asyncio
import time
from pathlib import Path

from bench.local import pipeline, read
from bench.peers import Peer
from bench.table import Row
from bench.workloads import encode, photo, request_of, screenshot


def run(model_dir: Path, peers: list[Peer], repeats: int) -> list[Row]:
    """A row per peer."""
    images = [encode(photo(1080, 1920, seed), "JPEG") for seed in range(4)]
    images += [encode(screenshot(1080, 1920, seed), "PNG") for seed in range(4)]
    rows = []
    for peer in peers:
        ours = asyncio.run(_ours(model_dir, peer.parity, images, repeats))
        theirs = peer.batches(model_dir, [images], repeats)[0]
        rows.append(Row(f"batch of 8 at 1080p vs {peer.name}", ours, theirs))
    return rows


async def _ours(model_dir: Path, parity: str, images: list[bytes], repeats: int) -> list[float]:
    with pipeline(model_dir, parity=parity, pixel_cache_bytes=0) as preprocessor:
        request = read(request_of(images))
        times = []
        for _ in range(repeats + 1):
            start = time.process_time()
            result = await preprocessor.preprocess(request)
            times.append(time.process_time() - start)
            preprocessor.recycle(result)
    return times[1:]
