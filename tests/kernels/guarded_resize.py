"""Resizes between guard pages: a read or write beside a buffer ends the process with a signal."""

from collections.abc import Callable

import numpy as np
from guard_pages import guarded
from patchloom_kernels.cpu import resize
from patchloom_kernels.cpu.resize import resize_patchify
from patchloom_kernels.layout import Job, Parity, PatchLayout, Piece, Resample
from patchloom_kernels.normalize import Dtype, NormalizeFormula, NormalizeTable

PIECES = 150
TABLE = NormalizeTable.build(NormalizeFormula.HF_TORCHVISION, [0.4, 0.5, 0.6], [0.2, 0.3, 0.4])


def other_half_first(work: Callable[[], object]) -> Callable[[], None]:
    """All that an assisting thread may have done before the calling one begins."""
    work()
    return lambda: None


def main() -> None:
    """Pieces of many shapes, drawn with a fixed seed."""
    resize._LARGE = 0
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
            job = Job.contiguous(0, piece, 0)
            resize_patchify([source], [job], table, out, dtype, parity, keep)
            resize_patchify([source], [job], table, out, dtype, parity, keep, other_half_first)
    print(f"{PIECES} pieces")


if __name__ == "__main__":
    main()
