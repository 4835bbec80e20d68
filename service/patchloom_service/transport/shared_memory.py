"""An arena of shared-memory segments: bounded, reserved before use, and never rewritten under a reader.

A segment is one file in /dev/shm. Its first page says which generation of which lease the rest holds.
Readers take a shared flock on the file before they map it, and the kernel drops it when they unmap or
die; the arena rewrites a segment only under the exclusive one. So neither a crash nor a late reader on
either side can lead to another request's pixels. Each server instance holds the lock of a file of its
own, by which the next instance tells leftovers from a living neighbour's segments.
"""

import fcntl
import os
import re
import secrets
import stat
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from patchloom_service.errors import OutOfMemory
from patchloom_service.transport.huge_pages import allocate

DIRECTORY = Path("/dev/shm")
HEADER_BYTES = 4096
MAGIC = b"PATCHLM1"
HEADER = struct.Struct("<8sQ32s32s")  # magic, generation, server instance, lease id
MODES = {"user": 0o600, "group": 0o640, "all": 0o644}
_GRAIN = 64 << 10
_IDLE_SECONDS = 60.0
_COOLING_SECONDS = 5.0
_NAME = re.compile(r"patchloom-([0-9a-f]{32})\.(lock|[0-9]{1,12})")
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True, eq=False)
class Segment:
    """One file. `data` is what follows the header; None once the segment is unlinked."""

    name: str
    fd: int
    capacity: int
    data: npt.NDArray[np.uint8] | None
    memory: Any  # all of the file, None with `data`
    namespace: str
    generation: int = 0
    since: float = 0.0  # idle or cooling since, monotonic

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self.capacity + HEADER_BYTES


class Arena:
    """Segments of at most `max_bytes` in all, those included that a reader still maps; thread-safe.

    A segment is taken, published, and given back or dropped. `give` is for memory that its holder let go
    of; `drop` unlinks and leaves the memory as it is to whoever maps it.
    """

    def __init__(self, max_bytes: int, mode: int = MODES["user"], directory: Path = DIRECTORY) -> None:
        """OSError where the directory is missing or not writable."""
        self._max_bytes = max_bytes
        self._mode = mode
        self._directory = directory
        self._lock = threading.Lock()
        self._used = 0
        self._count = 0
        self._idle: list[Segment] = []
        self._cooling: list[Segment] = []
        self._lingering: list[Segment] = []
        self._live: dict[str, Segment] = {}  # linked: leased or idle
        self._closed = False
        self.instance, self._instance_fd = _claim(directory)
        self.swept = sweep_leftovers(directory)

    @property
    def used(self) -> int:
        """Bytes of all segments."""
        return self._used

    @property
    def idle(self) -> int:
        """Bytes of the segments that wait for reuse."""
        return sum(segment.nbytes for segment in self._idle)

    def take(self, size: int, namespace: str) -> Segment:
        """A segment of at least `size` bytes whose content is arbitrary, but never another namespace's.

        OutOfMemory where the arena or the file system is full; its `retry_after` is None where the size
        can never be had.
        """
        capacity = _capacity(size)
        with self._lock:
            segment = self._reuse(capacity, namespace)
            if segment is None:
                name = self._reserve(capacity + HEADER_BYTES)
        if segment is None:
            segment = self._create(name, capacity, namespace)
        segment.generation += 1
        return segment

    def take_idle(self, size: int, namespace: str) -> Segment | None:
        """As `take`, of the segments that wait for reuse; None where none fits."""
        with self._lock:
            segment = self._reuse(_capacity(size), namespace)
        if segment is not None:
            segment.generation += 1
        return segment

    def publish(self, segment: Segment, lease_id: str) -> None:
        """Lets readers in: the content is complete and belongs to this lease."""
        assert segment.memory is not None
        HEADER.pack_into(
            segment.memory, 0, MAGIC, segment.generation, self.instance.encode(), lease_id.encode()
        )
        fcntl.flock(segment.fd, fcntl.LOCK_UN)

    def give(self, segment: Segment) -> None:
        """Takes a segment back for reuse. One that is still read waits, and is dropped after five seconds."""
        with self._lock:
            if segment.name in self._live:
                segment.since = time.monotonic()
                self._cooling.append(segment)
                self._cool()

    def drop(self, segment: Segment) -> None:
        """Unlinks a segment, once. Its bytes count until its last reader is gone."""
        with self._lock:
            self._drop(segment)

    def sweep(self) -> None:
        """Forgets unlinked segments that nobody reads any more, and drops what was idle for a minute."""
        now = time.monotonic()
        with self._lock:
            self._cool()
            for segment in [s for s in self._cooling if s.since <= now - _COOLING_SECONDS]:
                self._cooling.remove(segment)
                self._drop(segment)
            for segment in [s for s in self._idle if s.since <= now - _IDLE_SECONDS]:
                self._idle.remove(segment)
                self._drop(segment)
            self._collect()

    def close(self) -> None:
        """Unlinks everything."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for segment in list(self._live.values()):
                self._drop(segment)
            self._idle.clear()
            self._cooling.clear()
            self._unlink(f"patchloom-{self.instance}.lock")
            os.close(self._instance_fd)

    def readers(self) -> int:
        """Processes that have a segment of this arena mapped now, each segment counted by itself."""
        with self._lock:
            segments = (*self._live.values(), *self._lingering)
            inodes = {os.fstat(segment.fd).st_ino for segment in segments}
        return sum(inode in inodes for inode in _shared_locks())

    def _reuse(self, capacity: int, namespace: str) -> Segment | None:
        self._cool()
        fitting = [
            s for s in self._idle if s.namespace == namespace and capacity <= s.capacity <= 2 * capacity
        ]
        if not fitting:
            return None
        segment = min(fitting, key=lambda s: (s.capacity, -s.since))
        self._idle.remove(segment)
        if os.fstat(segment.fd).st_nlink == 0:  # a reader unlinked what is not its own
            self._drop(segment)
            return self._reuse(capacity, namespace)
        return segment

    def _reserve(self, size: int) -> str:
        """Counts a new segment and names it."""
        self._make_room(size)
        self._used += size
        self._count += 1
        return f"patchloom-{self.instance}.{self._count}"

    def _create(self, name: str, capacity: int, namespace: str) -> Segment:
        """Makes a reserved segment. Its pages take their time, so the lock is not held."""
        size = capacity + HEADER_BYTES
        try:
            fd, memory = self._file(name, size)
        except OSError as error:
            with self._lock:
                self._used -= size
            raise OutOfMemory(
                f"shared memory is full ({error.strerror}); try again later", retry_after=1.0
            ) from error
        data = np.frombuffer(memory, np.uint8, offset=HEADER_BYTES)
        segment = Segment(name, fd, capacity, data, memory, namespace)
        with self._lock:
            self._live[name] = segment
            if self._closed:  # the server ended while the pages were made
                self._drop(segment)
                raise OutOfMemory("the server is shutting down")
        return segment

    def _file(self, name: str, size: int) -> tuple[int, Any]:
        """The locked descriptor and the memory of a new file; nothing is left of it after an OSError."""
        fd = os.open(self._directory / name, _FLAGS | os.O_CREAT | os.O_EXCL, self._mode)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            os.fchmod(fd, self._mode)
            return fd, allocate(fd, size)
        except OSError:
            self._unlink(name)
            os.close(fd)
            raise

    def _make_room(self, size: int) -> None:
        if size > self._max_bytes:
            raise OutOfMemory(
                f"the tensors need {size} bytes of shared memory; at most {self._max_bytes} are allowed"
            )
        if self._used + size > self._max_bytes:
            self._collect()
        while self._used + size > self._max_bytes and self._idle:
            oldest = min(self._idle, key=lambda s: s.since)
            self._idle.remove(oldest)
            self._drop(oldest)
            self._collect()
        if self._used + size > self._max_bytes:
            raise OutOfMemory(
                f"{self._used} of {self._max_bytes} bytes of shared memory are held; release tensors",
                retry_after=0.5,
            )

    def _cool(self) -> None:
        """What nobody reads any more becomes idle; its header leads nobody to it."""
        for segment in [s for s in self._cooling if _lock_exclusive(s.fd)]:
            assert segment.memory is not None
            HEADER.pack_into(segment.memory, 0, bytes(8), segment.generation, bytes(32), bytes(32))
            self._cooling.remove(segment)
            self._idle.append(segment)

    def _drop(self, segment: Segment) -> None:
        if self._live.pop(segment.name, None) is None:
            return
        self._unlink(segment.name)
        segment.data = segment.memory = None
        self._lingering.append(segment)

    def _collect(self) -> None:
        for segment in [s for s in self._lingering if _lock_exclusive(s.fd)]:
            self._lingering.remove(segment)
            self._used -= segment.nbytes
            os.close(segment.fd)

    def _unlink(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._directory / name)


def namespace_id(directory: Path = DIRECTORY) -> str:
    """Identifies the mount: boot id and device number; another value means other memory."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}:{os.stat(directory).st_dev}"


def sweep_leftovers(directory: Path = DIRECTORY) -> int:
    """Unlinks the segments of dead server instances of this user, nothing else; returns how many."""
    by_instance: dict[str, list[str]] = {}
    for entry in os.listdir(directory):
        if (match := _NAME.fullmatch(entry)) is not None and _is_ours(directory / entry):
            by_instance.setdefault(match[1], []).append(entry)
    swept = 0
    for instance, names in by_instance.items():
        lock = f"patchloom-{instance}.lock"
        with _held_if_dead(directory / lock) as dead:
            if not dead:
                continue
            for name in sorted(names, key=lambda name: name == lock):  # the lock last: it marks the rest
                with suppress(FileNotFoundError):
                    os.unlink(directory / name)
                    swept += name != lock
    return swept


def _claim(directory: Path) -> tuple[str, int]:
    """A new instance id and the locked descriptor of its file."""
    while True:
        instance = secrets.token_hex(16)
        path = directory / f"patchloom-{instance}.lock"
        fd = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        # A neighbour's sweep may have taken the file for a dead one's before it was locked.
        if _lock_exclusive(fd) and path.exists():
            return instance, fd
        os.close(fd)
        with suppress(FileNotFoundError):
            os.unlink(path)


def _is_ours(path: Path) -> bool:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


@contextmanager
def _held_if_dead(lock: Path) -> Iterator[bool]:
    """Whether nobody holds the file of an instance; one without a file is dead.

    It is held for the block, so that an instance that is just starting under it takes another name.
    """
    try:
        fd = os.open(lock, _FLAGS)
    except OSError as error:
        yield isinstance(error, FileNotFoundError)
        return
    try:
        yield _lock_exclusive(fd)
    finally:
        os.close(fd)


def _lock_exclusive(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _shared_locks() -> Iterator[int]:
    """The inode of each shared flock of the system (proc_locks(5))."""
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return
    for line in lines:
        fields = line.split()
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[3] == "READ":
            yield int(fields[5].rpartition(":")[2])


def _capacity(size: int) -> int:
    """Sizes in steps of an eighth of their power of two: few classes, so that segments can be reused."""
    step = max(_GRAIN, 1 << max(size.bit_length() - 4, 0))
    return max(-(-size // step), 1) * step
