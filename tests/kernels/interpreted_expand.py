"""Runs the Triton expansion in the interpreter against numpy; a process of its own, by TRITON_INTERPRET."""

import itertools

import numpy as np
import torch
from patchloom_client.expand import expand_levels_numpy
from patchloom_kernels.expand import expand_levels

CASES = [((3, 2, 5, 7), 0, 1), ((2, 5, 7, 3), 3, 0), ((3, 1, 6, 4), 0, 1), ((4, 3, 2, 5), 1, 2)]


def main() -> None:
    """Prints the number of cases that are equal; the last row does not fill its block."""
    rng = np.random.default_rng(0)
    equal = 0
    for (sizes, channel, copies), masked in itertools.product(CASES, (False, True)):
        row = int(np.prod(sizes)) // sizes[copies]
        levels = rng.integers(0, 256, 7 * row, np.uint8)
        padding = rng.integers(0, 2, 7 * row, np.uint8) if masked else None
        entries = rng.standard_normal((3, 257)).astype(np.float32)
        expected = np.full(7 * row * sizes[copies], np.nan, np.float32)
        mask = None if padding is None else padding.view(np.bool_)
        expand_levels_numpy(levels, mask, entries, sizes, channel, copies, expected)
        out = torch.full((expected.size,), float("nan"))
        expand_levels(
            torch.from_numpy(levels),
            None if padding is None else torch.from_numpy(padding),
            torch.from_numpy(entries),
            sizes,
            channel,
            copies,
            out,
        )
        np.testing.assert_array_equal(out.numpy(), expected)
        equal += 1
    print(equal)


if __name__ == "__main__":
    main()
