"""The output of families whose items are rows of one tensor, each item a run of patch rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from patchloom_kernels.layout import Job, PatchLayout

from patchloom_service.models.base import MediaPlan, PixelTensor, TensorLayout, TensorSlice

RowShape: TypeAlias = Callable[[PatchLayout], tuple[int, ...]]
"""The shape of one row of a tensor, from the layout of the pieces in it."""


def concatenated_rows(
    plans: Sequence[MediaPlan],
    name: str,
    shape_of: RowShape,
    constants: Mapping[str, npt.NDArray[Any]],
) -> TensorLayout:
    """All pieces of all items one after the other in tensor `name` [rows, *shape].

    `shape_of` gives the shape of a row, the same for all pieces. `constants` have one row per item and are
    sliced along axis 0 beside the pixels.
    """
    layouts = [placed.piece.layout for plan in plans for placed in plan.pieces]
    if not layouts:
        return TensorLayout((), {}, ((),) * len(plans))
    row_size = layouts[0].row_size()
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
    tensor = PixelTensor(name, (row, *shape_of(layouts[0])), tuple(jobs))
    return TensorLayout((tensor,), constants, tuple(slices))


def rows_with_grids(shape_of: RowShape, plans: Sequence[MediaPlan]) -> TensorLayout:
    """pixel_values [patches of all images, *row] and image_grid_thw int64 [images, 3]."""
    grids = np.array([plan.grid.shape for plan in plans], np.int64).reshape(-1, 3)
    return concatenated_rows(plans, "pixel_values", shape_of, {"image_grid_thw": grids})


def flat_row(layout: PatchLayout) -> tuple[int, ...]:
    """A patch as one flat row."""
    return (layout.row_size(),)


def picture_row(layout: PatchLayout) -> tuple[int, ...]:
    """A patch as a picture, channels first."""
    return (3, *layout.patch)
