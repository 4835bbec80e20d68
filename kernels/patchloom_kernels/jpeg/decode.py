"""Baseline JPEG files to RGB on a device: one set of launches for a batch of different images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton

from patchloom_kernels.decoded import Decoded, Fallback, decode_found
from patchloom_kernels.jpeg import entropy, pixels, plan
from patchloom_kernels.jpeg.parse import ZIGZAG, Colour, Component, HuffmanTable, Jpeg, parse_jpeg
from patchloom_kernels.jpeg.plan import Plan, check_jpeg, make_plan
from patchloom_kernels.packing import upload

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


INTERPRETED = Split(512, 512, 2)
"""Triton's interpreter takes as long for a program of many lanes as for one of few."""


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

    def decode(found: list[Jpeg], buffer: torch.Tensor, offsets: list[int]) -> list[str | None]:
        return explain(decode_into(found, buffer, offsets, channels))

    return decode_found(streams, _examine, _size, decode, device, fallback, channels)


def _examine(data: bytes) -> Jpeg:
    jpeg = parse_jpeg(data)
    check_jpeg(jpeg)
    return jpeg


def _size(jpeg: Jpeg) -> tuple[int, int]:
    return jpeg.height, jpeg.width


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
    prepared = prepare(jpegs, offsets, out.numel(), channels, split)
    return launch(prepared, upload(prepared.arrays, out.device), out)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The decoding of a batch of one image or more, ready to launch once `arrays` are on the device."""

    plan: Plan
    arrays: tuple[npt.NDArray[Any], ...]
    channels: int
    split: Split


def prepare(
    jpegs: Sequence[Jpeg], offsets: Sequence[int], size: int, channels: int = 3, split: Split = Split()
) -> Prepared:
    """The host's part of `decode_into` for an output of `size` bytes."""
    for jpeg, offset in zip(jpegs, offsets, strict=True):
        end = offset + jpeg.height * jpeg.width * channels
        if offset < 0 or end > size:
            raise ValueError(f"image of bytes {offset}:{end} is outside of out[{size}]")
    tables = make_plan(jpegs, offsets, split.subsequence)
    arrays = (
        np.frombuffer(bytearray().join(tables.scans), np.uint8),
        tables.streams,
        tables.images,
        tables.planes,
        tables.quants,
        tables.slots,
        tables.lookup,
        tables.tile_stream,
        tables.lane_stream,
        tables.dct_plane,
        tables.pixel_image,
        ZIGZAG,
    )
    return Prepared(tables, arrays, channels, split)


@dataclass(frozen=True, slots=True)
class _Tables:
    """The arrays of a plan on the device."""

    source: torch.Tensor
    streams: torch.Tensor
    images: torch.Tensor
    planes: torch.Tensor
    quants: torch.Tensor
    slots: torch.Tensor
    lookup: torch.Tensor
    tile_stream: torch.Tensor
    lane_stream: torch.Tensor
    dct_plane: torch.Tensor
    pixel_image: torch.Tensor
    natural: torch.Tensor


def warm(device: torch.device) -> None:
    """Compile the kernels by decoding a black picture."""
    code, levels = HuffmanTable(bytes([1] + 15 * [0]), b"\0"), np.ones(64, np.uint8)
    components = tuple(Component(side, side, levels, code, code) for side in (2, 1, 1))
    jpeg = Jpeg(16, 16, Colour.YCC, components, 0, memoryview(b"\0\x0f"))
    decode_into([jpeg], torch.empty(16 * 16 * 3, dtype=torch.uint8, device=device), [0])


def launch(prepared: Prepared, arrays: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    """The device's part of `decode_into`; enqueues on the current stream."""
    tables, on, channels, split = prepared.plan, _Tables(*arrays), prepared.channels, prepared.split
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
    # an even row keeps the second one aligned
    edges = empty(2 * (programs + programs % 2), torch.int64).view(2, -1)
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
