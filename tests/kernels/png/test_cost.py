"""The byte model of the PNG launches: within twice the floor."""

import numpy as np
import pytest
from patchloom_kernels.png.cost import floor_bytes, launch_bytes
from patchloom_kernels.png.parse import parse_png
from patchloom_kernels.png.plan import inflate_png
from png_files import palette_chunks, png_file


@pytest.mark.parametrize(("colour", "row"), [(0, 50), (2, 150), (3, 50), (4, 100), (6, 200)])
def test_launches_move_at_most_twice_the_floor(colour, row):
    extra = palette_chunks(np.random.default_rng(0), 4) if colour == 3 else b""
    image = inflate_png(parse_png(png_file(50, 20, 8, colour, bytes(20 * (row + 1)), extra)))
    moved = launch_bytes([image])
    assert moved == {"unfilter": 20 * (2 * row + 1), "emit": 20 * (row + 150)}
    assert sum(moved.values()) < 2.2 * floor_bytes([image])
