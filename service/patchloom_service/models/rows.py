"""The output of families whose items are rows of one tensor, each item a run of patch rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from patchloom_kernels.layout import Job

from patchloom_service.models.base import MediaPlan, PixelTensor, TensorLayout, TensorSlice


def concatenated_rows(
    plans: Sequence[MediaPlan],
    name: str,
    shape: tuple[int, ...],
    constants: Mapping[str, npt.NDArray[Any]],
) -> TensorLayout:
    """All pieces of all items one after the other in tensor `name` [rows, *shape].

    `constants` have one row per item and are sliced along axis 0 beside the pixels.
    """
    row_size = int(np.prod(shape))
    jobs: list[Job] = []
    slices: list[tuple[TensorSlice, ...]] = []
    row = 0
    for index, plan in enumerate(plans):
        first = row
        for placed in plan.pieces:
            jobs.append(Job.contiguous(index, placed.piece, row * row_size))
            row += placed.piece.rows
        slices.append(
            (
                TensorSlice(name, 0, first, row - first),
                *(TensorSlice(key, 0, index, 1) for key in constants),
            )
        )
    if not plans:
        return TensorLayout((), {}, ())
    tensor = PixelTensor(name, (row, *shape), tuple(jobs))
    return TensorLayout((tensor,), constants, tuple(slices))
