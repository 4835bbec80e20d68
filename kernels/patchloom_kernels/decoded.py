"""What a batch decoder returns: pictures in one buffer, and why some are not the kernels' own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from patchloom_kernels.unsupported import Unsupported

_Header = TypeVar("_Header")

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


def decode_found(
    streams: Sequence[bytes],
    examine: Callable[[bytes], _Header],
    size: Callable[[_Header], tuple[int, int]],
    decode: Callable[[list[_Header], torch.Tensor, list[int]], list[str | None]],
    device: torch.device | str,
    fallback: Fallback | None,
    channels: int,
) -> Decoded:
    """A batch of files through one kernel path, what it leaves out through `fallback`.

    `examine` reads a file or raises Unsupported, `size` is (height, width) of what it read, `decode`
    writes those that were read to their byte offsets and says why a result does not count.
    """
    found: dict[int, _Header] = {}
    others: dict[int, npt.NDArray[np.uint8]] = {}
    reasons: list[str | None] = [None] * len(streams)
    for i, data in enumerate(streams):
        try:
            found[i] = examine(data)
        except Unsupported as refusal:
            reasons[i] = refusal.reason
            if fallback is not None:
                others[i] = fallback(data)
    known = {i: size(header) for i, header in found.items()}
    known |= {i: (other.shape[0], other.shape[1]) for i, other in others.items()}
    sizes = [known.get(i, (0, 0)) for i in range(len(streams))]
    *offsets, total = accumulate((h * w * channels for h, w in sizes), initial=0)
    buffer = torch.empty(total, dtype=torch.uint8, device=device)
    unclean = decode(list(found.values()), buffer, [offsets[i] for i in found])
    for i, reason in zip(found, unclean, strict=True):
        reasons[i] = reason
        if reason is not None and fallback is not None:
            others[i] = fallback(streams[i])
    decoded = Decoded(buffer, tuple(offsets), tuple(sizes), tuple(reasons), channels)
    for i, other in others.items():
        decoded.put(i, other)
    return decoded
