"""Bytes moved and arithmetic of each JPEG launch, from the plan alone, against the least possible."""

from collections.abc import Sequence
from dataclasses import dataclass

from patchloom_kernels.jpeg.parse import Jpeg

# Bits of a symbol with its value, measured on photographs and screenshots of quality 75 to 95.
_BITS_PER_SYMBOL = 5
# Integer operations in the compiled kernels: of one symbol, one transformed block, one pixel.
_SYMBOL, _BLOCK, _PIXEL = 75, 64 * 24, 70


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch over a batch: bytes between the kernel and memory, integer operations."""

    name: str
    bytes: int
    operations: int


def launches(
    jpegs: Sequence[Jpeg], channels: int = 3, subsequence: int = 1024, rounds: int = 8
) -> list[Launch]:
    """Every launch of `decode_into` for these images, memory clears included.

    Each buffer counts once per launch that reads or writes it; what a launch reads twice comes from
    its caches. Coefficients count as if every block were written in full. The first round decodes
    each subsequence twice (photographs need two turns in the mean), later rounds read states only.
    """
    stream = sum(len(jpeg.scan) for jpeg in jpegs)
    blocks = sum(_blocks(jpeg) for jpeg in jpegs)
    pixels = sum(jpeg.width * jpeg.height for jpeg in jpegs)
    lanes, symbols = stream * 8 // subsequence + 1, stream * 8 // _BITS_PER_SYMBOL
    states = lanes * (8 + 8 + 4)
    return [
        Launch("count_kept", stream, 6 * stream),
        Launch("compact", 2 * stream, 14 * stream),
        Launch("synchronise first", stream + states, 2 * symbols * _SYMBOL),
        Launch("synchronise again", (rounds - 1) * 2 * states, (rounds - 1) * lanes * 20),
        Launch("clear", 130 * blocks, 0),
        Launch("write_coefficients", stream + states + 130 * blocks, symbols * _SYMBOL),
        Launch("sum_dc", 4 * blocks, 20 * blocks),
        Launch("transform", (130 + 64) * blocks, _BLOCK * blocks),
        Launch("colour", 64 * blocks + channels * pixels, _PIXEL * pixels),
    ]


def floor_bytes(jpegs: Sequence[Jpeg], channels: int = 3) -> int:
    """The least that a decoder with these stages can move.

    The stream three times (one pass to learn where its symbols begin, one to decode, one to destuff),
    coefficients cleared, written and read, planes written and read, pixels written.
    """
    stream = sum(len(jpeg.scan) for jpeg in jpegs)
    blocks = sum(_blocks(jpeg) for jpeg in jpegs)
    pixels = sum(jpeg.width * jpeg.height for jpeg in jpegs)
    return 3 * stream + (3 * 128 + 2 * 64) * blocks + channels * pixels


def _blocks(jpeg: Jpeg) -> int:
    down, across = jpeg.mcus
    return down * across * jpeg.blocks_per_mcu
