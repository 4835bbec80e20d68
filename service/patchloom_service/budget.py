"""Admission by bytes: work starts when its memory fits, in the order of arrival."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from patchloom_service.errors import OutOfMemory


class ByteBudget:
    """A bound on the bytes in work. Small requests pass large ones that wait, but not without end."""

    def __init__(self, max_bytes: int, max_overtakes: int = 64) -> None:
        self._max_bytes = max_bytes
        self._free = max_bytes
        self._max_overtakes = max_overtakes
        self._waiting: deque[_Waiter] = deque()

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Holds `size` bytes for the time of the block; OutOfMemory if they could never be had."""
        await self.take(size)
        try:
            yield
        finally:
            self.give(size)

    def give(self, size: int) -> None:
        """Gives back what `take` took."""
        self._free += size
        self._wake()

    async def take(self, size: int) -> None:
        """Waits for `size` bytes, which are the caller's until `give`; OutOfMemory as for `hold`."""
        if size > self._max_bytes:
            raise OutOfMemory(
                f"the request needs {size} bytes; at most {self._max_bytes} are allowed in work"
            )
        head = self._waiting[0] if self._waiting else None
        if size <= self._free and (head is None or head.overtaken < self._max_overtakes):
            if head is not None:
                head.overtaken += 1
            self._free -= size
            return
        waiter = _Waiter(size)
        self._waiting.append(waiter)
        try:
            await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.done() and not waiter.granted.cancelled():
                self._free += size
            elif waiter in self._waiting:
                self._waiting.remove(waiter)
            self._wake()
            raise

    def _wake(self) -> None:
        while self._waiting and self._waiting[0].size <= self._free:
            waiter = self._waiting.popleft()
            if not waiter.granted.cancelled():
                self._free -= waiter.size
                waiter.granted.set_result(None)


class _Waiter:
    def __init__(self, size: int) -> None:
        self.size = size
        self.overtaken = 0
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
