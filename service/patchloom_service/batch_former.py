"""Forms batches: what arrives within a short wait, up to a number of bytes, runs together."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar


class Batchable(Protocol):
    """What can wait in a batch: it has a size, and a result that the run sets."""

    @property
    def nbytes(self) -> int: ...

    @property
    def result(self) -> "Future[Any]": ...


Item = TypeVar("Item", bound=Batchable)


class BatchFormer(Generic[Item]):
    """Runs items in the order of arrival, `at_a_time` batches at once; more wait and grow the next batch.

    A batch closes once it holds `max_bytes`, at the latest `wait` seconds after it began; an item larger
    than that is a batch of its own. What `run` raises becomes the result of every item of its batch that has
    none yet. Cancelled items are left out. Safe to use from any thread.
    """

    def __init__(
        self, run: Callable[[Sequence[Item]], None], max_bytes: int, wait: float, at_a_time: int
    ) -> None:
        self._run, self._max_bytes, self._wait = run, max_bytes, wait
        self._waiting: deque[Item] = deque()
        self._bytes = 0
        self._arrived = threading.Condition()
        self._forming = threading.Lock()
        self._pool = ThreadPoolExecutor(at_a_time, "device")

    def submit(self, items: Sequence[Item]) -> None:
        """Enqueues items; each one's `result` will be set."""
        with self._arrived:
            self._waiting.extend(items)
            self._bytes += sum(item.nbytes for item in items)
            self._arrived.notify_all()
        for _ in items:  # some find nothing left to do
            self._pool.submit(self._serve)

    def close(self) -> None:
        """Waits for the batches that run; what still waits is cancelled."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for item in self._waiting:
            item.result.cancel()

    def _serve(self) -> None:
        with self._forming:
            taken = self._form()
        batch = [item for item in taken if item.result.set_running_or_notify_cancel()]
        if not batch:
            return
        try:
            self._run(batch)
        except BaseException as error:
            for item in batch:
                if not item.result.done():
                    item.result.set_exception(error)
            raise

    def _form(self) -> list[Item]:
        """The next batch, or nothing where an earlier call took it."""
        with self._arrived:
            deadline = time.monotonic() + self._wait
            while self._waiting and self._bytes < self._max_bytes:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._arrived.wait(left)
            batch: list[Item] = []
            size = 0
            while self._waiting and (not batch or size + self._waiting[0].nbytes <= self._max_bytes):
                batch.append(self._waiting.popleft())
                size += batch[-1].nbytes
            self._bytes -= size
        return batch
