"""The byte model of the JPEG launches: within twice the floor for ordinary files."""

import numpy as np
import pytest
from jpeg_files import SAMPLINGS, encode, picture
from patchloom_kernels.jpeg.cost import floor_bytes, launches
from patchloom_kernels.jpeg.parse import parse_jpeg


@pytest.mark.parametrize("sampling", [*SAMPLINGS, "gray"])
@pytest.mark.parametrize("channels", [3, 4])
def test_launches_move_less_than_twice_the_floor(sampling, channels):
    batch = [parse_jpeg(encode(picture(640, 360), sampling, quality)) for quality in (50, 75, 95)]
    moved = sum(launch.bytes for launch in launches(batch, channels))
    assert 1 < moved / floor_bytes(batch, channels) < 1.2


def test_the_model_of_one_block_is_counted_by_hand():
    jpeg = parse_jpeg(encode(np.zeros((8, 8, 3), np.uint8), "gray", 75))
    scan = len(jpeg.scan)
    assert floor_bytes([jpeg], 3) == 3 * scan + 512 + 192
    by_name = {launch.name: launch.bytes for launch in launches([jpeg], 3)}
    assert by_name == {
        "count_kept": scan,
        "compact": 2 * scan,
        "synchronise first": scan + 20,
        "synchronise again": 280,
        "clear": 130,
        "write_coefficients": scan + 20 + 130,
        "sum_dc": 4,
        "transform": 194,
        "colour": 64 + 192,
    }
