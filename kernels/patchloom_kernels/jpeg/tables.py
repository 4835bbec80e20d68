"""Huffman codes as two-level lookup tables, the form in which the decoding lanes read them."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from patchloom_kernels.jpeg.parse import HuffmanTable

PRIMARY_BITS = 9
SECOND_BITS = 16 - PRIMARY_BITS


@lru_cache(maxsize=1024)
def lookup_table(table: HuffmanTable) -> npt.NDArray[np.int16]:
    """[512 + 128 k] int16, indexed by the next 9 bits, then for longer codes by the 7 bits behind.

    An entry is length << 8 | symbol, 0 where no code begins so. A negative entry -1 - j of the first
    512 names the j-th second table, which starts at 512 + 128 j. Do not write to the result.
    """
    by_prefix = np.zeros(1 << 16, np.int16)
    code, position = 0, 0
    for length, count in enumerate(table.counts, 1):
        for symbol in table.symbols[position : position + count]:
            by_prefix[code << (16 - length) : (code + 1) << (16 - length)] = length << 8 | symbol
            code += 1
        position += count
        code <<= 1
    rows = by_prefix.reshape(1 << PRIMARY_BITS, 1 << SECOND_BITS)
    deep = np.flatnonzero((rows != rows[:, :1]).any(1) | (rows[:, 0] >> 8 > PRIMARY_BITS))
    primary = rows[:, 0].copy()
    primary[deep] = -1 - np.arange(len(deep))
    return np.concatenate([primary, rows[deep].ravel()])
