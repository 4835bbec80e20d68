"""Concurrent requests over shared memory and inline, against the same requests in process: wall time a round.

Rounds alternate with those in process, so that a busy machine slows both. The pixel cache is off.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from patchloom_client.client import AsyncClient
from patchloom_client.protocols import apply_options
from patchloom_proto import preprocess_pb2 as pb
from patchloom_service.preprocessor import Preprocessor

from bench.local import pipeline, read
from bench.serving import serving
from bench.table import Row
from bench.workloads import encode, photo, request_of

_LEAST = 1 / 1.10
_LOADS = ((1, 1), (8, 1), (32, 1), (1, 4), (8, 4))  # (concurrent requests, images in each)
_TRANSPORTS = ("shared_memory", "inline")
_SHM_BYTES = 6 << 30  # so that no answer falls back to inline
_PROMISED = ("shared_memory", 8, 1)
_WARM = 2  # rounds before, in which memory is made
_ROUNDS = {"shared_memory": 4, "inline": 1}  # for each repeat
Call = Callable[[pb.PreprocessRequest], Awaitable[None]]


def run(model_dir: Path, repeats: int) -> list[Row]:
    """A row per transport and concurrency; the promised ratio is that of shared memory at 8."""
    images = [encode(photo(1080, 1920, seed), "JPEG") for seed in range(8)]
    flags = ("--pixel-cache-bytes", "0", "--shm-bytes", str(_SHM_BYTES))
    with pipeline(model_dir, pixel_cache_bytes=0) as preprocessor, serving(model_dir, *flags) as served:
        return asyncio.run(_rows(served.address, preprocessor, images, repeats))


async def _rows(address: str, preprocessor: Preprocessor, images: Sequence[bytes], repeats: int) -> list[Row]:
    rows = []
    async with AsyncClient(address) as client:
        remote, local = _remote(client), _local(preprocessor)
        for concurrency, each in _LOADS:
            requests = [
                request_of([images[(i + j) % len(images)] for j in range(each)]) for i in range(concurrency)
            ]
            for transport in _TRANSPORTS[: 1 if each > 1 else 2]:
                asked = [_over(transport, request) for request in requests]
                rounds = _ROUNDS[transport] * repeats
                ours, theirs = await _alternating(
                    rounds, partial(_round, remote, asked), partial(_round, local, requests)
                )
                least = _LEAST if (transport, concurrency, each) == _PROMISED else None
                load = f"{concurrency} x {each} images" if each > 1 else f"{concurrency} x 1 image"
                rows.append(Row(f"{load} over {transport} vs in process", ours, theirs, least))
    return rows


async def _alternating(
    rounds: int, ours: Callable[[], Awaitable[float]], theirs: Callable[[], Awaitable[float]]
) -> tuple[list[float], list[float]]:
    """The times of both, one after the other; the first rounds, in which memory is made, are left out."""
    times = [(await ours(), await theirs()) for _ in range(rounds + _WARM)]
    return [own for own, _ in times[_WARM:]], [other for _, other in times[_WARM:]]


async def _round(call: Call, requests: Sequence[pb.PreprocessRequest]) -> float:
    start = time.perf_counter()
    await asyncio.gather(*(call(request) for request in requests))
    return time.perf_counter() - start


def _over(transport: str, message: pb.PreprocessRequest) -> pb.PreprocessRequest:
    request = pb.PreprocessRequest()
    request.CopyFrom(message)
    apply_options(request, {"transport": transport})
    return request


def _remote(client: AsyncClient) -> Call:
    async def call(message: pb.PreprocessRequest) -> None:
        (await client.preprocess(message)).close()

    return call


def _local(preprocessor: Preprocessor) -> Call:
    async def call(message: pb.PreprocessRequest) -> None:
        preprocessor.recycle(await preprocessor.preprocess(read(message)))

    return call
