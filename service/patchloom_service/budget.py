"""Admission by bytes: work starts when its memory fits, in the order of arrival."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from patchloom_service.errors import OutOfMemory


class ByteBudget:
    """A bound on the bytes in work. Small requests pass large ones that wait, but not without end.

    `take` and `hold` wait on an event loop; `try_take` and `give` may be called on any thread.
    """

    def __init__(self, max_bytes: int, max_overtakes: int = 64) -> None:
        self._max_bytes = max_bytes
        self._free = max_bytes
        self._max_overtakes = max_overtakes
        self._waiting: deque[_Waiter] = deque()
        self._lock = threading.Lock()

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Holds `size` bytes for the time of the block; OutOfMemory if they could never be had."""
        await self.take(size)
        try:
            yield
        finally:
            self.give(size)

    def try_take(self, size: int) -> bool:
        """Takes `size` bytes if nobody has to wait for them; they are the caller's until `give`."""
        with self._lock:
            head = self._waiting[0] if self._waiting else None
            if size > self._free or (head is not None and head.overtaken >= self._max_overtakes):
                return False
            if head is not None:
                head.overtaken += 1
            self._free -= size
            return True

    async def take(self, size: int) -> None:
        """Waits for `size` bytes, which are the caller's until `give`; OutOfMemory as for `hold`."""
        if size > self._max_bytes:
            raise OutOfMemory(
                f"the request needs {size} bytes; at most {self._max_bytes} are allowed in work"
            )
        if self.try_take(size):
            return
        waiter = _Waiter(size)
        with self._lock:
            self._waiting.append(waiter)
        self.give(0)  # what came back since `try_take`
        try:
            await waiter.turn
        except asyncio.CancelledError:
            with self._lock:
                back = size if waiter.granted else 0
                if not waiter.granted:
                    self._waiting.remove(waiter)
            self.give(back)
            raise

    def give(self, size: int) -> None:
        """Gives back what `take` took."""
        with self._lock:
            self._free += size
            granted = []
            while self._waiting and self._waiting[0].size <= self._free:
                waiter = self._waiting.popleft()
                waiter.granted = True
                self._free -= waiter.size
                granted.append(waiter)
        for waiter in granted:
            waiter.tell()


class _Waiter:
    """Who waits on the running event loop; `granted` says that the bytes are its own already."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.overtaken = 0
        self.granted = False
        self._loop = asyncio.get_running_loop()
        self.turn: asyncio.Future[None] = self._loop.create_future()

    def tell(self) -> None:
        """Ends the wait, from any thread."""
        with suppress(RuntimeError):  # the loop was closed with all who wait on it
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if not self.turn.done():
            self.turn.set_result(None)
