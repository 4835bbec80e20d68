"""Resampling tables: bounds, weights, shift and pass order."""

import numpy as np
import pytest
from patchloom_kernels.filters import SHIFT, axis_table, vertical_first
from patchloom_kernels.layout import Parity, Resample

SIZES = [(1, 1), (1, 9), (9, 1), (5, 7), (97, 31), (31, 97), (640, 224), (1000, 3)]


@pytest.mark.parametrize("parity", Parity)
@pytest.mark.parametrize("resample", Resample)
def test_every_output_reads_inside_the_source_and_bounds_are_monotone(
    resample: Resample, parity: Parity
) -> None:
    for in_size, out_size in SIZES:
        table = axis_table(in_size, out_size, resample, parity)
        first, end = table.bounds[:, 0], table.bounds.sum(axis=1)
        assert table.bounds.shape == (out_size, 2)
        assert table.bounds.dtype == table.weights.dtype == np.int32
        assert first.min() >= 0
        assert end.max() <= in_size
        assert (table.bounds[:, 1] >= 1).all()
        assert (np.diff(first) >= 0).all()
        assert (np.diff(end) >= 0).all()


@pytest.mark.parametrize("parity", Parity)
def test_weights_behind_the_count_are_zero(parity: Parity) -> None:
    table = axis_table(97, 31, Resample.BICUBIC, parity)
    behind = np.arange(table.taps)[None, :] >= table.bounds[:, 1:]
    assert not table.weights[behind].any()


def test_an_unchanged_size_copies() -> None:
    table = axis_table(5, 5, Resample.LANCZOS, Parity.PILLOW13)
    assert table.identity
    assert table.bounds.tolist() == [[0, 1], [1, 1], [2, 1], [3, 1], [4, 1]]
    assert table.weights.tolist() == [[1 << SHIFT]] * 5


def test_bilinear_halving_is_pillows_triangle() -> None:
    table = axis_table(4, 2, Resample.BILINEAR, Parity.PILLOW13)
    unit = 1 << SHIFT
    assert table.bounds.tolist() == [[0, 3], [1, 3]]
    expected = np.array([[3, 3, 1], [1, 3, 3]]) / 7 * unit
    assert table.weights.tolist() == np.round(expected).astype(int).tolist()


def test_torch_weights_are_int16_times_a_power_of_two() -> None:
    for in_size, out_size in SIZES[3:]:
        table = axis_table(in_size, out_size, Resample.BICUBIC, Parity.ATEN_U8)
        unit = np.bitwise_or.reduce(table.weights, axis=None)
        unit &= -unit
        assert np.abs(table.weights // unit).max() < 1 << 15


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="sizes must be at least 1, got 0 -> 4"):
        axis_table(0, 4, Resample.BICUBIC, Parity.ATEN_U8)


@pytest.mark.parametrize(
    ("source", "target", "first12", "first13"),
    [
        ((2400, 1080), (1876, 840), False, True),
        ((1080, 1920), (1092, 1932), False, False),
        ((100, 1), (50, 1), False, True),
        ((101, 1), (50, 1), True, True),
        ((101, 1), (101, 7), False, False),
        ((100, 100), (80, 90), False, False),
        ((100, 100), (79, 90), False, True),
    ],
)
def test_pass_order_follows_the_library(
    source: tuple[int, int], target: tuple[int, int], first12: bool, first13: bool
) -> None:
    assert vertical_first(source, target, Parity.PILLOW12) is first12
    assert vertical_first(source, target, Parity.PILLOW13) is first13
    assert vertical_first(source, target, Parity.ATEN_U8) is False
