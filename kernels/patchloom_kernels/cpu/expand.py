"""Levels to the model's values in compiled code: the CPU twin of `patchloom_kernels.expand`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

PAD_ENTRY = 256


def expand_levels(
    levels: NDArray[np.uint8],
    padding: NDArray[np.bool_] | None,
    entries: NDArray[Any],
    sizes: Sequence[int],
    channel: int,
    copies: int,
    out: NDArray[Any],
) -> None:
    """Write `entries[channel of the element, level]` for every element of flat rows to the flat `out`.

    A row has four axes of `sizes`; axis `channel` counts channels, and axis `copies` counts temporal
    copies, of which `levels` has only the first. Where `padding` is true, the entry is the table's last.
    Runs on the calling thread without the GIL.
    """
    steps, row = input_steps(sizes, copies)
    mask = np.zeros(1, np.bool_) if padding is None else padding
    shape = np.array(sizes, np.int64)
    if entries.itemsize == 2:  # numba has no float16: its bits are moved
        entries, out = entries.view(np.uint16), out.view(np.uint16)
    _expand(levels, mask, padding is not None, entries, shape, steps, row, channel, out)


def input_steps(sizes: Sequence[int], copies: int) -> tuple[NDArray[np.int64], int]:
    """Element strides of the four axes in `levels`, 0 along the copies, and the length of a row."""
    steps, step = [0] * 4, 1
    for axis in reversed(range(4)):
        if axis != copies:
            steps[axis] = step
            step *= sizes[axis]
    return np.array(steps, np.int64), step


@njit(nogil=True, cache=True)
def _expand(
    levels: Any,
    mask: Any,
    masked: bool,
    entries: Any,
    sizes: Any,
    steps: Any,
    row_size: int,
    channel: int,
    out: Any,
) -> None:
    at = 0
    for row in range(levels.shape[0] // row_size):
        for a in range(sizes[0]):
            for b in range(sizes[1]):
                for c in range(sizes[2]):
                    begin = row * row_size + a * steps[0] + b * steps[1] + c * steps[2]
                    index = a if channel == 0 else (b if channel == 1 else c)
                    for d in range(sizes[3]):
                        element = begin + d * steps[3]
                        entry = PAD_ENTRY if masked and mask[element] else int(levels[element])
                        out[at] = entries[d if channel == 3 else index, entry]
                        at += 1
