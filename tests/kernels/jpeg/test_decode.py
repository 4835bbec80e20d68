"""The JPEG kernels in Triton's interpreter against Pillow, many small images to a launch."""

import io

import kernel_runs
import numpy as np
import pytest
from jpeg_files import (
    SAMPLINGS,
    all_symbols,
    comb,
    encode,
    picture,
    pillow,
    random_blocks,
    write,
)
from patchloom_kernels.jpeg import decode
from patchloom_kernels.jpeg.parse import parse_jpeg
from patchloom_kernels.jpeg.plan import check_jpeg
from patchloom_kernels.unsupported import Unsupported
from PIL import Image


def assert_equal_pillow(interpreted, files, *options):
    pixels, reasons = interpreted(kernel_runs.decode_into, files, *options)
    assert reasons == [None] * len(files)
    for got, data in zip(pixels, files, strict=True):
        np.testing.assert_array_equal(got[..., :3], pillow(data))
        assert (got[..., 3:] == 255).all()


def test_every_sampling_and_size_in_one_batch_equals_pillow(interpreted):
    sizes = [(1, 1), (3, 2), (9, 17), (21, 18)]
    kinds = [*SAMPLINGS, "gray"]
    files = [encode(picture(*size), kind, 85) for size in sizes for kind in kinds]
    assert_equal_pillow(interpreted, files)


def test_restart_markers_optimised_tables_and_rgb_equal_pillow(interpreted):
    pixels = picture(33, 18)
    files = [
        encode(pixels, "420", 90, restart_marker_blocks=1),
        encode(pixels, "gray", 90, restart_marker_blocks=3),
        encode(pixels, "422", 75, restart_marker_rows=1, optimize=True),
        encode(pixels, "420", 30, optimize=True),
        encode(picture(17, 9), "444", 95, keep_rgb=True),
        encode(picture(16, 16), "444", 100),
        encode(picture(16, 16), "420", 1),
    ]
    assert_equal_pillow(interpreted, files, 4)


def test_long_codes_and_extreme_values_equal_pillow(interpreted):
    rng = np.random.default_rng(3)
    ac = comb(rng.permutation(all_symbols()).tolist())
    files = []
    for quant, limit in [(2, 500), (255, 1000), (99, 1000)]:
        blocks = random_blocks(rng, 17, 16, "420", 3, limit, 0.5)
        files.append(write(17, 16, "420", blocks, np.full(64, quant), ac_lengths=ac, restart=1))
    for block in blocks:
        block[..., 8:] = 0
    files.append(write(17, 16, "420", blocks, np.full(64, 255)))
    assert_equal_pillow(interpreted, files)


def test_lanes_of_several_programs_hand_their_state_on(interpreted):
    files = [encode(picture(24, 20), "420", 80), encode(picture(16, 9), "444", 80)]
    assert_equal_pillow(interpreted, files, 3, (128, 8, 8))


def test_a_stream_that_does_not_synchronise_is_flagged(interpreted):
    flat = encode(np.full((64, 64, 3), 90, np.uint8), "420", 50)
    _, reasons = interpreted(kernel_runs.decode_into, [flat], 3, (32, 2, 1))
    assert reasons == ["jpeg not synchronised"]


def damaged(rng, count):
    """Files with bytes of their scan replaced, dropped or inserted, that still parse."""
    files = []
    while len(files) < count:
        kind = rng.choice(["444", "420", "gray"])
        options = [{}, {"optimize": True}, {"restart_marker_blocks": 1}][rng.integers(3)]
        data = bytearray(encode(picture(17, 10, rng.integers(99)), kind, 75, **options))
        scan = data.rindex(b"\xff\xda") + 14
        for _ in range(rng.integers(1, 3)):
            at = int(rng.integers(scan, len(data) - 2))
            data[at : at + int(rng.integers(0, 3))] = rng.bytes(int(rng.integers(0, 3)))
        try:
            check_jpeg(parse_jpeg(bytes(data)))
        except Unsupported:
            continue
        files.append(bytes(data))
    return files


@pytest.mark.parametrize("seed", range(3))
def test_damaged_streams_give_pillow_s_pixels_or_are_flagged(interpreted, seed):
    files = damaged(np.random.default_rng(seed), 30)
    pixels, reasons = interpreted(kernel_runs.decode_into, files)
    clean = [(got, data) for got, data, r in zip(pixels, files, reasons, strict=True) if r is None]
    assert 0 < len(clean) < len(files)
    for got, data in clean:
        np.testing.assert_array_equal(got, pillow(data))


def test_every_flag_is_raised(interpreted):
    blocks = random_blocks(np.random.default_rng(0), 16, 16, "444", 1)
    good = write(16, 16, "444", blocks, np.full(64, 9), names=b"\1")
    scan = good.rindex(b"\xff\xda") + 10
    files = [
        good[:scan] + b"\xfe" * (len(good) - scan - 2) + b"\xff\xd9",
        good[:-3] + b"\xff\xd0" + good[-3:],
        good[:-2] + bytes(20) + b"\xff\xd9",
        good[: (scan + len(good)) // 2] + b"\xff\xd9",
    ]
    _, reasons = interpreted(kernel_runs.decode_into, files)
    assert reasons[:2] == ["jpeg code invalid", "jpeg marker inside data"]
    assert set(reasons[2:]) <= {"jpeg block count", "jpeg code invalid"}


def test_the_fallback_paints_what_the_kernels_do_not(interpreted):
    progressive = io.BytesIO()
    Image.fromarray(picture(8, 8)).save(progressive, "JPEG", progressive=True)
    good = encode(picture(10, 9), "420", 80)
    pixels, reasons = interpreted(kernel_runs.decode_batch, [progressive.getvalue(), good, b"nothing"], 4)
    assert reasons == ("progressive jpeg", None, "no jpeg signature")
    assert pixels[0].tolist() == [[[7, 7, 7, 255]] * 3] * 2
    np.testing.assert_array_equal(pixels[1][..., :3], pillow(good))
    assert pixels[2].shape == (2, 3, 4)


def test_an_image_outside_of_the_buffer_is_refused():
    import torch

    jpeg = parse_jpeg(encode(picture(4, 4), "444", 80))
    with pytest.raises(ValueError, match=r"bytes 1:49 is outside of out\[48\]"):
        decode.decode_into([jpeg], torch.zeros(48, dtype=torch.uint8), [1])


def test_no_images_need_no_launch():
    decoded = decode.decode_batch([], "cpu")
    assert (decoded.sizes, decoded.reasons, decoded.pixels.numel()) == ((), (), 0)
