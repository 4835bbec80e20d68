"""Starts what the runner needs: a service and eight ranks, each in processes of their own."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from patchloom_proto import preprocess_pb2 as pb

ROOT = Path(__file__).resolve().parents[3]
RANKS = 8


def environment() -> dict[str, str]:
    """That of a process that finds the packages and keeps to one thread."""
    path = [str(ROOT), *(str(ROOT / part) for part in ("proto", "kernels", "service", "clients"))]
    return os.environ | {
        "PYTHONPATH": ":".join(path),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


@dataclass(frozen=True, slots=True)
class Service:
    """A running `patchloom serve`."""

    address: str
    metrics_address: str

    def metrics(self) -> dict[str, float]:
        """What GET /metrics answers, by name with labels."""
        with urlopen(f"http://{self.metrics_address}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@contextmanager
def service(model: Path, *flags: str) -> Iterator[Service]:
    """The service on free ports, in a process of its own; its log follows on a failure."""
    command = [sys.executable, "-m", "patchloom_client.cli", "serve", "--model", str(model)]
    command += ["--served-name", "tiny", "--address", "127.0.0.1:0", "--device", "cpu"]
    command += ["--metrics-address", "127.0.0.1:0", *flags]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        found: dict[str, str] = {}
        for line in process.stderr:
            log.write(line)
            found |= {m[1]: m[2] for m in re.finditer(r"(serving|metrics) .*?on (127\.0\.0\.1:\d+)", line)}
            if "serving" in found:
                break
        assert "serving" in found, log.seek(0) or log.read()
        try:
            yield Service(found["serving"], found["metrics"])
        finally:
            process.terminate()
            process.communicate(timeout=30)


class Ranks:
    """Eight ranks, addressed together."""

    def __init__(self, connections: list[Connection], facts: list[dict[str, Any]], pids: list[int]) -> None:
        self._connections = connections
        self.facts = facts
        self.pids = pids

    def send(
        self, command: dict[str, Any], response: pb.PreprocessResponse, without: int = -1
    ) -> tuple[list[dict[str, Any]], bytes]:
        """The answers of all ranks but `without`, in order, and the logits of rank 0."""
        message = response.SerializeToString()
        for connection in self._connections:
            connection.send_bytes(json.dumps(command).encode())
            connection.send_bytes(message)
        found = []
        logits = b""
        for rank, connection in enumerate(self._connections):
            if rank != without:
                found.append(json.loads(connection.recv_bytes()))
                logits = connection.recv_bytes() or logits
        return found, logits


@contextmanager
def ranks(model: Path) -> Iterator[Ranks]:
    """The eight ranks of a model directory, ready to serve."""
    with tempfile.TemporaryDirectory() as directory:
        socket = f"{directory}/ranks"
        with Listener(socket, "AF_UNIX", backlog=RANKS) as listener:
            process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "tests.integration.runner.ranks", str(model), socket],
                env=environment(),
            )
            try:
                by_rank: dict[int, tuple[Connection, dict[str, Any]]] = {}
                for _ in range(RANKS):
                    connection = listener.accept()
                    facts = json.loads(connection.recv_bytes())
                    connection.recv_bytes()
                    by_rank[facts["rank"]] = connection, facts
                connections = [by_rank[rank][0] for rank in range(RANKS)]
                yield Ranks(connections, [by_rank[rank][1] for rank in range(RANKS)], [])
                for connection in connections:
                    connection.close()
                process.wait(20)
            finally:
                process.kill()
                process.wait()
