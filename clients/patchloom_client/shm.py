"""Maps the server's shared memory, read-only, under a lock that the kernel drops with the mapping.

The server never rewrites a segment whose shared flock somebody holds, and its first page says whose
content it has; so a handle leads to its own pixels or to StaleHandle.
"""

import fcntl
import os
import re
import stat
import struct
from functools import cache
from pathlib import Path
from typing import Any

from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.errors import FailedPrecondition, OutOfMemory, StaleHandle
from patchloom_client.huge_pages import map_file

DIRECTORY = Path("/dev/shm")
_MAGIC = b"PATCHLM1"
_HEADER = struct.Struct("<8sQ32s32s")  # magic, generation, server instance, lease id
_HEADER_BYTES = 4096
_NAME = re.compile(r"patchloom-([0-9a-f]{32})\.[0-9]{1,12}")


def map_segment(handle: pb.TensorHandle, directory: Path = DIRECTORY) -> Any:
    """The segment that a handle is in, whole, as a read-only buffer. The lock ends with the last view of it.

    StaleHandle where the handle is malformed or its memory has another content by now,
    FailedPrecondition where it is not on this host, OutOfMemory where there is no room to map it.
    """
    if handle.WhichOneof("location") != "shared_memory":
        raise StaleHandle("the handle names no memory; ask for the tensors again")
    if handle.shared_memory.namespace_id != namespace_id(directory):
        raise FailedPrecondition(
            "the tensors are in the memory of another host; use the transport inline", "output.transport"
        )
    match = _NAME.fullmatch(handle.shared_memory.name)
    if match is None or match[1] != handle.server_instance or handle.offset < _HEADER_BYTES:
        raise StaleHandle("the handle is malformed; ask for the tensors again")
    fd = _open(os.path.join(directory, handle.shared_memory.name))
    try:
        return _map(fd, handle)
    finally:
        os.close(fd)  # the mapping keeps the file, and the lock with it


def _open(path: str) -> int:
    try:
        # Not to wait where something else than a file has the name.
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except PermissionError as error:
        raise FailedPrecondition(
            "this user may not map the server's memory; start the server with --shm-readers",
            "output.transport",
        ) from error
    except OSError as error:
        raise StaleHandle("the memory is gone; ask for the tensors again") from error


def _map(fd: int, handle: pb.TensorHandle) -> Any:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StaleHandle("the memory is in use for another response; ask again") from error
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size < handle.offset + handle.size:
        raise StaleHandle("the handle is malformed; ask for the tensors again")
    try:
        memory = map_file(fd, status.st_size)
    except OSError as error:
        raise OutOfMemory(f"no room to map {status.st_size} bytes of shared memory") from error
    wanted = (_MAGIC, handle.generation, handle.server_instance.encode(), handle.lease_id.encode())
    if _HEADER.unpack_from(memory) != wanted:
        raise StaleHandle("the memory has another response by now; ask for the tensors again")
    return memory


@cache
def namespace_id(directory: Path = DIRECTORY) -> str:
    """Identifies the mount, as the server does; "" where there is no such directory."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{os.stat(directory).st_dev}"
    except OSError:
        return ""


def owner() -> str:
    """This process as the metadata `patchloom-owner` names it, so that the server sees when it dies."""
    try:
        stat_fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        return f"{os.getpid()}.{int(stat_fields[19])}.{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""
