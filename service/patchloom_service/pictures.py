"""The pixel cache: resized images, which every dtype, encoding and layout is made from.

A resized image is a quarter of its bf16 patches and holds no temporal copies; laying it out again costs
what copying the patches would.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from patchloom_kernels.cpu import resize as cpu
from patchloom_kernels.layout import Job, Parity, PatchLayout, Piece, Resample
from patchloom_kernels.normalize import Dtype, NormalizeTable

from patchloom_service.media.cache import Cache
from patchloom_service.models.base import MediaPlan, Size

Pixels: TypeAlias = npt.NDArray[np.uint8]
Resized: TypeAlias = tuple[Size, Resample, tuple[Piece, ...]]
"""What a resized image of an item is: its size, the filter and the pictures on the way."""


class ResizePatchify(Protocol):
    """The kernel that writes pieces (patchloom_kernels.reference.resize_patchify)."""

    def __call__(
        self,
        sources: Sequence[Pixels],
        jobs: Sequence[Job],
        table: NormalizeTable | None,
        out: npt.NDArray[Any],
        dtype: Dtype,
        parity: Parity,
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Pictures:
    """The resized images of one item, uint8 [h, w, 3], read-only; `by` finds the one of a piece.

    On a device that resizes for itself they are the images before resizing, [H, W, 3] or [H, W, 4].
    """

    plan: MediaPlan
    fingerprint: str
    images: Mapping[Resized, Pixels]

    @property
    def nbytes(self) -> int:
        """Bytes of the images."""
        return sum(image.nbytes for image in self.images.values())

    def by(self, piece: Piece) -> Pixels:
        """The image that `piece` lays out."""
        return self.images[resized_key(piece)]


PictureCache: TypeAlias = Cache[Pictures]


def resized_key(piece: Piece) -> Resized:
    """Pieces with the same key lay the same resized image out."""
    return piece.target, piece.resample, piece.via


def resized_images(
    kernel: ResizePatchify, source: Pixels, pieces: Sequence[Piece], parity: Parity
) -> dict[Resized, Pixels]:
    """The resized images uint8 [h, w, 3] of an item's pieces, each made once."""
    images: dict[Resized, Pixels] = {}
    for piece in pieces:
        key = resized_key(piece)
        if key not in images:
            picture = source
            for step in piece.via:
                picture = _drawn(kernel, picture, step, parity)
            whole = replace(
                piece, canvas=piece.target, offset=(0, 0), layout=PatchLayout(piece.target), via=()
            )
            images[key] = _drawn(kernel, picture, whole, parity)
    return images


def source_images(source: Pixels, pieces: Sequence[Piece], parity: Parity) -> dict[Resized, Pixels]:
    """What a device resizes itself: the decoded image of an item, or the last picture on a piece's way."""
    images: dict[Resized, Pixels] = {}
    for piece in pieces:
        picture = source
        for step in piece.via:
            picture = _drawn(cpu.resize_patchify, picture, step, parity)
        images[resized_key(piece)] = picture
    return images


def _drawn(kernel: ResizePatchify, source: Pixels, piece: Piece, parity: Parity) -> Pixels:
    """The canvas of a piece: one patch of its size, pixel by pixel."""
    image = np.empty((*piece.canvas, 3), np.uint8)
    whole = replace(piece, layout=PatchLayout(piece.canvas, columns="tyxc"))
    kernel([source], [Job.contiguous(0, whole, 0)], None, image.reshape(-1), Dtype.UINT8, parity)
    return image
