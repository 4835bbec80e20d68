"""Where decoded pixels lie: Pillow's own storage as a numpy array without a copy, and how memory is kept."""

import ctypes

import numpy as np
import numpy.typing as npt
from PIL import Image, _imaging

Pixels = npt.NDArray[np.uint8]

# Storage that one block holds can be viewed; a block is only as large as its image needs.
_BLOCK = 1 << 30

# glibc's malloc.h; a free end of the heap beyond _KEPT bytes goes back to the system
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_KEPT = 1 << 30


class _ArrowArray(ctypes.Structure):
    """The Arrow C data interface's array."""


_ArrowArray._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_ArrowArray))),
]
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def prepare_process() -> None:
    """Let Pillow keep an image of any allowed size in one block. Once, when a process starts."""
    _imaging.set_block_size(_BLOCK)


def keep_freed_memory() -> None:
    """Let the C library keep what is freed, as a process does well to that serves images all its life.

    It else returns large blocks to the system, and the next image or message pays for fresh pages, which
    can cost more than all that is done with them. Elsewhere than on glibc nothing changes.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, _KEPT)


def view(image: Image.Image) -> Pixels:
    """The pixels [H, W, 4] of an RGB (fourth byte 255) or RGBA image, writable.

    The array shares the storage and keeps it alive; an image in several blocks is copied.
    """
    shape = (image.height, image.width, 4)
    try:
        _, capsule = image.__arrow_c_array__()
    except ValueError:
        raw = "RGBA" if image.mode == "RGBA" else "RGBX"
        return np.frombuffer(bytearray(image.tobytes("raw", raw)), np.uint8).reshape(shape)
    array = _ArrowArray.from_address(_capsule_pointer(capsule, b"arrow_array"))
    address = array.children[0].contents.buffers[1]
    storage = (ctypes.c_uint8 * (shape[0] * shape[1] * 4)).from_address(address)
    storage.owner = capsule  # type: ignore[attr-defined]
    return np.frombuffer(memoryview(storage), np.uint8).reshape(shape)
