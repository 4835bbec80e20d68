"""Tensors in the message itself: their memory comes from the buffer pool and goes back once they are sent."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from patchloom_service.buffers import BufferPool
from patchloom_service.transport.leases import Handle


class InlineDelivery:
    """The tensors of one response in pooled memory."""

    def __init__(self, pool: BufferPool, fell_back: bool = False) -> None:
        self.fell_back = fell_back
        """Whether another transport was asked for."""
        self._pool = pool
        self._buffers: list[npt.NDArray[np.uint8]] = []
        self._complete = False

    def take(self, sizes: Sequence[int]) -> Sequence[npt.NDArray[np.uint8]]:
        """One buffer a tensor."""
        self._buffers = [self._pool.take(size) for size in sizes]
        return self._buffers

    def take_now(self, sizes: Sequence[int]) -> Sequence[npt.NDArray[np.uint8]] | None:
        """As `take`: fresh pages come when they are written to."""
        return self.take(sizes)

    def commit(self) -> None:
        """Nobody writes to the buffers any more."""
        self._complete = True

    def handle(self, array: npt.NDArray[Any]) -> Handle | None:
        """None: every tensor is in the message."""
        return None

    def close(self, sent: bool) -> None:
        """Gives the buffers back; no tensor of the response may be used any more.

        Those of a response that was not committed are left: a kernel may still write to them.
        """
        if self._complete:
            for buffer in self._buffers:
                self._pool.give(buffer)
        self._buffers = []
