"""`patchloom bench`: loads a running server with a request, again and again, and times the answers."""

import asyncio
import math
import statistics
import struct
import time
import zlib
from dataclasses import dataclass, fields
from typing import Any

from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.client import AsyncClient
from patchloom_client.errors import PatchloomError

MAX_REQUESTS = 1_000_000
MAX_SECONDS = 3600.0
MAX_CONCURRENCY = 1024


@dataclass(frozen=True, slots=True)
class Load:
    """How much is asked of a server: it ends with the count or with the time, whichever comes first."""

    requests: int = 100
    seconds: float = 30.0
    concurrency: int = 8
    count_only: bool = False

    def __post_init__(self) -> None:
        for name, value, most in (
            ("requests", self.requests, MAX_REQUESTS),
            ("seconds", self.seconds, MAX_SECONDS),
            ("concurrency", self.concurrency, MAX_CONCURRENCY),
        ):
            if not 0 < value <= most:
                raise ValueError(f"{name} must be between 1 and {most:g}, got {value:g}")


@dataclass(frozen=True, slots=True)
class Report:
    """What came of it. Milliseconds are of whole calls that succeeded, NaN where none did.

    `errors` counts by reason; `first_error` is the first of them.
    """

    sent: int
    succeeded: int
    errors: dict[str, int]
    seconds: float
    per_second: float
    items_per_second: float
    tensor_mib_per_second: float
    ms_p20: float
    ms_p50: float
    ms_p80: float
    ms_p99: float
    ms_max: float
    first_error: PatchloomError | None

    def as_json(self) -> dict[str, object]:
        """Plain data: numbers rounded, null for none, an error as its text."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}


async def load_server(address: str, request: pb.PreprocessRequest, load: Load) -> Report:
    """Sends the request `load.concurrency` at a time. Errors of the server are counted, not raised."""
    run = _Run(load)
    async with AsyncClient(address, timeout=load.seconds) as client:
        start = time.perf_counter()
        run.end = start + load.seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(min(load.concurrency, load.requests)):
                group.create_task(run.work(client, request))
        return run.report(time.perf_counter() - start)


def sample_request(height: int = 1080, width: int = 1920) -> pb.PreprocessRequest:
    """A user message with a text and a PNG, where there is no request at hand; the same bytes every time."""
    row = b"\x02" + bytes(range(256)) * (width * 3 // 256 + 1)
    lines = b"".join([row[: 1 + width * 3], *[b"\x02" + b"\x01\x00\x02" * width] * (height - 1)])
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines, 6)),
        (b"IEND", b""),
    )
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    request = pb.PreprocessRequest()
    message = request.conversation.messages.add(role=pb.ROLE_USER)
    message.content.add().text.text = "Describe the picture."
    message.content.add().image.source.data = png
    return request


class _Run:
    """One load in progress, shared by its workers."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self.end = 0.0
        self._sent = self._items = self._bytes = 0
        self._ms: list[float] = []
        self._errors: dict[str, int] = {}
        self._first_error: PatchloomError | None = None

    async def work(self, client: AsyncClient, request: pb.PreprocessRequest) -> None:
        """One request after the other until all are sent or the time is over."""
        while self._sent < self._load.requests and time.perf_counter() < self.end:
            self._sent += 1
            start = time.perf_counter()
            try:
                call = client.count_tokens if self._load.count_only else client.preprocess
                with await call(request) as response:
                    self._items += len(response.items)
                    self._bytes += sum(tensor.array.nbytes for tensor in response.tensors.values())
            except PatchloomError as error:
                self._first_error = self._first_error or error
                self._errors[error.reason] = self._errors.get(error.reason, 0) + 1
                continue
            self._ms.append((time.perf_counter() - start) * 1000)

    def report(self, seconds: float) -> Report:
        """The figures so far."""
        percentiles = _percentiles(self._ms)
        return Report(
            sent=self._sent,
            succeeded=len(self._ms),
            errors=self._errors,
            seconds=seconds,
            per_second=len(self._ms) / seconds,
            items_per_second=self._items / seconds,
            tensor_mib_per_second=self._bytes / seconds / 2**20,
            ms_p20=percentiles[19],
            ms_p50=percentiles[49],
            ms_p80=percentiles[79],
            ms_p99=percentiles[98],
            ms_max=max(self._ms, default=math.nan),
            first_error=self._first_error,
        )


def _plain(value: Any) -> object:
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 3)
    return str(value) if isinstance(value, PatchloomError) else value


def _percentiles(values: list[float]) -> list[float]:
    """The 99 percentiles; NaN where there is no value."""
    if len(values) < 2:
        return [values[0] if values else math.nan] * 99
    return statistics.quantiles(values, n=100, method="inclusive")
