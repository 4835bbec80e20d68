"""The lookup tables against the code's definition."""

import numpy as np
import pytest
from jpeg_files import all_symbols, canonical, comb
from patchloom_kernels.jpeg.parse import HuffmanTable
from patchloom_kernels.jpeg.reference import _codes
from patchloom_kernels.jpeg.tables import lookup_table


def found(table, window):
    entry = int(table[window >> 7])
    if entry < 0:
        entry = int(table[512 + (-1 - entry) * 128 + (window & 127)])
    return entry >> 8, entry & 255


@pytest.mark.parametrize(
    "lengths",
    [{0: 1}, {3: 16}, dict.fromkeys(all_symbols(), 8), comb(all_symbols()), comb(list(range(9)))],
)
def test_every_window_finds_its_code(lengths):
    dht, _ = canonical(lengths)
    table = HuffmanTable(dht[:16], dht[16:])
    codes, lookup = _codes(table), lookup_table(table)
    for window in np.random.default_rng(0).integers(0, 1 << 16, 2000).tolist():
        known = {(n, codes[n, window >> 16 - n]) for n in range(1, 17) if (n, window >> 16 - n) in codes}
        assert found(lookup, window) == (known.pop() if known else (0, 0))
