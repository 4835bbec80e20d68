"""Arrays of many kinds in one buffer, so that they go to a device in one copy."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

ALIGNMENT = 16
"""Every array in a buffer begins at a multiple of this: kernels are compiled for aligned pointers."""


def aligned(size: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(slots=True)
class Packing:
    """Lays arrays out one behind the other, at known offsets, before any of them is copied.

    `room` bytes at the beginning are left to what the device computes.
    """

    room: int = 0
    size: int = field(init=False)
    _arrays: list[tuple[int, NDArray[Any]]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.size = self.room = aligned(self.room)

    def add(self, array: NDArray[Any]) -> int:
        """The offset at which `array` will stand, C-ordered; it may be strided here."""
        offset = self.size
        self._arrays.append((offset, array))
        self.size += aligned(array.nbytes)
        return offset

    def write(self, staging: NDArray[np.uint8]) -> None:
        """Copy all arrays into `staging` [size - room], which begins where `room` ends."""
        for offset, array in self._arrays:
            part = staging[offset - self.room :][: array.nbytes]
            np.copyto(part.view(array.dtype).reshape(array.shape), array)


def array_at(buffer: torch.Tensor, offset: int, array: NDArray[Any]) -> torch.Tensor:
    """The view of a uint8 buffer that has the type and the shape of a packed array."""
    dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    return buffer[offset : offset + array.nbytes].view(dtype).view(array.shape)


def upload(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Arrays on `device`, by one copy on the current stream."""
    packing = Packing()
    offsets = [packing.add(array) for array in arrays]
    staging = np.empty(packing.size, np.uint8)
    packing.write(staging)
    buffer = torch.from_numpy(staging).to(device)
    return [array_at(buffer, offset, array) for offset, array in zip(offsets, arrays, strict=True)]
