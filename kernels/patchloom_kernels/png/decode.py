"""PNG files to RGB on a device: inflate on the host, filters undone and pixels emitted in Triton."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton

from patchloom_kernels.decoded import Decoded, Fallback, decode_found
from patchloom_kernels.packing import upload
from patchloom_kernels.png import kernels, plan
from patchloom_kernels.png.parse import Colour, Png, parse_png
from patchloom_kernels.png.plan import FilteredPng, Plan, inflate_png, make_plan

# Rows that advance together: short segments (screenshots) take one warp, which exchanges pixels by
# shuffles; long ones (photographs) as many rows as a program can hold, since bands are sequential.
SHORT, LONG = 32, 512
SUM_CHUNK = 1024
SUM_COLUMNS = 512


def decode_batch(
    streams: Sequence[bytes],
    device: torch.device | str,
    background: tuple[int, int, int],
    fallback: Fallback | None = None,
    channels: int = 3,
) -> Decoded:
    """Decode PNG files to RGB (channels 3) or RGBX with X = 255 (channels 4) on a background.

    The bytes equal Pillow's, composited by `Image.alpha_composite`. An image that is Pillow's to
    judge is given to `fallback`, which returns [H, W, 3] uint8; what that raises passes through.
    """

    def decode(found: list[FilteredPng], buffer: torch.Tensor, offsets: list[int]) -> list[str | None]:
        return explain(decode_into(found, buffer, offsets, background, channels))

    return decode_found(streams, _inflate, _size, decode, device, fallback, channels)


def _inflate(data: bytes) -> FilteredPng:
    return inflate_png(parse_png(data))


def _size(image: FilteredPng) -> tuple[int, int]:
    return image.png.height, image.png.width


def explain(flags: torch.Tensor) -> list[str | None]:
    """Per image None, or why its pixels do not count. Waits for the device."""
    return ["png palette index" if flag & kernels.BAD_INDEX else None for flag in flags.tolist()]


def decode_into(
    batch: Sequence[FilteredPng],
    out: torch.Tensor,
    offsets: Sequence[int],
    background: tuple[int, int, int],
    channels: int = 3,
) -> torch.Tensor:
    """Enqueue the pixels of inflated images into `out`, a flat uint8 buffer.

    Image i becomes [H, W, channels] at byte offsets[i], transparent pixels on the opaque background.
    Returns flags [images] int32 on the device, 0 for success (see `explain`). Does not wait.
    """
    if not batch:
        return torch.zeros(0, dtype=torch.int32, device=out.device)
    prepared = prepare(batch, offsets, out.numel(), background, channels)
    return launch(prepared, upload(prepared.arrays, out.device), out)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The decoding of a batch of one image or more, ready to launch once `arrays` are on the device."""

    plan: Plan
    arrays: tuple[npt.NDArray[Any], ...]
    channels: int


def prepare(
    batch: Sequence[FilteredPng],
    offsets: Sequence[int],
    size: int,
    background: tuple[int, int, int],
    channels: int = 3,
) -> Prepared:
    """The host's part of `decode_into` for an output of `size` bytes."""
    for image, offset in zip(batch, offsets, strict=True):
        end = offset + image.png.height * image.png.width * channels
        if offset < 0 or end > size:
            raise ValueError(f"image of bytes {offset}:{end} is outside of out[{size}]")
    tables = make_plan(batch, offsets, background)
    short = tables.waves[:, plan.Segment.COUNT] <= SHORT
    arrays = (
        np.concatenate([image.rows.reshape(-1) for image in batch]),
        tables.images,
        tables.sums,
        tables.waves[short],
        tables.waves[~short],
        tables.pixel_image,
        tables.tables,
    )
    return Prepared(tables, arrays, channels)


def warm(device: torch.device) -> None:
    """Compile the kernels by decoding three pictures, one for each kind of segment."""
    batch = []
    for height, filter_type in ((1, 1), (SHORT, 4), (SHORT + 1, 4)):
        rows = np.zeros((height, 4), np.uint8)
        rows[:, 0] = filter_type
        batch.append(FilteredPng(Png(1, height, 8, Colour.RGB, None, None, ()), rows))
    out = torch.empty(3 * (2 * SHORT + 2), dtype=torch.uint8, device=device)
    decode_into(batch, out, [0, 3, 3 * (SHORT + 1)], (255, 255, 255))


def launch(prepared: Prepared, arrays: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    """The device's part of `decode_into`; enqueues on the current stream."""
    tables = prepared.plan
    source, images, sums, short, long, pixel_image, pixel_tables = arrays
    rows = torch.empty(tables.row_bytes, dtype=torch.uint8, device=out.device)
    flags = torch.zeros(len(images), dtype=torch.int32, device=out.device)
    if count := len(sums):
        columns = triton.cdiv(tables.longest_row, SUM_COLUMNS)
        kernels.sum_across[(count, 4)](sums, images, source, rows, CHUNK=SUM_CHUNK)
        kernels.sum_down[(count, columns)](sums, images, source, rows, COLUMNS=SUM_COLUMNS)
    for segments, lanes in ((short, SHORT), (long, LONG)):
        if count := len(segments):
            kernels.wavefront[(count, 4)](segments, images, source, rows, LANES=lanes, num_warps=lanes // 32)
    kernels.emit[(len(pixel_image),)](
        pixel_image,
        images,
        pixel_tables,
        rows,
        out,
        flags,
        CHANNELS=prepared.channels,
        PIXELS=plan.PIXELS,
    )
    return flags
