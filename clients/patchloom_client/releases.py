"""Gives leases back in the background: closing a response never waits for the server."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.errors import PatchloomError

_PER_CALL = 256
_LINGER = 0.02  # seconds that a lease waits for others to be given back with it


Given = pb.Lease | str
"""A lease, or the name of a call that was cancelled and may have got one."""


class Releases:
    """Collects leases from any thread and sends them in order. A failure is left to the lease's end.

    A lease waits a moment for others, so that a busy client makes few calls, but not beyond its next request,
    which may need the memory.
    """

    def __init__(self, send: Callable[[Sequence[Given]], Awaitable[object]]) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Given] = deque()
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def add(self, lease: Given) -> None:
        """Sends a lease soon; safe from any thread and after the loop is closed."""
        self._waiting.append(lease)
        with suppress(RuntimeError):
            if _on(self._loop):  # where waking the loop would be a system call for nothing
                self._loop.call_soon(self._wake)
            else:
                self._loop.call_soon_threadsafe(self._wake)

    def hurry(self) -> None:
        """Sends what waits at once."""
        if self._waiting:
            self._hurry.set()
            self._wake()

    async def flush(self) -> None:
        """Waits until everything was sent."""
        self.hurry()
        if self._task is not None:
            await self._task

    def _wake(self) -> None:
        if self._waiting and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._send_all())

    async def _send_all(self) -> None:
        while self._waiting:
            if len(self._waiting) < _PER_CALL:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), _LINGER)
            some = [self._waiting.popleft() for _ in range(min(len(self._waiting), _PER_CALL))]
            with suppress(PatchloomError):  # Cancelled once the client is closed
                await self._send(some)
        self._hurry.clear()


def _on(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the calling thread runs this loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
