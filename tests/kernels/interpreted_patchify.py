"""Run in its own process: the Triton kernel in its interpreter against the reference, as JSON.

Prints, per case, how many elements of a poisoned output differ.
"""

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from patchloom_kernels import backend, reference
from patchloom_kernels.layout import PAD_ENTRY, Job, Parity, PatchLayout, Piece, Resample, Strides
from patchloom_kernels.normalize import Dtype, NormalizeFormula, NormalizeTable

CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
TABLE = NormalizeTable.build(NormalizeFormula.HF_PIL, *CLIP, padding=-7.25)
GAP = 5


def qwen(source: tuple[int, int], target: tuple[int, int], patch: int = 4) -> Piece:
    return Piece(source, target, target, PatchLayout((patch, patch), merge=2, temporal=2))


def tile(source: tuple[int, int], target: tuple[int, int], **options: object) -> Piece:
    return Piece(source, target, target, PatchLayout(target), **options)


CASES: dict[str, tuple[list[Piece], Dtype, Parity]] = {
    "sizes_and_layouts_in_one_launch": (
        [
            qwen((1, 1), (8, 8)),
            qwen((13, 29), (16, 24)),
            Piece((9, 7), (12, 10), (12, 10), PatchLayout((3, 5), columns="tyxc")),
            tile((11, 5), (7, 6), resample=Resample.LANCZOS),
        ],
        Dtype.BFLOAT16,
        Parity.ATEN_U8,
    ),
    "rows_first_for_a_tall_image": ([qwen((90, 17), (32, 16))], Dtype.FLOAT32, Parity.PILLOW13),
    "rows_first_for_an_extreme_image": (
        [tile((203, 2), (20, 9)), tile((100, 1), (20, 9))],
        Dtype.FLOAT32,
        Parity.PILLOW12,
    ),
    "many_taps": (
        [tile((150, 9), (4, 3), resample=Resample.LANCZOS), tile((3, 170), (5, 6))],
        Dtype.FLOAT16,
        Parity.PILLOW12,
    ),
    "one_pass_or_none": (
        [tile((9, 8), (9, 5)), tile((9, 8), (4, 8)), tile((9, 8), (9, 8))],
        Dtype.FLOAT32,
        Parity.PILLOW13,
    ),
    "padding_and_crop_as_levels": (
        [
            Piece((20, 9), (10, 12), (8, 8), PatchLayout((4, 4)), offset=(-1, 3), pad=(9, 8, 256)),
            Piece((20, 9), (10, 12), (8, 8), PatchLayout((4, 4)), offset=(20, 0), pad=(1, 2, 3)),
        ],
        Dtype.UINT8,
        Parity.ATEN_U8,
    ),
    "padding_after_normalisation": (
        [Piece((6, 9), (5, 7), (8, 12), PatchLayout((4, 6)), offset=(2, -3), pad=(PAD_ENTRY,) * 3)],
        Dtype.BFLOAT16,
        Parity.PILLOW13,
    ),
    "a_patch_larger_than_a_tile": ([tile((30, 90), (40, 150))], Dtype.FLOAT32, Parity.ATEN_U8),
    "bilinear": ([tile((21, 30), (8, 9), resample=Resample.BILINEAR)], Dtype.FLOAT32, Parity.ATEN_U8),
}


def sources_of(pieces: list[Piece]) -> list[np.ndarray]:
    """Three and four bytes a pixel in turn."""
    rng = np.random.default_rng(len(pieces))
    return [
        rng.integers(-128, 384, (*piece.source, 3 + index % 2)).clip(0, 255).astype(np.uint8)
        for index, piece in enumerate(pieces)
    ]


def jobs_of(pieces: list[Piece]) -> tuple[list[Job], int]:
    jobs, start = [], GAP
    for index, piece in enumerate(pieces):
        jobs.append(Job.contiguous(index, piece, start))
        start += piece.rows * piece.layout.row_size() + GAP
    return jobs, start


def interleaved() -> tuple[list[Job], int, list[np.ndarray]]:
    """Two jobs whose values alternate, of one source."""
    piece = Piece((9, 9), (8, 8), (8, 8), PatchLayout((4, 4)))
    jobs = [Job(0, piece, start, Strides(row=96, c=32, t=0, y=8, x=2)) for start in (0, 1)]
    return jobs, 4 * 96, sources_of([piece])


def differing(sources: list[np.ndarray], jobs: list[Job], size: int, dtype: Dtype, parity: Parity) -> int:
    table = None if dtype is Dtype.UINT8 else TABLE
    expected = np.full(size, 77, dtype.numpy)
    reference.resize_patchify(sources, jobs, table, expected, dtype, parity)
    interpreter = backend.select("interpreter")
    out = interpreter.empty(size, dtype)
    bits = out.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[out.element_size()])
    bits.copy_(torch.from_numpy(np.full(size, 77, dtype.numpy).view(f"i{out.element_size()}")))
    interpreter.resize_patchify(sources, jobs, table, out, dtype, parity)
    return int((bits.numpy().view(np.uint8) != expected.view(np.uint8)).sum())


def main() -> None:
    results = {}
    for name, (pieces, dtype, parity) in CASES.items():
        jobs, size = jobs_of(pieces)
        results[name] = differing(sources_of(pieces), jobs, size, dtype, parity)
    jobs, size, sources = interleaved()
    results["interleaved"] = differing(sources, jobs, size, Dtype.FLOAT32, Parity.ATEN_U8)
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
