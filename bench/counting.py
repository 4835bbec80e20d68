"""`CountTokens` for fifteen images against a cold `Preprocess` of the same request: CPU time, in process."""

import asyncio
import time
from pathlib import Path

from bench.local import pipeline, read
from bench.table import Row
from bench.workloads import encode, photo, request_of


def run(model_dir: Path, repeats: int) -> list[Row]:
    """One row."""
    return [asyncio.run(_row(model_dir, repeats))]


async def _row(model_dir: Path, repeats: int) -> Row:
    images = [encode(photo(1080, 1920, seed), "JPEG") for seed in range(15)]
    with pipeline(model_dir, pixel_cache_bytes=0) as preprocessor:
        request = read(request_of(images))
        preprocessor.recycle(await preprocessor.preprocess(request))
        counted, computed = [], []
        for _ in range(repeats):
            start = time.process_time()
            await preprocessor.count(request)
            middle = time.process_time()
            result = await preprocessor.preprocess(request)
            end = time.process_time()
            preprocessor.recycle(result)
            counted.append(middle - start)
            computed.append(end - middle)
    return Row("CountTokens of 15 images vs Preprocess", counted, computed, least=50.0)
