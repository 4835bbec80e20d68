"""Many requests over shared memory while clients are killed at random: nothing may stay and nothing grow.

`python -m bench.soak --requests 2000 --workers 3`. It prints one JSON object and fails where a segment is
left, a lease is held, or the server's memory grew after the first quarter.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from patchloom_service.config import Config
from patchloom_service.loading import load_model
from patchloom_service.server import Server

from bench.checkpoints import build_checkpoint

ROOT = Path(__file__).resolve().parents[1]
SHM = Path("/dev/shm")

WORKER = """
import asyncio, io, random, sys
import numpy as np
from PIL import Image
from patchloom_client.client import AsyncClient
from patchloom_client.protocols import PROTOCOLS, apply_options

def request(rng):
    file = io.BytesIO()
    shape = (rng.randrange(56, 400), rng.randrange(56, 400), 3)
    pixels = np.random.default_rng(rng.randrange(1 << 30)).integers(0, 256, shape, np.uint8)
    Image.fromarray(pixels).save(file, "BMP")
    made = PROTOCOLS["chat"]({"messages": [{"role": "user", "content": "look"}]})
    made.conversation.messages[0].content.add().image.source.data = file.getvalue()
    apply_options(made, {"transport": "shared_memory"})
    return made

async def main():
    rng = random.Random(int(sys.argv[2]))
    held = []
    async with AsyncClient(sys.argv[1]) as client, client.stream() as stream:
        while True:
            ask = stream.preprocess if rng.random() < 0.5 else client.preprocess
            held.append(await ask(request(rng)))
            int(held[-1].tensors["pixel_values"].array[0].sum())
            print(flush=True)
            while held and (len(held) > 3 or rng.random() < 0.6):
                held.pop(rng.randrange(len(held))).close()

asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a soak saw; sizes in bytes."""

    requests: int
    kills: int
    seconds: float
    owners_lost: int
    leases_left: int
    segments_left: int
    held_left: int
    rss_after_a_quarter: int
    rss_at_the_end: int


async def soak(requests: int, workers: int, kill_every: int, seed: int = 0) -> Outcome:
    """Serves `requests` to `workers` processes, one of which dies about every `kill_every` answers."""
    config = Config(address="127.0.0.1:0", device="cpu", shm_bytes=256 << 20, pixel_cache_bytes=16 << 20)
    directory = build_checkpoint("qwen2_5_vl", ROOT / ".cache" / "checkpoints" / "qwen2_5_vl")
    server = Server(config, {"tiny": load_model(str(directory), config, "tiny")})
    address = f"127.0.0.1:{await server.start()}"
    rng, start = random.Random(seed), time.monotonic()
    done = kills = quarter = 0
    processes = [await _worker(address, seed + index) for index in range(workers)]
    readers = [asyncio.create_task(_count(process)) for process in processes]
    finished: list[asyncio.Task[int]] = []
    next_kill = kill_every

    def total() -> int:
        return sum(_lines.get(process.pid, 0) for process in processes) + done

    while total() < requests:
        await asyncio.sleep(0.02)
        if not quarter and total() >= requests // 4:
            quarter = resident()
        alive = [index for index, process in enumerate(processes) if _lines.get(process.pid)]
        if total() >= next_kill and alive:
            victim = rng.choice(alive)
            processes[victim].send_signal(signal.SIGKILL)
            finished.append(readers[victim])
            done += await readers[victim]
            _lines.pop(processes[victim].pid, None)
            kills += 1
            processes[victim] = await _worker(address, seed + workers + kills)
            readers[victim] = asyncio.create_task(_count(processes[victim]))
            next_kill = total() + rng.randint(kill_every // 2, kill_every * 3 // 2)
    reached = total()
    for process in processes:
        process.send_signal(signal.SIGKILL)
        await process.wait()
    await asyncio.gather(*readers)
    await _settle(server)
    gauges = server.transports.gauges()
    end, instance = resident(), server.transports.leases.instance
    await server.stop()
    return Outcome(
        requests=reached,
        kills=kills + workers,
        seconds=round(time.monotonic() - start, 1),
        owners_lost=int(gauges.get("patchloom_leases_owner_lost_total", 0)),
        leases_left=int(gauges["patchloom_leases"]),
        held_left=int(gauges["patchloom_shm_bytes"] - gauges["patchloom_shm_idle_bytes"]),
        segments_left=sum(instance in name for name in os.listdir(SHM)),
        rss_after_a_quarter=quarter,
        rss_at_the_end=end,
    )


_lines: dict[int, int] = {}


async def _worker(address: str, seed: int) -> asyncio.subprocess.Process:
    path = ":".join(str(ROOT / part) for part in ("proto", "kernels", "service", "clients"))
    command: Sequence[str] = (sys.executable, "-c", WORKER, address, str(seed))
    return await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path}
    )


async def _count(process: asyncio.subprocess.Process) -> int:
    """Answers that a worker got, until it dies."""
    assert process.stdout is not None
    count = 0
    async for _ in process.stdout:
        count += 1
        _lines[process.pid] = count
    await process.wait()
    return count


async def _settle(server: Server) -> None:
    end = time.monotonic() + 15
    while time.monotonic() < end:
        gauges = server.transports.gauges()
        if (
            not gauges["patchloom_leases"]
            and gauges["patchloom_shm_bytes"] == gauges["patchloom_shm_idle_bytes"]
        ):
            return
        await asyncio.sleep(0.1)


def resident() -> int:
    """Anonymous memory of this process; shared memory is bounded and counted apart."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024


def failures(outcome: Outcome) -> list[str]:
    """What must not be, in words."""
    grown = outcome.rss_at_the_end - outcome.rss_after_a_quarter
    return [
        *([f"{outcome.segments_left} files left"] if outcome.segments_left else []),
        *([f"{outcome.leases_left} leases left"] if outcome.leases_left else []),
        *([f"{outcome.held_left} bytes held"] if outcome.held_left else []),
        *([f"memory grew by {grown} bytes"] if grown > 96 << 20 else []),
    ]


def main() -> None:
    """Runs a soak and prints what it saw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--kill-every", type=int, default=40, metavar="ANSWERS")
    arguments = parser.parse_args()
    outcome = asyncio.run(soak(arguments.requests, arguments.workers, arguments.kill_every))
    print(json.dumps(asdict(outcome)))
    if found := failures(outcome):
        raise SystemExit("; ".join(found))


if __name__ == "__main__":
    main()
