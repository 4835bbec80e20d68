"""PNG files to RGB on a device: inflate on the host, filters undone and pixels emitted in Triton."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import triton

from patchloom_kernels.decoded import Decoded, Fallback
from patchloom_kernels.png import kernels, plan
from patchloom_kernels.png.parse import parse_png
from patchloom_kernels.png.plan import FilteredPng, Plan, inflate_png, make_plan
from patchloom_kernels.unsupported import Unsupported

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
    found = [_inflate(data) for data in streams]
    others = [
        fallback(data) if fallback is not None and isinstance(image, str) else None
        for data, image in zip(streams, found, strict=True)
    ]
    sizes = [_size(image, other) for image, other in zip(found, others, strict=True)]
    lengths = [height * width * channels for height, width in sizes]
    offsets = [sum(lengths[:i]) for i in range(len(lengths))]
    buffer = torch.empty(sum(lengths), dtype=torch.uint8, device=device)
    own = [i for i, image in enumerate(found) if isinstance(image, FilteredPng)]
    batch = [image for image in found if isinstance(image, FilteredPng)]
    flags = decode_into(batch, buffer, [offsets[i] for i in own], background, channels)
    reasons = [image if isinstance(image, str) else None for image in found]
    for i, reason in zip(own, explain(flags), strict=True):
        reasons[i] = reason
        if reason is not None and fallback is not None:
            others[i] = fallback(streams[i])
    decoded = Decoded(buffer, tuple(offsets), tuple(sizes), tuple(reasons), channels)
    for i, other in enumerate(others):
        if other is not None:
            decoded.put(i, other)
    return decoded


def _inflate(data: bytes) -> FilteredPng | str:
    try:
        return inflate_png(parse_png(data))
    except Unsupported as refusal:
        return refusal.reason


def _size(image: FilteredPng | str, other: npt.NDArray[np.uint8] | None) -> tuple[int, int]:
    if isinstance(image, FilteredPng):
        return image.png.height, image.png.width
    return (0, 0) if other is None else (other.shape[0], other.shape[1])


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
    for image, offset in zip(batch, offsets, strict=True):
        end = offset + image.png.height * image.png.width * channels
        if offset < 0 or end > out.numel():
            raise ValueError(f"image of bytes {offset}:{end} is outside of out[{out.numel()}]")
    tables = make_plan(batch, offsets, background)
    filtered = np.concatenate([image.rows.reshape(-1) for image in batch])
    return _launch(tables, filtered, out, channels)


def _launch(tables: Plan, filtered: npt.NDArray[np.uint8], out: torch.Tensor, channels: int) -> torch.Tensor:
    def upload(array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(out.device, non_blocking=True)

    images, source = upload(tables.images), upload(filtered)
    rows = torch.empty(tables.row_bytes, dtype=torch.uint8, device=out.device)
    flags = torch.zeros(len(images), dtype=torch.int32, device=out.device)
    if len(tables.sums):
        sums, count = upload(tables.sums), len(tables.sums)
        columns = triton.cdiv(tables.longest_row, SUM_COLUMNS)
        kernels.sum_across[(count, 4)](sums, images, source, rows, CHUNK=SUM_CHUNK)
        kernels.sum_down[(count, columns)](sums, images, source, rows, COLUMNS=SUM_COLUMNS)
    short = tables.waves[:, plan.Segment.COUNT] <= SHORT
    for segments, lanes in ((tables.waves[short], SHORT), (tables.waves[~short], LONG)):
        if len(segments):
            kernels.wavefront[(len(segments), 4)](
                upload(segments), images, source, rows, LANES=lanes, num_warps=lanes // 32
            )
    kernels.emit[(len(tables.pixel_image),)](
        upload(tables.pixel_image),
        images,
        upload(tables.tables),
        rows,
        out,
        flags,
        CHANNELS=channels,
        PIXELS=plan.PIXELS,
    )
    return flags
