"""One response over shared memory: a segment for its pixels, a lease once it is complete."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from patchloom_service.errors import OutOfMemory
from patchloom_service.transport.inline import InlineDelivery
from patchloom_service.transport.leases import Ending, Handle, Lease, Leases, Owner, SharedLocation
from patchloom_service.transport.shared_memory import HEADER_BYTES, Arena, Segment

_ALIGN = 256


class SharedDelivery:
    """The pixels of one response in a segment of `arena`; small tensors stay in the message.

    Where the arena is full, `fallback` takes over, or OutOfMemory is raised if it is None. `close` may be
    called while another thread still takes or commits.
    """

    def __init__(
        self,
        arena: Arena,
        namespace_id: str,
        leases: Leases,
        fallback: InlineDelivery | None,
        namespace: str,
        owner: Owner | None,
        seconds: float | None,
        call: str = "",
    ) -> None:
        self._arena = arena
        self._namespace_id = namespace_id
        self._leases = leases
        self._fallback = fallback
        self._namespace = namespace
        self._owner = owner
        self._seconds = seconds
        self._call = call
        self._segment: Segment | None = None
        self._lease: Lease | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._fell_back = False

    @property
    def fell_back(self) -> bool:
        """Whether the pixels are in the message, because the arena was full."""
        return self._fell_back

    def take(self, sizes: Sequence[int]) -> Sequence[npt.NDArray[np.uint8]]:
        """Consecutive parts of one segment, each at a multiple of 256 bytes."""
        if not sizes:
            return []
        try:
            segment = self._arena.take(_starts(sizes)[-1], self._namespace)
        except OutOfMemory:
            if self._fallback is None:
                raise
            self._fell_back = True
            return self._fallback.take(sizes)
        return self._parts(segment, sizes)

    def take_now(self, sizes: Sequence[int]) -> Sequence[npt.NDArray[np.uint8]] | None:
        """As `take` where a segment is idle."""
        if not sizes:
            return []
        segment = self._arena.take_idle(_starts(sizes)[-1], self._namespace)
        return None if segment is None else self._parts(segment, sizes)

    def _parts(self, segment: Segment, sizes: Sequence[int]) -> Sequence[npt.NDArray[np.uint8]]:
        data = segment.data
        with self._lock:
            self._segment = segment
            if self._closed:  # the request ended while its memory was made
                self._arena.drop(segment)
                raise OutOfMemory("the request is over")
        assert data is not None
        return [data[start : start + size] for start, size in zip(_starts(sizes), sizes, strict=False)]

    def commit(self) -> None:
        """Publishes the segment under a lease."""
        if self._segment is None:
            if self._fallback is not None:
                self._fallback.commit()
            return
        segment = self._segment
        with self._lock:
            if self._closed:  # by whoever no longer waits for the response
                raise OutOfMemory("the request is over")
            backing = SegmentBacking(self._arena, segment)
            self._lease = self._leases.grant(
                backing, segment.generation, self._namespace, self._owner, self._seconds, self._call
            )
            self._arena.publish(segment, self._lease.key.lease_id)

    def handle(self, array: npt.NDArray[Any]) -> Handle | None:
        """Where `array` is in the segment, None for an array elsewhere."""
        if self._lease is None or self._segment is None or self._segment.data is None:
            return None
        offset = _address(array) - _address(self._segment.data)
        if not 0 <= offset < self._segment.capacity or not array.nbytes:
            return None
        location = SharedLocation(self._segment.name, self._namespace_id)
        return Handle(self._lease.key, HEADER_BYTES + offset, array.nbytes, self._lease.expires, location)

    def close(self, sent: bool) -> None:
        """Gives back what no lease holds.

        A segment that was not committed is dropped and not reused: a kernel of the request may still
        write to it.
        """
        if self._fallback is not None:
            self._fallback.close(sent)
        with self._lock:
            self._closed = True
            if self._lease is None and self._segment is not None:
                self._arena.drop(self._segment)
        if self._lease is not None and not sent:
            self._leases.revoke(self._lease.key)


class SegmentBacking:
    """A published segment as the memory of a lease."""

    def __init__(self, arena: Arena, segment: Segment) -> None:
        self._arena = arena
        self._segment = segment

    def end(self, how: Ending) -> None:
        """Reused after a release, unlinked after anything else."""
        if how is Ending.RELEASED:
            self._arena.give(self._segment)
        else:
            self._arena.drop(self._segment)


def _starts(sizes: Sequence[int]) -> list[int]:
    starts = [0]
    for size in sizes:
        starts.append(-(-(starts[-1] + size) // _ALIGN) * _ALIGN)
    return starts


def _address(array: npt.NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
