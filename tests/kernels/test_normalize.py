"""Normalise tables equal the operations of the image processors, bit for bit."""

import math

import numpy as np
import pytest
import torch
from patchloom_kernels.layout import PAD_ENTRY
from patchloom_kernels.normalize import Dtype, NormalizeFormula, NormalizeTable
from transformers.image_transforms import normalize, rescale

CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
HALF = ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5])
CONSTANTS = [CLIP, IMAGENET, HALF]
FACTORS = [1 / 255, 1 / 127.5, 0.00392156862745098, 0.1, None]
LEVELS = np.tile(np.arange(256, dtype=np.uint8), (3, 1))


def test_torchvision_fuses_the_rescale_into_the_constants() -> None:
    for mean, std in CONSTANTS:
        for factor in FACTORS:
            scale = 1.0 if factor is None else 1.0 / factor
            shift = (torch.tensor(mean) * scale)[:, None]
            expected = torch.tensor(LEVELS).float().sub_(shift).div_((torch.tensor(std) * scale)[:, None])
            table = NormalizeTable.build(NormalizeFormula.HF_TORCHVISION, mean, std, factor)
            assert_levels_equal(table, expected)


def test_torchvision_rescale_alone_multiplies_in_float32() -> None:
    for factor in FACTORS[:4]:
        expected = torch.tensor(LEVELS) * factor
        assert_levels_equal(
            NormalizeTable.build(NormalizeFormula.HF_TORCHVISION, None, None, factor), expected
        )


def test_pil_rescales_in_float64_and_normalises_in_float32() -> None:
    for mean, std in CONSTANTS:
        for factor in FACTORS:
            image = LEVELS[:, :, None]
            scaled = image if factor is None else rescale(image, factor)
            expected = normalize(scaled, mean, std, input_data_format="channels_first")[..., 0]
            table = NormalizeTable.build(NormalizeFormula.HF_PIL, mean, std, factor)
            assert_levels_equal(table, torch.from_numpy(expected))


def test_pil_rescale_alone() -> None:
    for factor in FACTORS[:4]:
        table = NormalizeTable.build(NormalizeFormula.HF_PIL, None, None, factor)
        assert_levels_equal(table, torch.from_numpy(rescale(LEVELS, factor)))


def test_llama4_computes_in_bfloat16() -> None:
    for mean, std in CONSTANTS:
        scaled = torch.tensor(LEVELS).to(torch.bfloat16) * (1 / 255)
        columns = [torch.tensor(v, dtype=torch.bfloat16)[:, None] for v in (mean, std)]
        expected = scaled.sub(columns[0]).div_(columns[1])
        table = NormalizeTable.build(NormalizeFormula.HF_BFLOAT16, mean, std)
        assert_levels_equal(table, expected.float())


@pytest.mark.parametrize("formula", NormalizeFormula)
def test_nothing_switched_on_keeps_the_levels(formula: NormalizeFormula) -> None:
    table = NormalizeTable.build(formula, None, None, None, padding=-1.0)
    assert_levels_equal(table, torch.tensor(LEVELS).float())
    assert table.values[:, PAD_ENTRY].tolist() == [-1.0] * 3


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_narrow_dtypes_round_as_torch_does(name: str) -> None:
    for mean, std in CONSTANTS:
        table = NormalizeTable.build(NormalizeFormula.HF_TORCHVISION, mean, std)
        expected = torch.from_numpy(table.values.copy()).to(getattr(torch, name))
        got = table.to(Dtype(name))
        assert got.dtype == Dtype(name).numpy
        assert np.array_equal(got.view(np.int16), expected.view(torch.int16).numpy())


def test_a_bfloat16_tie_goes_to_even() -> None:
    ties = np.float32([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8])
    table = NormalizeTable(np.tile(np.resize(ties, 257).astype(np.float32), (3, 1)))
    assert table.to(Dtype.BFLOAT16)[0, :3].tolist() == [0x3F80, 0x3F82, 0xBF80]


def test_a_uint8_output_has_no_table() -> None:
    table = NormalizeTable.build(NormalizeFormula.HF_PIL, *HALF)
    with pytest.raises(ValueError, match="uint8 output holds levels"):
        table.to(Dtype.UINT8)


def test_bad_constants_are_refused() -> None:
    with pytest.raises(ValueError, match="std must not be 0"):
        NormalizeTable.build(NormalizeFormula.HF_PIL, [0.0] * 3, [1.0, 0.0, 1.0])
    with pytest.raises(ValueError, match="given together"):
        NormalizeTable.build(NormalizeFormula.HF_PIL, [0.0] * 3, None)
    with pytest.raises(ValueError, match="need 3 values, got 1"):
        NormalizeTable.build(NormalizeFormula.HF_PIL, [0.0], [1.0])


def assert_levels_equal(table: NormalizeTable, expected: torch.Tensor) -> None:
    assert not math.isnan(float(expected.sum()))
    assert np.array_equal(table.values[:, :256].view(np.int32), expected.numpy().view(np.int32))


def test_tables_are_kept_by_what_they_are_and_not_by_what_equals_it() -> None:
    made = [
        NormalizeTable.build(formula, [0.31] * 3, [0.27] * 3)
        for formula in ("hf_pil", NormalizeFormula.HF_PIL)  # type: ignore[arg-type]
    ]
    expected = (np.arange(256) * (1 / 255)).astype(np.float32)
    expected = (expected - np.float32(0.31)) / np.float32(0.27)
    for table in made:
        assert np.array_equal(table.values[0, :256], expected)
