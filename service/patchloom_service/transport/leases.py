"""Leases: who holds memory, for how long, and what ends it. What the memory is, they do not know."""

import os
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from patchloom_service.errors import InvalidMessage, StaleHandle

_OWNER = re.compile(r"([1-9][0-9]{0,9})\.([0-9]{1,20})\.([0-9]{1,20})")


class Ending(StrEnum):
    """What ends a lease."""

    RELEASED = "released"
    EXPIRED = "expired"
    OWNER_LOST = "owner_lost"
    CLOSED = "closed"


class Backing(Protocol):
    """Leased memory."""

    def end(self, how: Ending) -> None:
        """Takes the memory back; only a release allows its reuse while the owner lives."""
        ...


@dataclass(frozen=True, slots=True)
class Owner:
    """A process of this host: its id, its start time in clock ticks since boot, and its pid namespace."""

    pid: int
    started: int
    namespace: int

    @classmethod
    def parse(cls, text: str) -> "Owner":
        """The owner that a caller's `patchloom-owner` metadata names: pid.started.namespace."""
        match = _OWNER.fullmatch(text)
        if match is None:
            raise InvalidMessage("must be <pid>.<start time>.<pid namespace>", "patchloom-owner")
        return cls(*(int(group) for group in match.groups()))

    def lost(self) -> bool:
        """Whether the process is seen to have ended; never true for one that cannot be seen from here."""
        return self.namespace == pid_namespace() and start_time(self.pid) != self.started


def pid_namespace() -> int:
    """The inode of this process's pid namespace, 0 where the system has none."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def start_time(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (proc(5), field 22); None once it has ended.

    A zombie has ended: its memory is gone, only its parent has not asked yet.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


@dataclass(frozen=True, slots=True)
class LeaseKey:
    """What a holder shows: the server instance, the lease's random id and the memory's generation."""

    instance: str
    lease_id: str
    generation: int


@dataclass(slots=True)
class Lease:
    """One lease. `deadline` counts on the monotonic clock; `expires` is the same in Unix time."""

    key: LeaseKey
    backing: Backing
    namespace: str
    owner: Owner | None
    deadline: float
    expires: float
    call: str


class Leases:
    """The leases of one server instance; thread-safe. `endings` counts how they ended."""

    def __init__(
        self, instance: str, default_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.instance = instance
        self.endings: Counter[Ending] = Counter()
        self.granted = 0
        self._default = default_seconds
        self._clock = clock
        self._held: dict[str, Lease] = {}
        self._by_call: dict[str, Lease] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def grant(
        self,
        backing: Backing,
        generation: int,
        namespace: str,
        owner: Owner | None,
        seconds: float | None,
        call: str = "",
    ) -> Lease:
        """A lease of `backing` from now on; `seconds` defaults to the server's time.

        `call` is the caller's secret name of the call that it is granted to, "" for none.
        """
        key = LeaseKey(self.instance, secrets.token_hex(16), generation)
        deadline, expires = self._until(seconds)
        lease = Lease(key, backing, namespace, owner, deadline, expires, call)
        with self._lock:
            self._held[key.lease_id] = lease
            if call:
                self._by_call[call] = lease
            self.granted += 1
        return lease

    def release(self, keys: Sequence[LeaseKey], namespace: str = "") -> int:
        """Ends leases and returns how many.

        Every lease that can be ended is; then StaleHandle names the first that could not.
        """
        ended, stale = [], []
        with self._lock:
            for index, key in enumerate(keys):
                lease = self._find(key, namespace)
                if lease is None:
                    stale.append(index)
                else:
                    ended.append(self._pop(lease))
        self._end(ended, Ending.RELEASED)
        if stale:
            raise _stale(stale[0])
        return len(ended)

    def release_calls(self, calls: Sequence[str], namespace: str = "") -> int:
        """Ends the leases of calls that their caller took back too late, and returns how many there were."""
        with self._lock:
            found = {call: self._by_call.get(call) for call in calls}
            ended = [self._pop(lease) for lease in found.values() if lease and lease.namespace == namespace]
        self._end(ended, Ending.RELEASED)
        return len(ended)

    def revoke(self, key: LeaseKey) -> None:
        """Ends a lease that nobody was told of, as a release does; nothing if it ended already."""
        with self._lock:
            lease = self._held.get(key.lease_id)
            ended = [self._pop(lease)] if lease else []
        self._end(ended, Ending.RELEASED)

    def renew(self, keys: Sequence[LeaseKey], seconds: float | None, namespace: str = "") -> float:
        """Prolongs all leases or none, and returns their end in Unix time; StaleHandle names a stale one."""
        with self._lock:
            found = [self._find(key, namespace) for key in keys]
            deadline, expires = self._until(seconds)
            for index, lease in enumerate(found):
                if lease is None:
                    raise _stale(index)
            for lease in found:
                assert lease is not None
                lease.deadline, lease.expires = deadline, expires
        return expires

    def sweep(self) -> None:
        """Ends the leases whose time is over or whose owner is seen to be gone."""
        now = self._clock()
        with self._lock:
            lost = {
                owner for owner in {lease.owner for lease in self._held.values()} if owner and owner.lost()
            }
            orphans = [lease for lease in self._held.values() if lease.owner in lost]
            late = [lease for lease in self._held.values() if lease.deadline <= now and lease not in orphans]
            for lease in (*orphans, *late):
                self._pop(lease)
        self._end(orphans, Ending.OWNER_LOST)
        self._end(late, Ending.EXPIRED)

    def close(self) -> None:
        """Ends every lease."""
        with self._lock:
            held = [self._pop(lease) for lease in list(self._held.values())]
        self._end(held, Ending.CLOSED)

    def _pop(self, lease: Lease) -> Lease:
        """Forgets a lease that is held, under the lock."""
        del self._held[lease.key.lease_id]
        if self._by_call.get(lease.call) is lease:
            del self._by_call[lease.call]
        return lease

    def _find(self, key: LeaseKey, namespace: str) -> Lease | None:
        lease = self._held.get(key.lease_id)
        known = lease is not None and lease.key == key and lease.namespace == namespace
        return lease if known and lease is not None and lease.deadline > self._clock() else None

    def _until(self, seconds: float | None) -> tuple[float, float]:
        length = self._default if seconds is None else seconds
        return self._clock() + length, time.time() + length

    def _end(self, leases: Iterable[Lease], how: Ending) -> None:
        for lease in leases:
            self.endings[how] += 1
            lease.backing.end(how)


def _stale(index: int) -> StaleHandle:
    return StaleHandle(
        "the lease ended or is not this server's; ask for the tensors again", f"leases[{index}]"
    )


@dataclass(frozen=True, slots=True)
class SharedLocation:
    """A file below /dev/shm, and the mount that it is on."""

    name: str
    namespace_id: str


@dataclass(frozen=True, slots=True)
class CudaLocation:
    """A CUDA allocation: the device's UUID, cudaIpcMemHandle_t and cudaIpcEventHandle_t."""

    device_uuid: bytes
    memory_handle: bytes
    event_handle: bytes


@dataclass(frozen=True, slots=True)
class Handle:
    """Where a tensor is in leased memory; `offset` and `size` in bytes, `expires` in Unix time."""

    key: LeaseKey
    offset: int
    size: int
    expires: float
    location: SharedLocation | CudaLocation
