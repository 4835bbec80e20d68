"""Resizes between guard pages: a read or write beside a buffer ends the process with a signal."""

import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray
from patchloom_kernels.cpu.resize import resize_patchify
from patchloom_kernels.layout import Job, Parity, PatchLayout, Piece, Resample
from patchloom_kernels.normalize import Dtype, NormalizeFormula, NormalizeTable

PAGE = mmap.PAGESIZE
PIECES = 150
TABLE = NormalizeTable.build(NormalizeFormula.HF_TORCHVISION, [0.4, 0.5, 0.6], [0.2, 0.3, 0.4])

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


def main() -> None:
    """Pieces of many shapes, drawn with a fixed seed."""
    rng = np.random.default_rng(0)
    for number in range(PIECES):
        source_size, target = (tuple(int(v) for v in rng.integers(1, 90, 2)) for _ in range(2))
        patch = tuple(int(v) for v in rng.integers(1, 20, 2))
        merge, temporal = (int(v) for v in rng.integers(1, 3, 2))
        groups = [int(v) for v in rng.integers(1, 4, 2)]
        canvas = tuple(p * merge * g for p, g in zip(patch, groups, strict=True))
        if number % 2:
            target = canvas
        if number % 8 == 5:
            source_size = canvas
        layout = PatchLayout(patch, merge, temporal, ("ctyx", "tyxc", "tcyx")[number % 3])
        resample = list(Resample)[number % 3]
        piece = Piece(source_size, target, canvas, layout, resample)
        end = bool(number % 4 < 3)
        source = guarded((*source_size, 3 + number % 2), np.dtype(np.uint8), end)
        source[:] = rng.integers(0, 256, source.shape)
        if source.shape[2] == 4 and number % 4 == 1:
            source = source[..., 1:]  # behind its last pixel there is nothing
        keep = [guarded((*target, 4), np.dtype(np.uint8), end)] if piece.shows_all and number % 3 else []
        for dtype in Dtype:
            out = guarded((piece.rows * layout.row_size(),), dtype.numpy, end)
            table = None if dtype is Dtype.UINT8 else TABLE
            parity = list(Parity)[number % 3]
            resize_patchify([source], [Job.contiguous(0, piece, 0)], table, out, dtype, parity, keep)
    print(f"{PIECES} pieces")


if __name__ == "__main__":
    main()
