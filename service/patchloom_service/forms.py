"""The tensors of a request before they have pixels: their sizes, who writes where, what goes with them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from patchloom_kernels.layout import Job, Parity, PatchLayout, Piece
from patchloom_kernels.normalize import Dtype, NormalizeTable

from patchloom_service.models.base import MediaPlan, ModelSpec, PixelTensor, TensorLayout, TensorPiece
from patchloom_service.result import Expansion, Tensor
from patchloom_service.served import PixelSettings
from patchloom_service.types import Encoding

Place: TypeAlias = tuple[npt.NDArray[Any], Job]
"""A flat tensor and a job that writes to it."""
Targets: TypeAlias = Sequence[tuple[PixelTensor, npt.NDArray[Any]]]


@dataclass(frozen=True, slots=True)
class Form:
    """What is to be written, `written`, and what it stands for, `full`: they differ for uint8 levels.

    `dtype` is that of the elements written and `asked` that of the model's values; `table` makes them.
    """

    full: TensorLayout
    written: TensorLayout
    table: NormalizeTable
    dtype: Dtype
    asked: Dtype

    @property
    def levels(self) -> bool:
        """Whether pixels stay levels, which the caller expands."""
        return self.dtype is Dtype.UINT8

    @property
    def applied(self) -> NormalizeTable | None:
        """The table that the kernels apply."""
        return None if self.levels else self.table

    @property
    def sizes(self) -> list[int]:
        """Bytes of each tensor that the kernels write."""
        width = self.dtype.numpy.itemsize
        return [prod(tensor.shape) * width for tensor in self.written.pixels]

    def targets(self, buffers: Sequence[npt.NDArray[np.uint8]]) -> Targets:
        """The tensors, flat, in memory of at least `sizes`; what no job writes is filled."""
        flats = [
            buffer[:size].view(self.dtype.numpy) for size, buffer in zip(self.sizes, buffers, strict=True)
        ]
        for tensor, flat in zip(self.written.pixels, flats, strict=True):
            if tensor.fill is not None:
                flat[:] = 0 if self.levels else self.table.to(self.dtype)[0, tensor.fill]
        return list(zip(self.written.pixels, flats, strict=True))

    def tensors(self, targets: Targets) -> dict[str, Tensor]:
        """All tensors by name, once the targets are written."""
        tensors = {}
        for full, (tensor, flat) in zip(self.full.pixels, targets, strict=True):
            expansion = _expansion(full, self.asked) if self.levels else None
            tensors[full.name] = Tensor(self.dtype.value, flat.reshape(tensor.shape), expansion)
            if self.levels:
                tensors[f"{full.name}.table"] = Tensor("float32", self.table.values)
                if (content := _content(tensor)) is not None:
                    tensors[f"{full.name}.content"] = Tensor("int64", content)
        for name, constant in self.full.constants.items():
            tensors[name] = Tensor(constant.dtype.name, constant)
        return tensors


def form_of(spec: ModelSpec, settings: PixelSettings, plans: Sequence[MediaPlan]) -> Form:
    """The tensors of items with these plans, in prompt order."""
    full, asked = spec.layout(plans), Dtype(settings.dtype)
    table = spec.table(Parity(settings.parity))
    if settings.encoding is Encoding.UINT8:
        return Form(full, spec.layout([_single(plan) for plan in plans]), table, Dtype.UINT8, asked)
    return Form(full, full, table, asked, asked)


def places_by_source(targets: Targets) -> Mapping[int, list[Place]]:
    """Where the patches of each item go, by the item's index."""
    grouped: dict[int, list[Place]] = {}
    for tensor, flat in targets:
        for job in tensor.jobs:
            grouped.setdefault(job.source, []).append((flat, job))
    return grouped


def _single(plan: MediaPlan) -> MediaPlan:
    """The plan without temporal copies."""
    return replace(
        plan,
        pieces=tuple(
            TensorPiece(p.tensor, replace(p.piece, layout=replace(p.piece.layout, temporal=1)))
            for p in plan.pieces
        ),
    )


def _expansion(full: PixelTensor, dtype: Dtype) -> Expansion:
    layout: PatchLayout = full.jobs[0].piece.layout
    return Expansion(dtype.value, full.shape, layout.columns, layout.patch, layout.merge, layout.temporal)


def _content(tensor: PixelTensor) -> npt.NDArray[np.int64] | None:
    """Where padding is no level: per piece [start, canvas h, w, content top, left, h, w], else None.

    Padding of a piece that is itself a level counts as content.
    """
    pieces = [(job.start, job.piece) for job in tensor.jobs]
    if tensor.fill is None and all(_covered(piece) or max(piece.pad) < 256 for _, piece in pieces):
        return None
    rows = [(start, *piece.canvas, *_rectangle(piece)) for start, piece in pieces]
    return np.array(rows, np.int64).reshape(-1, 7)


def _rectangle(piece: Piece) -> tuple[int, int, int, int]:
    """(top, left, height, width) of the part of the canvas that holds levels."""
    return (*piece.offset, *piece.target) if max(piece.pad) > 255 else (0, 0, *piece.canvas)


def _covered(piece: Piece) -> bool:
    """Whether the content covers the whole canvas."""
    return all(
        offset <= 0 and offset + target >= canvas
        for offset, target, canvas in zip(piece.offset, piece.target, piece.canvas, strict=True)
    )
