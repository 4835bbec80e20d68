"""The pixel cache: what every dtype, encoding and layout is made from.

On a CPU these are resized images: a quarter of their bf16 patches, without temporal copies; laying them out
again costs what copying the patches would. A device resizes faster than it could be told that it has already:
its images are kept as decoded, in its own memory.
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
    """The resized images of one item, uint8 [h, w, 3 or 4], read-only; `by` finds the one of a piece.

    Where a device resizes, there are none, and `decoded` is the image before resizing, uint8 [H, W, 3] in
    the device's memory. An audio clip has only `features`, read-only.
    """

    plan: MediaPlan
    fingerprint: str
    images: Mapping[Resized, Pixels]
    decoded: Any = None  # a torch.Tensor, which a process without a device need not know
    features: npt.NDArray[Any] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the images and features."""
        kept = 0 if self.decoded is None else int(self.decoded.nbytes)
        kept += 0 if self.features is None else self.features.nbytes
        return kept + sum(image.nbytes for image in self.images.values())

    def by(self, piece: Piece) -> Pixels:
        """The image that `piece` lays out."""
        return self.images[resized_key(piece)]


PictureCache: TypeAlias = Cache[Pictures]


def resized_key(piece: Piece) -> Resized:
    """Pieces with the same key lay the same resized image out."""
    return piece.target, piece.resample, piece.via


def kept_images(pieces: Sequence[Piece]) -> dict[Resized, Pixels] | None:
    """Room for the resized images [h, w, 4] that a kernel leaves while it lays an item's pieces out.

    None where it cannot: a picture on the way, a crop, or two pieces of one resized image.
    """
    images = {resized_key(piece): np.empty((*piece.target, 4), np.uint8) for piece in pieces}
    whole = all(piece.shows_all and not piece.via for piece in pieces)
    return images if whole and len(images) == len(pieces) else None


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


def cpu_patches(
    source: Pixels, piece: Piece, table: NormalizeTable | None, dtype: Dtype, parity: Parity
) -> npt.NDArray[Any]:
    """The values of a piece of the decoded image `source`, flat and contiguous, as `dtype.numpy`."""
    picture = source
    for step in piece.via:
        picture = _drawn(cpu.resize_patchify, picture, step, parity)
    out = np.empty(piece.rows * piece.layout.row_size(), dtype.numpy)
    job = Job.contiguous(0, replace(piece, via=()), 0)
    cpu.resize_patchify([picture], [job], table, out, dtype, parity)
    return out


def _drawn(kernel: ResizePatchify, source: Pixels, piece: Piece, parity: Parity) -> Pixels:
    """The canvas of a piece: one patch of its size, pixel by pixel."""
    image = np.empty((*piece.canvas, 3), np.uint8)
    whole = replace(piece, layout=PatchLayout(piece.canvas, columns="tyxc"))
    kernel([source], [Job.contiguous(0, whole, 0)], None, image.reshape(-1), Dtype.UINT8, parity)
    return image
