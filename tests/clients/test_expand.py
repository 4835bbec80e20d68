"""Levels expand to the bits of the model's own dtype, for every family."""

import builtins
from functools import cache

import numpy as np
import pytest
from patchloom_client.expand import expand, expand_tensor, expand_to_torch
from patchloom_client.local import LocalService
from patchloom_client.tensors import Response, Tensor
from patchloom_service.wire import read_request

from bench.checkpoints import build_checkpoint, families
from tests.support.pipeline import Pipeline, plain, write_checkpoint
from tests.support.servers import ROOT, png, request

DTYPES = ("float32", "bfloat16", "float16")
IMAGES = (png(1, 70, 90), png(2, 130, 300), png(3, 500, 120))


@cache
def service(family):
    directory = build_checkpoint(family, ROOT / ".cache" / "checkpoints" / family)
    return LocalService(str(directory), {"device": "cpu"})


CASES = [("qwen2_5_vl", dtype) for dtype in DTYPES] + [(family, "bfloat16") for family in families()]


@pytest.mark.parametrize(("family", "dtype"), CASES)
def test_expanded_levels_equal_the_model_dtype(family, dtype):
    values = service(family).run(request(*IMAGES, options={"dtype": dtype}))
    levels = service(family).run(request(*IMAGES, options={"dtype": dtype, "encoding": "uint8"}))
    names = [name for name, tensor in levels.tensors.items() if tensor.expansion is not None]
    assert names
    for name in names:
        expected, got = values.tensors[name], expand(levels, name)
        assert (got.dtype, got.shape, levels.tensors[name].dtype) == (expected.dtype, expected.shape, "uint8")
        np.testing.assert_array_equal(got.array, expected.array)


def test_without_patchloom_kernels_the_bits_are_the_same(monkeypatch):
    levels = service("qwen2_5_vl").run(request(*IMAGES, options={"dtype": "bfloat16", "encoding": "uint8"}))
    compiled = expand(levels)
    load = builtins.__import__

    def missing(name, *arguments):
        if name.startswith("patchloom_kernels"):
            raise ModuleNotFoundError(name)
        return load(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", missing)
    np.testing.assert_array_equal(expand(levels).array, compiled.array)


def test_a_share_of_the_items_expands_alone():
    options = {"encoding": "uint8", "shards": 2}
    values = service("qwen2_5_vl").run(request(*IMAGES, options={"shards": 2}))
    levels = service("qwen2_5_vl").run(request(*IMAGES, options=options))
    for rank in range(2):
        parts = levels.shard(rank).tensors["pixel_values"]
        for part, expected in zip(parts, values.shard(rank).tensors["pixel_values"], strict=True):
            got = expand_tensor(part, levels.tensors["pixel_values.table"])
            np.testing.assert_array_equal(got.array, expected.array)


def test_the_torch_tensor_has_the_models_dtype():
    levels = service("qwen2_5_vl").run(request(*IMAGES, options={"dtype": "bfloat16", "encoding": "uint8"}))
    tensor = expand_to_torch(levels, device="cpu")
    assert (str(tensor.dtype), tuple(tensor.shape)) == (
        "torch.bfloat16",
        levels.tensors["pixel_values"].expansion.shape,
    )


def test_padding_after_normalising_takes_the_tables_last_entry():
    """One picture of 2x3 in the corner of a 3x4 tensor; the rest is no level."""
    from patchloom_client.tensors import Expansion

    expansion = Expansion("float32", (1, 3, 3, 4), "ctyx", (2, 3), 1, 1)
    levels = Tensor("pixel_values", "uint8", np.zeros((1, 3, 3, 4), np.uint8), expansion)
    table = np.zeros((3, 257), np.float32)
    table[:, 0], table[:, 256] = [1, 2, 3], -7
    content = Tensor("content", "int64", np.array([[0, 2, 3, 0, 0, 2, 3]], np.int64))
    got = expand_tensor(levels, Tensor("table", "float32", table), content).array
    expected = np.full((1, 3, 3, 4), -7, np.float32)
    expected[0, :, :2, :3] = np.array([1, 2, 3])[:, None, None]
    np.testing.assert_array_equal(got, expected)


def test_values_and_missing_names_are_refused():
    values = service("qwen2_5_vl").run(request(IMAGES[0]))
    assert isinstance(values, Response)
    with pytest.raises(ValueError, match="uint8"):
        expand(values)


UINT8 = {"encoding": "uint8"}
SIZES = [
    [(300, 500), (100, 90)],
    [(100, 90), (300, 500)],
    [(300, 100), (100, 300)],
    [(64, 64), (128, 128)],
    [(64, 128), (128, 128), (64, 64)],
    [(700, 40), (64, 64), (1200, 900)],
]


@pytest.mark.parametrize("family", ["pixtral", "mistral3", "gemma3", "gemma4", "llama4", "llava_onevision"])
def test_images_of_different_sizes_expand_together(family, tmp_path):
    """Also where they are padded to the largest."""
    with Pipeline(write_checkpoint(plain(family), tmp_path)) as pipeline:
        for sizes in SIZES:
            pictures = [png(seed, *size) for seed, size in enumerate(sizes)]
            asked = [request(*pictures, options={"dtype": "bfloat16", **more}) for more in ({}, UINT8)]
            values, levels = [pipeline.answer(read_request(own)) for own in asked]
            names = [name for name, tensor in levels.tensors.items() if tensor.expansion is not None]
            assert names
            for name in names:
                np.testing.assert_array_equal(expand(levels, name).array, values.tensors[name].array)
