"""The reference equals Pillow, torch and transformers."""

from collections.abc import Callable

import numpy as np
import PIL
import pytest
import torch
from patchloom_kernels import reference
from patchloom_kernels.layout import PAD_ENTRY, Job, Parity, PatchLayout, Piece, Resample, Strides
from patchloom_kernels.normalize import Dtype, NormalizeFormula, NormalizeTable
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
SIZES = [
    ((1, 1), (1, 1)),
    ((1, 1), (7, 5)),
    ((37, 53), (1, 1)),
    ((37, 53), (11, 13)),
    ((64, 64), (64, 31)),
    ((64, 64), (31, 64)),
    ((301, 2), (29, 7)),
    ((203, 2), (29, 2)),
    ((500, 3), (40, 9)),
    ((2, 301), (7, 29)),
    ((97, 101), (56, 84)),
    ((108, 192), (112, 196)),
    ((240, 108), (188, 84)),
    ((5, 7), (300, 3)),
    ((700, 7), (3, 400)),
]


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Half of it saturated, so that overshoot is clamped."""
    levels = np.random.default_rng(seed).integers(-128, 384, shape)
    return levels.clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("resample", Resample)
def test_resize_equals_pillow_13(resample: Resample) -> None:
    assert PIL.__version__.startswith("13.")
    for source, target in SIZES:
        image = noise(*source, 3)
        size = (target[1], target[0])
        expected = Image.fromarray(image).resize(size, Image.Resampling[resample.name])
        got = reference.resize(image, target, resample, Parity.PILLOW13)
        assert np.array_equal(got, np.asarray(expected)), (source, target)


def test_resize_equals_pillow_12(
    pillow12_resize: Callable[[list], list[np.ndarray]],
) -> None:
    cases = [(noise(*source, 3), target, r) for source, target in SIZES for r in Resample]
    for (image, target, resample), expected in zip(cases, pillow12_resize(cases), strict=True):
        got = reference.resize(image, target, resample, Parity.PILLOW12)
        assert np.array_equal(got, expected), (image.shape, target, resample)


@pytest.mark.parametrize("resample", Resample)
def test_resize_equals_torch_uint8(resample: Resample) -> None:
    for source, target in SIZES:
        image = noise(*source, 3)
        # one channel at a time: torch 2.13 asserts on three channels of a 1x1 image
        planes = torch.from_numpy(image).permute(2, 0, 1)[:, None].contiguous()
        resized = [
            torch.nn.functional.interpolate(p[None], target, mode=resample.value, antialias=True)[0]
            for p in planes
        ]
        expected = torch.cat(resized).permute(1, 2, 0).numpy()
        got = reference.resize(image, target, resample, Parity.ATEN_U8)
        assert np.array_equal(got, expected), (source, target)


@pytest.mark.parametrize("size", [(57, 85), (113, 71), (31, 200), (140, 56)])
def test_qwen_patches_equal_transformers(size: tuple[int, int]) -> None:
    processor = Qwen2VLImageProcessorPil(min_pixels=3136, max_pixels=28 * 28 * 8)
    image = noise(*size, 3)
    expected = processor(image, return_tensors="np")
    _, gh, gw = expected["image_grid_thw"][0].tolist()
    layout = PatchLayout((14, 14), merge=2, temporal=2)
    piece = Piece(size, (gh * 14, gw * 14), (gh * 14, gw * 14), layout)
    out = np.full(piece.rows * layout.row_size(), np.nan, np.float32)
    table = NormalizeTable.build(NormalizeFormula.HF_PIL, *CLIP)
    jobs = [Job.contiguous(0, piece, 0)]
    reference.resize_patchify([image], jobs, table, out, Dtype.FLOAT32, Parity.PILLOW13)
    assert np.array_equal(out.reshape(piece.rows, -1), expected["pixel_values"])


def test_padding_and_crop_place_the_picture_on_its_canvas() -> None:
    image = noise(4, 6, 3)
    layout = PatchLayout((4, 4), columns="tcyx")
    piece = Piece((4, 6), (4, 6), (8, 8), layout, offset=(3, -2), pad=(7, 8, PAD_ENTRY))
    out = np.full(4 * 48, 255, np.uint8)
    reference.resize_patchify([image], [Job.contiguous(0, piece, 0)], None, out, Dtype.UINT8, Parity.ATEN_U8)
    canvas = np.full((8, 8, 3), [7, 8, 0], np.uint8)
    canvas[3:7, :4] = image[:, 2:]
    patches = canvas.reshape(2, 4, 2, 4, 3).transpose(0, 2, 4, 1, 3)
    assert np.array_equal(out.reshape(2, 2, 3, 4, 4), patches)


def test_the_fourth_byte_is_ignored_and_nothing_else_is_written() -> None:
    image = noise(4, 4, 4)
    piece = Piece((4, 4), (4, 4), (4, 4), PatchLayout((4, 4), temporal=2, columns="tyxc"))
    job = Job(0, piece, 5, Strides(row=0, c=2, t=100, y=24, x=6))
    out = np.full(200, 99, np.uint8)
    reference.resize_patchify([image], [job], None, out, Dtype.UINT8, Parity.ATEN_U8)
    expected = np.full(200, 99, np.uint8)
    for start in (5, 105):
        for channel in range(3):
            for y in range(4):
                row = start + 2 * channel + 24 * y
                expected[row : row + 24 : 6] = image[y, :, channel]
    assert np.array_equal(out, expected)
