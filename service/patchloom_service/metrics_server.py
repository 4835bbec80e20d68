"""Answers GET /metrics over plain HTTP, for scrapers; nothing else, and only where an address is set."""

import asyncio
from contextlib import suppress

from patchloom_service.metrics import Metrics

_MOST_LINES = 100
_SECONDS = 10.0


class MetricsServer:
    """Serves `metrics` on `address` (host:port); does nothing where the address is empty."""

    def __init__(self, metrics: Metrics, address: str) -> None:
        self._metrics = metrics
        self._address = address
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listens. OSError where the address is taken, ValueError where it has no port."""
        if not self._address:
            return
        host, _, port = self._address.rpartition(":")
        self._server = await asyncio.start_server(self._answer, host.strip("[]"), int(port))

    @property
    def port(self) -> int:
        """The port that is listened on, 0 for none."""
        return 0 if self._server is None else int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Closes the socket."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_SECONDS):
                request = (await reader.readline()).split()
                for _ in range(_MOST_LINES):
                    if (await reader.readline()).strip() == b"":
                        break
                known = request[:2] == [b"GET", b"/metrics"]
                body = (await asyncio.to_thread(self._metrics.text)).encode() if known else b"not found\n"
                writer.write(_head("200 OK" if known else "404 Not Found", len(body)) + body)
                await writer.drain()
        with suppress(OSError):
            writer.close()
            await writer.wait_closed()


def _head(status: str, length: int) -> bytes:
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n"
        f"Content-Length: {length}\r\nConnection: close\r\n\r\n"
    ).encode("ascii")
