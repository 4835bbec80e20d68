"""Baseline JPEG files to RGB on a device: one set of launches for a batch of different images."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import triton

from patchloom_kernels.decoded import Decoded, Fallback
from patchloom_kernels.jpeg import entropy, pixels, plan
from patchloom_kernels.jpeg.parse import ZIGZAG, Jpeg, parse_jpeg
from patchloom_kernels.jpeg.plan import Plan, check_jpeg, make_plan
from patchloom_kernels.unsupported import Unsupported

DC_CHUNK = 4096
DC_WARPS = 16

_REASONS = {
    entropy.NOT_SYNCHRONISED: "jpeg not synchronised",
    entropy.BAD_MARKER: "jpeg marker inside data",
    entropy.BAD_CODE: "jpeg code invalid",
    entropy.BAD_BLOCK: "jpeg block too long",
    entropy.BAD_COUNT: "jpeg block count",
    entropy.BAD_END: "jpeg data left over",
}


@dataclass(frozen=True, slots=True)
class Split:
    """How a stream is shared among lanes, and lanes among programs.

    A lane decodes `subsequence` bits: longer ones synchronise in fewer turns, shorter ones give a
    single image more lanes. 32 lanes are one warp, which needs no barrier to learn whether any of
    them still runs. The first round settles what synchronises within a program's lanes, every
    further one carries the right state across the lanes of one more program. Photographs need two
    or three; the longest distance measured on a screenshot, 32,369 bits, at most three. Streams that
    need more than `rounds`, such as a large picture of one colour, are left to Pillow.
    """

    subsequence: int = 1024
    lanes: int = 32
    rounds: int = 8


def decode_batch(
    streams: Sequence[bytes],
    device: torch.device | str,
    fallback: Fallback | None = None,
    channels: int = 3,
) -> Decoded:
    """Decode JPEG files to RGB (channels 3) or RGBX with X = 255 (channels 4).

    The bytes equal Pillow's. An image that is not plain baseline, or whose stream proves unclean on
    the device, is given to `fallback`, which returns [H, W, 3] uint8; what that raises passes through.
    """
    found = [_examine(data) for data in streams]
    others = [
        fallback(data) if fallback is not None and isinstance(jpeg, str) else None
        for data, jpeg in zip(streams, found, strict=True)
    ]
    sizes = [_size(jpeg, other) for jpeg, other in zip(found, others, strict=True)]
    lengths = [height * width * channels for height, width in sizes]
    offsets = [sum(lengths[:i]) for i in range(len(lengths))]
    buffer = torch.empty(sum(lengths), dtype=torch.uint8, device=device)
    own = [i for i, jpeg in enumerate(found) if isinstance(jpeg, Jpeg)]
    jpegs = [jpeg for jpeg in found if isinstance(jpeg, Jpeg)]
    flags = decode_into(jpegs, buffer, [offsets[i] for i in own], channels)
    reasons = [jpeg if isinstance(jpeg, str) else None for jpeg in found]
    for i, reason in zip(own, explain(flags), strict=True):
        reasons[i] = reason
        if reason is not None and fallback is not None:
            others[i] = fallback(streams[i])
    decoded = Decoded(buffer, tuple(offsets), tuple(sizes), tuple(reasons), channels)
    for i, other in enumerate(others):
        if other is not None:
            decoded.put(i, other)
    return decoded


def _examine(data: bytes) -> Jpeg | str:
    try:
        jpeg = parse_jpeg(data)
        check_jpeg(jpeg)
    except Unsupported as refusal:
        return refusal.reason
    return jpeg


def _size(jpeg: Jpeg | str, other: npt.NDArray[np.uint8] | None) -> tuple[int, int]:
    if isinstance(jpeg, Jpeg):
        return jpeg.height, jpeg.width
    return (0, 0) if other is None else (other.shape[0], other.shape[1])


def explain(flags: torch.Tensor) -> list[str | None]:
    """Per image None for a clean stream, else why its pixels do not count. Waits for the device."""
    return [next((reason for bit, reason in _REASONS.items() if flag & bit), None) for flag in flags.tolist()]


def decode_into(
    jpegs: Sequence[Jpeg],
    out: torch.Tensor,
    offsets: Sequence[int],
    channels: int = 3,
    split: Split = Split(),
) -> torch.Tensor:
    """Enqueue the decoding of images that passed `check_jpeg` into `out`, a flat uint8 buffer.

    Image i becomes [H, W, channels] at byte offsets[i]. Returns flags [images] int32 on the device,
    0 for a clean stream (see `explain`); the pixels of the others are undefined, but nothing outside
    their own bytes is written. Does not wait for the device.
    """
    if not jpegs:
        return torch.zeros(0, dtype=torch.int32, device=out.device)
    for jpeg, offset in zip(jpegs, offsets, strict=True):
        end = offset + jpeg.height * jpeg.width * channels
        if offset < 0 or end > out.numel():
            raise ValueError(f"image of bytes {offset}:{end} is outside of out[{out.numel()}]")
    tables = make_plan(jpegs, offsets, split.subsequence)
    return _launch(tables, _Tables(tables, out.device), out, channels, split)


class _Tables:
    """A plan on the device."""

    def __init__(self, tables: Plan, device: torch.device) -> None:
        def upload(array: npt.NDArray[np.generic]) -> torch.Tensor:
            return torch.from_numpy(array).to(device, non_blocking=True)

        self.source = upload(np.frombuffer(bytearray().join(tables.scans), np.uint8))
        self.streams, self.images = upload(tables.streams), upload(tables.images)
        self.planes, self.quants = upload(tables.planes), upload(tables.quants)
        self.slots, self.lookup = upload(tables.slots), upload(tables.lookup)
        self.tile_stream, self.lane_stream = upload(tables.tile_stream), upload(tables.lane_stream)
        self.dct_plane, self.pixel_image = upload(tables.dct_plane), upload(tables.pixel_image)
        self.natural = upload(ZIGZAG)


def _launch(tables: Plan, on: _Tables, out: torch.Tensor, channels: int, split: Split) -> torch.Tensor:
    device, lanes = out.device, len(tables.lane_stream)

    def empty(count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(count, dtype=dtype, device=device)

    flags = torch.zeros(len(tables.images), dtype=torch.int32, device=device)
    tiles = len(tables.tile_stream)
    kept, bits = empty(tiles, torch.int32), empty(len(tables.streams), torch.int32)
    words = empty(tables.words, torch.int32)
    by_tile = (on.source, on.tile_stream, on.streams, kept)
    entropy.count_kept[(tiles,)](*by_tile, flags, TILE=plan.TILE_BYTES)
    sums = torch.cumsum(kept, 0, dtype=torch.int64)
    entropy.compact[(tiles,)](*by_tile, sums, words.view(torch.uint8), bits, TILE=plan.TILE_BYTES)

    starts, ends = empty(lanes, torch.int64), empty(lanes, torch.int64)
    counts, programs = empty(lanes, torch.int32), triton.cdiv(lanes, split.lanes)
    edges = empty(2 * programs, torch.int64).view(2, programs)
    streams = (words, bits, on.lane_stream, on.streams, on.images, on.slots, on.lookup)
    sizes = {"LANES": split.lanes, "SUBSEQUENCE": split.subsequence}
    sizes["num_warps"] = max(1, split.lanes // 32)
    for turn in range(split.rounds):
        entropy.synchronise[(programs,)](
            *streams,
            starts,
            ends,
            counts,
            edges[turn % 2],
            edges[1 - turn % 2],
            lanes,
            FIRST=turn == 0,
            **sizes,
        )
    count_sums = torch.cumsum(counts, 0, dtype=torch.int64)
    coefficients = torch.zeros(tables.blocks * 64, dtype=torch.int16, device=device)
    dc = torch.zeros(tables.blocks, dtype=torch.int16, device=device)
    entropy.write_coefficients[(programs,)](
        *streams, on.natural, starts, ends, counts, count_sums, coefficients, dc, flags, lanes, **sizes
    )
    entropy.sum_dc[(len(tables.streams), 3)](
        on.streams, on.images, on.planes, dc, CHUNK=DC_CHUNK, num_warps=DC_WARPS
    )

    samples = empty(tables.sample_bytes, torch.uint8)
    pixels.transform[(len(tables.dct_plane),)](
        on.dct_plane, on.planes, on.quants, coefficients, dc, samples, BLOCKS=plan.DCT_BLOCKS
    )
    pixels.colour[(len(tables.pixel_image),)](
        on.pixel_image, on.images, on.planes, samples, out, CHANNELS=channels, PIXELS=plan.PIXELS
    )
    return flags
