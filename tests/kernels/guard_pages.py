"""Arrays between unreadable pages: a read or write beside one ends the process with a signal."""

import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray

PAGE = mmap.PAGESIZE

libc = ctypes.CDLL(None, use_errno=True)


def guarded(shape: tuple[int, ...], dtype: np.dtype, at_the_end: bool) -> NDArray:
    """An array that touches the unreadable page behind it, or the one before it."""
    size = int(np.prod(shape)) * dtype.itemsize
    whole = -(-size // PAGE) * PAGE
    memory = mmap.mmap(-1, whole + 2 * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (address, address + PAGE + whole):
        if libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    offset = PAGE + (whole - size if at_the_end else 0)
    return np.frombuffer(memory, np.uint8, size, offset).view(dtype).reshape(shape)
