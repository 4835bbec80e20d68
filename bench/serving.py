"""A server in a process of its own, for benchmarks that must not share its interpreter."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from patchloom_client.client import Client
from patchloom_client.errors import Unavailable

_START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Served:
    """A running server."""

    address: str
    pid: int

    def resident_bytes(self) -> int:
        """Memory of the process that is in RAM now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def serving(model_dir: Path, *flags: str) -> Iterator[Served]:
    """A server of one model on a free loopback port, on a CPU; ended with the block."""
    address = f"127.0.0.1:{_free_port()}"
    command = [sys.executable, "-m", "patchloom_client.cli", "serve", "--model", str(model_dir)]
    command += ["--served-name", "bench", "--device", "cpu", "--address", address, *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        _wait(process, address)
        yield Served(address, process.pid)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def _wait(process: "subprocess.Popen[str]", address: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    with Client(address, timeout=10) as client:
        while True:
            try:
                client.list_models()
                return
            except Unavailable:
                if process.poll() is not None or time.monotonic() > deadline:
                    process.kill()
                    raise SystemExit(f"the server did not start:\n{process.communicate()[1]}") from None
                time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
