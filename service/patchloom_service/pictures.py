"""The pixel cache: resized images, which every dtype, encoding and layout is made from.

A resized image is a quarter of its bf16 patches and holds no temporal copies; laying it out again costs
what copying the patches would.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from patchloom_kernels.layout import Piece, Resample

from patchloom_service.media.cache import Cache
from patchloom_service.models.base import MediaPlan, Size

Pixels: TypeAlias = npt.NDArray[np.uint8]
Resized: TypeAlias = tuple[Size, Resample]


@dataclass(frozen=True, slots=True)
class Pictures:
    """The resized images of one item, uint8 [h, w, 3], read-only; `by` finds the one of a piece."""

    plan: MediaPlan
    fingerprint: str
    images: Mapping[Resized, Pixels]

    @property
    def nbytes(self) -> int:
        """Bytes of the images."""
        return sum(image.nbytes for image in self.images.values())

    def by(self, piece: Piece) -> Pixels:
        """The image that `piece` lays out."""
        return self.images[piece.target, piece.resample]


PictureCache: TypeAlias = Cache[Pictures]
