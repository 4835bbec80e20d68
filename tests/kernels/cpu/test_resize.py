"""The compiled CPU path writes the bytes of the reference."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patchloom_kernels import reference
from patchloom_kernels.cpu import resize
from patchloom_kernels.cpu.resize import resize_patchify
from patchloom_kernels.layout import PAD_ENTRY, Job, Parity, PatchLayout, Piece, Resample, Strides
from patchloom_kernels.normalize import Dtype, NormalizeFormula, NormalizeTable

CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
TABLE = NormalizeTable.build(NormalizeFormula.HF_PIL, *CLIP, padding=-7.25)
QWEN = PatchLayout((14, 14), merge=2, temporal=2)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Half of it saturated, so that overshoot is clamped."""
    levels = np.random.default_rng(seed).integers(-128, 384, shape)
    return levels.clip(0, 255).astype(np.uint8)


def assert_same(sources: list[np.ndarray], jobs: list[Job], size: int, dtype: Dtype, parity: Parity) -> None:
    """Compare two poisoned outputs whole, so that a stray write shows."""
    table = None if dtype is Dtype.UINT8 else TABLE
    expected = np.full(size, 77, dtype.numpy)
    got = expected.copy()
    reference.resize_patchify(sources, jobs, table, expected, dtype, parity)
    resize_patchify(sources, jobs, table, got, dtype, parity)
    assert np.array_equal(got.view(np.uint8), expected.view(np.uint8))
    got[:] = 77
    resize_patchify(sources, jobs, table, got, dtype, parity, assist=other_half_first)
    assert np.array_equal(got.view(np.uint8), expected.view(np.uint8))


def other_half_first(work):
    """All that an assisting thread may have done before the calling one begins."""
    work()
    return lambda: None


@pytest.fixture(autouse=True)
def every_job_is_large(monkeypatch):
    monkeypatch.setattr(resize, "_LARGE", 0)


def contiguous(pieces: list[Piece]) -> tuple[list[Job], int]:
    """Jobs in one output with gaps of three elements before, between and behind them."""
    jobs, start = [], 3
    for index, piece in enumerate(pieces):
        jobs.append(Job.contiguous(index, piece, start))
        start += piece.rows * piece.layout.row_size() + 3
    return jobs, start


@pytest.mark.parametrize("parity", Parity)
@pytest.mark.parametrize("dtype", Dtype)
def test_images_of_many_sizes_in_one_call(dtype: Dtype, parity: Parity) -> None:
    sizes = [((1, 1), (28, 28)), ((61, 97), (56, 84)), ((240, 83), (112, 28)), ((28, 56), (28, 56))]
    pieces = [Piece(source, target, target, QWEN) for source, target in sizes]
    jobs, size = contiguous(pieces)
    assert_same([noise(*source, 3) for source, _ in sizes], jobs, size, dtype, parity)


@pytest.mark.parametrize("parity", Parity)
@pytest.mark.parametrize("resample", Resample)
def test_passes_over_few_and_many_rows_and_taps(resample: Resample, parity: Parity) -> None:
    sizes = [((700, 9), (8, 8)), ((9, 700), (8, 8)), ((3, 3), (64, 64)), ((40, 40), (40, 24))]
    pieces = [Piece(s, t, t, PatchLayout((8, 8)), resample) for s, t in sizes]
    jobs, size = contiguous(pieces)
    assert_same([noise(*source, 3) for source, _ in sizes], jobs, size, Dtype.FLOAT32, parity)


@pytest.mark.parametrize("columns", ["ctyx", "tyxc", "yxct", "xytc"])
@pytest.mark.parametrize("patch", [(1, 1), (7, 9), (14, 14), (16, 16), (17, 40)])
def test_every_order_of_values(patch: tuple[int, int], columns: str) -> None:
    layout = PatchLayout(patch, merge=2, temporal=2, columns=columns)
    canvas = (patch[0] * 4, patch[1] * 2)
    piece = Piece((50, 60), canvas, canvas, layout)
    jobs, size = contiguous([piece])
    assert_same([noise(50, 60, 3)], jobs, size, Dtype.BFLOAT16, Parity.ATEN_U8)


@pytest.mark.parametrize("offset", [(0, 0), (5, 9), (-11, -7), (40, 0), (0, -60), (-3, 20)])
@pytest.mark.parametrize("parity", Parity)
def test_padding_and_crops(offset: tuple[int, int], parity: Parity) -> None:
    piece = Piece((90, 41), (30, 40), (32, 48), PatchLayout((16, 16)), offset=offset, pad=(127, 0, PAD_ENTRY))
    jobs, size = contiguous([piece])
    for dtype in (Dtype.FLOAT32, Dtype.UINT8):
        assert_same([noise(90, 41, 3)], jobs, size, dtype, parity)


def test_sources_may_be_views() -> None:
    image = noise(40, 50, 4)
    views = [image, image[..., :3], image[3:, 5:-4], image[::2], image[:, ::2, :3], image[..., 2::-1]]
    pieces = [Piece(v.shape[:2], (28, 28), (28, 28), QWEN) for v in views]
    jobs, size = contiguous(pieces)
    assert_same(views, jobs, size, Dtype.FLOAT32, Parity.ATEN_U8)


def test_a_read_only_source_of_exactly_its_bytes() -> None:
    source = np.frombuffer(noise(28, 28, 3).tobytes(), np.uint8).reshape(28, 28, 3)
    jobs, size = contiguous([Piece((28, 28), (56, 28), (56, 28), QWEN)])
    assert_same([source], jobs, size, Dtype.FLOAT32, Parity.PILLOW13)


@pytest.mark.parametrize("channels", [3, 4])
def test_an_axis_of_one_pixel_may_have_any_stride(channels: int) -> None:
    row = noise(1, 90, channels)
    column = row.transpose(1, 0, 2)
    views = [
        row[::-1],
        row[:, ::-1],
        column[::-1],
        column[:, ::-1],
        column[::-1, ::-1],
        noise(90, 1, 3)[:, ::-1],
    ]
    for target in ((28, 28), (2, 8), (90, 1)):
        layout = PatchLayout(target)
        pieces = [Piece(v.shape[:2], target, target, layout) for v in views]
        jobs, size = contiguous(pieces)
        for parity in Parity:
            assert_same(views, jobs, size, Dtype.UINT8, parity)


def test_strides_may_interleave_two_jobs() -> None:
    layout = PatchLayout((4, 4))
    piece = Piece((9, 9), (8, 8), (8, 8), layout)
    jobs = [Job(0, piece, start, Strides(row=96, c=32, t=0, y=8, x=2)) for start in (0, 1)]
    assert_same([noise(9, 9, 3)], jobs, 4 * 96, Dtype.FLOAT16, Parity.ATEN_U8)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_piece(data: Any) -> None:
    side = st.integers(1, 60)
    sizes = st.tuples(side, side)
    patch = data.draw(st.tuples(st.integers(1, 20), st.integers(1, 20)))
    merge = data.draw(st.integers(1, 3))
    groups = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    order = "".join(data.draw(st.permutations("ctyx")))
    shift = st.integers(-25, 25)
    piece = Piece(
        data.draw(sizes),
        data.draw(sizes),
        (patch[0] * merge * groups[0], patch[1] * merge * groups[1]),
        PatchLayout(patch, merge, data.draw(st.integers(1, 2)), order),
        data.draw(st.sampled_from(Resample)),
        data.draw(st.tuples(shift, shift)),
        data.draw(st.tuples(*[st.integers(0, PAD_ENTRY)] * 3)),
    )
    jobs, size = contiguous([piece])
    source = noise(*piece.source, data.draw(st.sampled_from([3, 4])))
    dtype, parity = data.draw(st.sampled_from(Dtype)), data.draw(st.sampled_from(Parity))
    assert_same([source], jobs, size, dtype, parity)


def test_a_job_outside_its_output_is_refused() -> None:
    piece = Piece((4, 4), (4, 4), (4, 4), PatchLayout((4, 4)))
    job = Job.contiguous(0, piece, 1)
    out = np.zeros(48, np.float32)
    with pytest.raises(ValueError, match=r"job writes elements 1\.\.48 of an output of 48"):
        resize_patchify([noise(4, 4, 3)], [job], TABLE, out, Dtype.FLOAT32, Parity.ATEN_U8)


def test_a_source_of_another_size_is_refused() -> None:
    piece = Piece((4, 4), (4, 4), (4, 4), PatchLayout((4, 4)))
    out = np.zeros(48, np.float32)
    with pytest.raises(ValueError, match=r"source must be \[4, 4, 3 or 4\], got \(4, 5, 3\)"):
        resize_patchify(
            [noise(4, 5, 3)], [Job.contiguous(0, piece, 0)], TABLE, out, Dtype.FLOAT32, Parity.ATEN_U8
        )


def test_an_output_of_another_type_is_refused() -> None:
    with pytest.raises(ValueError, match="out must be flat, contiguous, writable and uint16, got float32"):
        resize_patchify([], [], TABLE, np.zeros(4, np.float32), Dtype.BFLOAT16, Parity.ATEN_U8)
    with pytest.raises(ValueError, match="float32 patches need a table"):
        resize_patchify([], [], None, np.zeros(4, np.float32), Dtype.FLOAT32, Parity.ATEN_U8)


def test_a_table_of_another_number_of_channels_is_refused() -> None:
    table = NormalizeTable.build(NormalizeFormula.HF_PIL, None, None, channels=1)
    piece = Piece((4, 4), (4, 4), (4, 4), PatchLayout((4, 4)))
    job, out = Job.contiguous(0, piece, 0), np.zeros(48, np.float32)
    with pytest.raises(ValueError, match="the table must have 3 channels, got 1"):
        resize_patchify([noise(4, 4, 3)], [job], table, out, Dtype.FLOAT32, Parity.ATEN_U8)


def assisting(log, fail=False):
    """Another thread's half, and what was waited for."""

    def assist(work):
        def call():
            if fail:
                raise MemoryError("of the other thread")
            work()

        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(call)

        def wait():
            log.append("waited")
            future.result()

        return wait

    return assist


def large_job():
    piece = Piece((90, 120), (84, 112), (84, 112), QWEN)
    return noise(90, 120, 3), Job.contiguous(0, piece, 0), piece.rows * QWEN.row_size()


def test_another_thread_is_asked_once_for_half_of_a_large_job_and_waited_for(monkeypatch):
    source, job, size = large_job()
    out, whole, log = np.zeros(size, np.float32), np.zeros(size, np.float32), []
    resize_patchify([source], [job], TABLE, whole, Dtype.FLOAT32, Parity.ATEN_U8)
    resize_patchify([source], [job], TABLE, out, Dtype.FLOAT32, Parity.ATEN_U8, assist=assisting(log))
    assert log == ["waited"]
    assert out.tobytes() == whole.tobytes()
    monkeypatch.setattr(resize, "_LARGE", out.nbytes + 1)
    resize_patchify([source], [job], TABLE, out, Dtype.FLOAT32, Parity.ATEN_U8, assist=assisting(log))
    assert log == ["waited"]


def test_where_no_thread_is_free_the_calling_one_does_all():
    source, job, size = large_job()
    out, whole = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    resize_patchify([source], [job], None, whole, Dtype.UINT8, Parity.ATEN_U8)
    resize_patchify([source], [job], None, out, Dtype.UINT8, Parity.ATEN_U8, assist=lambda work: None)
    assert out.tobytes() == whole.tobytes()


def test_a_fault_of_the_other_thread_is_raised_by_the_calling_one():
    source, job, size = large_job()
    with pytest.raises(MemoryError, match="other thread"):
        resize_patchify(
            [source],
            [job],
            None,
            np.zeros(size, np.uint8),
            Dtype.UINT8,
            Parity.ATEN_U8,
            (),
            assisting([], True),
        )
