"""Output buffers: large anonymous memory, reused, because fresh pages cost more than the pixels in them."""

import mmap
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

_SMALL = 1 << 20
_GRAIN = 2 << 20  # one huge page


class Allocator(Protocol):
    """Where the pixels of one response are written."""

    def take(self, sizes: Sequence[int]) -> Sequence[npt.NDArray[np.uint8]]:
        """One buffer of at least the size for each tensor of the response; called once, on any thread.

        OutOfMemory where there is no memory.
        """
        ...

    def take_now(self, sizes: Sequence[int]) -> Sequence[npt.NDArray[np.uint8]] | None:
        """The same where that takes no time, else None: `take` then follows, on another thread."""
        ...


class BufferPool:
    """Hands out uint8 buffers and keeps returned ones, up to `max_bytes` of idle memory; thread-safe.

    The longest idle goes first. A buffer's content is arbitrary. `give` must be called at most once, when no
    view is left in use.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._idle: list[npt.NDArray[np.uint8]] = []  # in the order of their return
        self._idle_bytes = 0
        self._lock = threading.Lock()

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        """A buffer of at least `size` bytes; slice it. Its whole length decides whom `give` keeps it for."""
        if size < _SMALL:
            return np.empty(max(size, 1), np.uint8)
        capacity = _capacity(size)
        with self._lock:
            for index in range(len(self._idle) - 1, -1, -1):
                if self._idle[index].nbytes == capacity:
                    self._idle_bytes -= capacity
                    return self._idle.pop(index)
        return huge_buffer(capacity)

    def give(self, buffer: npt.NDArray[np.uint8]) -> None:
        """Takes a buffer back; it is dropped where it is larger than all that may be idle."""
        size = buffer.nbytes
        if size < _SMALL or size != _capacity(size) or size > self._max_bytes:
            return
        dropped = []  # freed without the lock
        with self._lock:
            self._idle.append(buffer)
            self._idle_bytes += size
            while self._idle_bytes > self._max_bytes:
                dropped.append(self._idle.pop(0))
                self._idle_bytes -= dropped[-1].nbytes


def huge_buffer(size: int) -> npt.NDArray[np.uint8]:
    """`size` bytes of anonymous memory, on huge pages where the kernel gives them on request."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    advice: Any = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        memory.madvise(advice)
    return np.frombuffer(memory, np.uint8)


def _capacity(size: int) -> int:
    """Sizes in steps of an eighth of their power of two, at least a huge page: few classes, little waste."""
    step = max(_GRAIN, 1 << max(size.bit_length() - 4, 0))
    return -(-size // step) * step
