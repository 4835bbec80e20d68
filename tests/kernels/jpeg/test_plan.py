"""The descriptor tables: streams of restart intervals, and what is refused before any launch."""

import dataclasses

import numpy as np
import pytest
from jpeg_files import encode, picture
from patchloom_kernels.jpeg.parse import parse_jpeg
from patchloom_kernels.jpeg.plan import Plane, Stream, check_jpeg, make_plan
from patchloom_kernels.unsupported import Unsupported


def restarts():
    return parse_jpeg(encode(picture(40, 20), "420", 80, restart_marker_blocks=2))


def with_scan(jpeg, scan):
    return dataclasses.replace(jpeg, scan=memoryview(bytes(scan)))


def test_every_restart_interval_is_a_stream_of_its_own():
    jpeg, other = restarts(), parse_jpeg(encode(picture(9, 9), "444", 80))
    scan = bytes(jpeg.scan)
    first, second = scan.index(b"\xff\xd0"), scan.index(b"\xff\xd1")
    plan = make_plan([jpeg, other], [0, 2400], 256)
    lengths = [first, second - first - 2, len(scan) - second - 2, len(other.scan)]
    streams = plan.streams
    assert streams[:, Stream.LENGTH].tolist() == lengths
    assert streams[:, Stream.SOURCE].tolist() == [0, first + 2, second + 2, len(scan)]
    assert streams[:, Stream.IMAGE].tolist() == [0, 0, 0, 1]
    assert streams[:, Stream.BLOCKS].tolist() == [12, 12, 12, 12]
    assert streams[:, Stream.FIRST_BLOCK].tolist() == [0, 12, 24, 36]
    lanes = [-(-length * 8 // 256) for length in lengths]
    assert streams[:, Stream.LANES].tolist() == lanes
    assert plan.lane_stream.tolist() == np.repeat(range(4), lanes).tolist()
    assert plan.planes[:, Plane.BLOCKS].tolist() == [24, 6, 6, 4, 4, 4]
    assert plan.planes[:, Plane.SAMPLES].tolist() == [0, 1536, 1920, 2304, 2560, 2816]


def test_streams_never_share_a_word():
    plan = make_plan([restarts()] * 3, [0, 2400, 4800], 1024)
    ends = plan.streams[:, Stream.WORD] + (plan.streams[:, Stream.LENGTH] + 3) // 4 + 1
    assert (ends[:-1] < plan.streams[1:, Stream.WORD]).all()
    assert ends[-1] < plan.words


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"\xff\xd0", b"\xff\xd1", "jpeg restart order"),
        (b"\xff\xd1", b"\xff\0", "jpeg restart count"),
        (b"\xff\xd1", b"\xff\xd1\xff\xd2", "jpeg restart count"),
    ],
)
def test_restart_markers_out_of_order_are_left_to_pillow(old, new, reason):
    jpeg = restarts()
    with pytest.raises(Unsupported) as caught:
        check_jpeg(with_scan(jpeg, bytes(jpeg.scan).replace(old, new)))
    assert caught.value.reason == reason


def test_an_empty_restart_interval_is_left_to_pillow():
    with pytest.raises(Unsupported, match="without data"):
        check_jpeg(with_scan(restarts(), b"\xff\xd0\x11\xff\xd1\x11"))


def test_images_too_large_for_the_tables_are_left_to_pillow():
    with pytest.raises(Unsupported, match="too large"):
        check_jpeg(dataclasses.replace(restarts(), width=1 << 15, height=1 << 15))
