"""The output of families that write an item's pieces to two tensors: one picture each, and tiles of some."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from patchloom_kernels.layout import Job

from patchloom_service.models.base import MediaPlan, PixelTensor, TensorLayout, TensorSlice


def picture_tensors(plans: Sequence[MediaPlan], constants: Mapping[str, npt.NDArray[Any]]) -> TensorLayout:
    """A tensor [pictures, 3, height, width] for each name in the plans, pictures in the order of the items.

    A tensor without pictures is left out. `constants` have one row per item.
    """
    names = dict.fromkeys(placed.tensor for plan in plans for placed in plan.pieces)
    if not names:
        return TensorLayout((), {}, ())
    jobs: dict[str, list[Job]] = {name: [] for name in names}
    rows = dict.fromkeys(names, 0)
    slices: list[tuple[TensorSlice, ...]] = []
    for index, plan in enumerate(plans):
        first = dict(rows)
        for placed in plan.pieces:
            start = rows[placed.tensor] * placed.piece.layout.row_size()
            jobs[placed.tensor].append(Job.contiguous(index, placed.piece, start))
            rows[placed.tensor] += placed.piece.rows
        own = [TensorSlice(name, 0, first[name], rows[name] - first[name]) for name in names]
        slices.append((*own, *(TensorSlice(key, 0, index, 1) for key in constants)))
    tensors = tuple(
        PixelTensor(name, (rows[name], 3, *jobs[name][0].piece.layout.patch), tuple(jobs[name]))
        for name in names
    )
    return TensorLayout(tensors, constants, tuple(slices))


def tiles_with_counts(plans: Sequence[MediaPlan]) -> TensorLayout:
    """`picture_tensors` beside num_local_patches int64 [images], the tiles of each image's grid."""
    counts = [plan.grid.shape[0] * plan.grid.shape[1] for plan in plans]
    return picture_tensors(plans, {"num_local_patches": np.array(counts, np.int64)})
