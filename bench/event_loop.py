"""How long the event loop stalls: health is asked for every 10 ms while requests with large images run.

The server is a process of its own and the health checks come from another one than the requests, so that
neither waits for the work of the clients. The load runs several times, and once before: that pays for fresh
memory, which on some virtual machines takes longer than everything else.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from patchloom_client.client import AsyncClient
from patchloom_client.protocols import apply_options

from bench.serving import Served, serving
from bench.table import Row
from bench.workloads import encode, photo, request_of

_PERIOD = 0.01
_LOADS = 3
_REQUESTS = 32
_IMAGES = 4
_ARENA = 6 << 30  # all answers at a time
LIMITS = {"p99": 0.1, "worst": 0.25}


def run(model_dir: Path) -> list[Row]:
    """The p99 and the worst answer time of a health check per transport, against their limits."""
    images = [encode(photo(1536, 2170, seed), "JPEG") for seed in range(_IMAGES)]
    rows = []
    flags = ("--pixel-cache-bytes", "0", "--shm-bytes", str(_ARENA))
    with serving(model_dir, *flags) as served:
        for transport in ("shared_memory", "inline"):
            delays = _delays_under_load(served, images, transport)
            p99 = statistics.quantiles(delays, n=100, method="inclusive")[98]
            for name, value in (("p99", p99), ("worst", max(delays))):
                rows.append(Row(f"event-loop stall, {transport}, {name}", [value], [LIMITS[name]], least=1.0))
    return rows


def _delays_under_load(served: Served, images: list[bytes], transport: str) -> list[float]:
    asyncio.run(_load(served.address, images, transport, _REQUESTS))
    command = [sys.executable, "-m", "bench.event_loop", served.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as poller:
        assert poller.stdout is not None
        poller.stdout.readline()  # it polls
        for _ in range(_LOADS):
            asyncio.run(_load(served.address, images, transport, _REQUESTS))
        found, _ = poller.communicate("stop\n")
    delays: list[float] = json.loads(found)
    return delays


async def _load(address: str, images: list[bytes], transport: str, requests: int) -> None:
    async with AsyncClient(address) as client:

        async def one() -> None:
            request = request_of(images)
            apply_options(request, {"transport": transport, "dtype": "bfloat16"})
            (await client.preprocess(request)).close()

        await asyncio.gather(*(one() for _ in range(requests)))


async def _poll(address: str) -> list[float]:
    """Answer times until a line comes on the standard input; a late answer delays no later question."""
    stop = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    delays: list[float] = []
    async with grpc.aio.insecure_channel(address) as channel, asyncio.TaskGroup() as group:
        stub = health_pb2_grpc.HealthStub(channel)

        async def ask() -> None:
            start = time.perf_counter()
            await stub.Check(health_pb2.HealthCheckRequest())
            delays.append(time.perf_counter() - start)

        await ask()
        delays.clear()
        print("polling", flush=True)
        while not stop.done():
            group.create_task(ask())
            await asyncio.sleep(_PERIOD)
    return delays


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_poll(sys.argv[1]))))
