# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False
# mypy: disallow-untyped-calls=False, disallow-incomplete-defs=False
"""Levels to the model's values in Triton: one read a level, one write a value, no float arithmetic."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from patchloom_kernels.cpu.expand import input_steps

BLOCK = 1024


@triton.jit
def expand_kernel(
    levels,
    padding,
    entries,
    out,
    total,
    size1,
    size2,
    size3,
    step0,
    step1,
    step2,
    step3,
    row_in,
    row_out,
    CHANNEL: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    row = at // row_out
    rest = (at - row * row_out).to(tl.int32)
    d = rest % size3
    rest = rest // size3
    c = rest % size2
    rest = rest // size2
    b = rest % size1
    a = rest // size1
    element = row * row_in + a * step0 + b * step1 + c * step2 + d * step3
    entry = tl.load(levels + element, mask=inside, other=0).to(tl.int32)
    if MASKED:
        entry = tl.where(tl.load(padding + element, mask=inside, other=0) != 0, 256, entry)
    if CHANNEL == 0:
        channel = a
    elif CHANNEL == 1:
        channel = b
    elif CHANNEL == 2:
        channel = c
    else:
        channel = d
    tl.store(out + at, tl.load(entries + channel * 257 + entry, mask=inside, other=0), mask=inside)


def expand_levels(
    levels: torch.Tensor,
    padding: torch.Tensor | None,
    entries: torch.Tensor,
    sizes: Sequence[int],
    channel: int,
    copies: int,
    out: torch.Tensor,
) -> None:
    """As `patchloom_kernels.cpu.expand.expand_levels`; all tensors on one device, `padding` uint8."""
    steps, row_in = input_steps(sizes, copies)
    row_out = sizes[0] * sizes[1] * sizes[2] * sizes[3]
    if out.numel() == 0:
        return
    expand_kernel[(triton.cdiv(out.numel(), BLOCK),)](
        levels,
        levels if padding is None else padding,
        entries,
        out,
        out.numel(),
        *sizes[1:],
        *(int(step) for step in steps),
        row_in,
        row_out,
        CHANNEL=channel,
        MASKED=padding is not None,
        BLOCK=BLOCK,
    )
