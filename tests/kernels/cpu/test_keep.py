"""The resized image that the CPU kernel leaves while it writes patches."""

import numpy as np
import pytest
from patchloom_kernels import reference
from patchloom_kernels.cpu import resize
from patchloom_kernels.cpu.resize import resize_patchify
from patchloom_kernels.layout import Job, Parity, PatchLayout, Piece, Resample
from patchloom_kernels.normalize import Dtype

SOURCE = np.random.default_rng(0).integers(0, 256, (45, 70, 3), np.uint8)
LAYOUT = PatchLayout((8, 8), merge=2)


def piece(target, canvas=None, offset=(0, 0)):
    return Piece((45, 70), target, canvas or target, LAYOUT, Resample.BICUBIC, offset)


def run(made, keep, parity, assist=None):
    out = np.full(made.rows * LAYOUT.row_size(), 7, np.uint8)
    resize_patchify([SOURCE], [Job.contiguous(0, made, 0)], None, out, Dtype.UINT8, parity, keep, assist)
    return out


@pytest.mark.parametrize("parity", list(Parity))
@pytest.mark.parametrize(
    "made",
    [
        piece((32, 48)),
        piece((16, 64)),
        piece((64, 96)),
        piece((20, 30), (32, 32), (3, 1)),
        piece((45, 70), (48, 80)),
    ],
)
def test_the_kept_image_is_the_resized_one_and_the_patches_do_not_change(made, parity):
    kept = np.full((*made.target, 4), 7, np.uint8)
    assert np.array_equal(run(made, [kept], parity), run(made, (), parity))
    expected = reference.resize(SOURCE, made.target, made.resample, parity)
    assert np.array_equal(kept[..., :3], expected)


def test_two_threads_keep_the_whole_image(monkeypatch):
    monkeypatch.setattr(resize, "_LARGE", 0)
    made = piece((64, 96))
    kept = np.full((*made.target, 4), 7, np.uint8)

    def assist(work):
        work()
        return lambda: None

    assert np.array_equal(run(made, [kept], Parity.ATEN_U8, assist), run(made, (), Parity.ATEN_U8))
    assert np.array_equal(kept[..., :3], reference.resize(SOURCE, made.target, made.resample, Parity.ATEN_U8))


@pytest.mark.parametrize(
    ("made", "shape"),
    [(piece((32, 48)), (32, 47, 4)), (piece((32, 48), (16, 48)), (32, 48, 4))],
)
def test_room_of_another_size_and_a_crop_are_refused(made, shape):
    with pytest.raises(ValueError, match="show it all"):
        run(made, [np.empty(shape, np.uint8)], Parity.ATEN_U8)


@pytest.mark.parametrize(
    "keep",
    [
        np.zeros((32, 96, 4), np.uint8)[:, 24:72],
        np.zeros((32, 48, 4), np.int8),
        np.zeros((32, 48, 4), np.uint8),
    ],
)
def test_an_image_that_could_not_be_filled_is_refused(keep):
    if keep.dtype == np.uint8 and keep.flags.c_contiguous:
        keep.setflags(write=False)
    with pytest.raises(ValueError, match=r"keep\[0\] must be contiguous, writable and uint8"):
        run(piece((32, 48)), [keep], Parity.ATEN_U8)
