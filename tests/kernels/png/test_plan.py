"""The segments into which filter types cut an image."""

import numpy as np
import pytest
from patchloom_kernels.png.parse import parse_png
from patchloom_kernels.png.plan import Image, inflate_png, make_plan
from patchloom_kernels.unsupported import Unsupported
from png_files import png_file


def image(kinds):
    rows = np.zeros((len(kinds), 4), np.uint8)
    rows[:, 0] = kinds
    return inflate_png(parse_png(png_file(3, len(kinds), 8, 0, rows)))


def test_segments_begin_at_none_and_sub_and_are_waves_if_average_or_paeth_is_in_them():
    batch = [image([2, 2, 1, 2, 4, 0, 0, 3]), image([4, 1])]
    plan = make_plan(batch, [0, 72], (0, 0, 0))
    assert plan.sums.tolist() == [[0, 0, 2], [0, 5, 1], [1, 1, 1]]
    assert plan.waves.tolist() == [[0, 2, 3], [0, 6, 2], [1, 0, 1]]
    assert plan.images[:, Image.FILTERED].tolist() == [0, 32]
    assert plan.images[:, Image.ROWS].tolist() == [0, 24]
    assert (plan.row_bytes, plan.longest_row, plan.pixel_image.tolist()) == (30, 3, [0, 1])


def test_unknown_filters_are_left_to_pillow():
    with pytest.raises(Unsupported, match="filter type"):
        image([0, 5])
