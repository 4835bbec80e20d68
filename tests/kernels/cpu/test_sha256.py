"""Two messages side by side have the digests that hashlib gives."""

import hashlib

import numpy as np
import pytest
from patchloom_kernels.cpu.sha256 import available, sha256

pytestmark = pytest.mark.skipif(not available(), reason="this processor has no SHA instructions")


def by_hashlib(messages):
    return [hashlib.sha256(first + second).hexdigest() for first, second in messages]


def test_every_length_around_the_edges_of_blocks():
    rng = np.random.default_rng(0)
    messages = [(rng.bytes(a), rng.bytes(b)) for a in (*range(0, 132, 7), 63, 64, 65) for b in range(140)]
    assert sha256(messages) == by_hashlib(messages)


@pytest.mark.parametrize("count", range(6))
def test_any_number_of_messages_of_unlike_lengths(count):
    rng = np.random.default_rng(count)
    for _ in range(20):
        sizes = rng.integers(0, 4) * rng.integers(0, 60_000, count)
        messages = [(rng.bytes(int(rng.integers(0, 200))), rng.bytes(int(size))) for size in sizes]
        assert sha256(messages) == by_hashlib(messages)
