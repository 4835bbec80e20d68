"""A large message as one bytes object, put together from its parts without the interpreter lock."""

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Part: TypeAlias = "bytes | npt.NDArray[Any]"

_HUGE = 2 << 20
_new_bytes = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(("PyBytes_AsString", ctypes.pythonapi))


def join(parts: Sequence[Part]) -> bytes:
    """The bytes of all parts, arrays in C order, each copied once.

    Unlike bytes.join it lets other threads run, which a copy of some hundred megabytes has to.
    """
    views = [_bytes_of(part) for part in parts]
    size = sum(len(view) for view in views)
    if size == 0:
        return b""
    # The C API allows writing to a bytes object that nobody else has seen yet.
    joined: bytes = _new_bytes(None, size)
    start = int(_address(joined))
    _advise(start, size)
    target = np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(start)), np.uint8)
    at = 0
    for view in views:
        target[at : at + len(view)] = view
        at += len(view)
    return joined


def _bytes_of(part: Part) -> npt.NDArray[np.uint8]:
    if isinstance(part, bytes):
        return np.frombuffer(part, np.uint8)
    return np.ascontiguousarray(part).reshape(-1).view(np.uint8)


def _advise(start: int, size: int) -> None:
    """Asks for huge pages where the memory spans some: first touch and release then cost little."""
    advice: Any = getattr(mmap, "MADV_HUGEPAGE", None)
    aligned = -(-start // _HUGE) * _HUGE
    length = (start + size - aligned) // _HUGE * _HUGE
    if advice is not None and length > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(aligned), ctypes.c_size_t(length), ctypes.c_int(advice))
