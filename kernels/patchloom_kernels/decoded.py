"""What a batch decoder returns: pictures in one buffer, and why some are not the kernels' own."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

Fallback = Callable[[bytes], npt.NDArray[np.uint8]]
"""Decodes one file to [H, W, 3] uint8 where the kernels cannot; what it raises passes through."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The pixels of a batch in one buffer.

    Image i is [height, width, channels] uint8 at byte offsets[i] of `pixels`, sizes[i] =
    (height, width). `reasons[i]` says why the kernels did not decode it, None if they did; with a
    fallback its pixels are the fallback's, without one it has size (0, 0) or undefined pixels.
    """

    pixels: torch.Tensor = field(repr=False)  # [bytes] uint8
    offsets: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]
    reasons: tuple[str | None, ...]
    channels: int

    def image(self, index: int) -> torch.Tensor:
        """A view [height, width, channels] of one image."""
        height, width = self.sizes[index]
        start = self.offsets[index]
        flat = self.pixels[start : start + height * width * self.channels]
        return flat.view(height, width, self.channels)

    def put(self, index: int, pixels: npt.NDArray[np.uint8]) -> None:
        """Write [height, width, 3] over an image; a fourth channel becomes 255."""
        image = self.image(index)
        image[..., :3] = torch.from_numpy(np.ascontiguousarray(pixels)).to(image.device)
        image[..., 3:] = 255
