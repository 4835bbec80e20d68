"""The token-in endpoint's features, against MessagePack's own decoder and vLLM's field names."""

import base64
import importlib
import json
import subprocess
import sys

import numpy as np
import pytest
from patchloom_client.integrations import vllm
from patchloom_client.integrations.msgpack import Ext, pack

from tests.support.responses import answer
from tests.support.servers import ROOT


@pytest.fixture(scope="module")
def msgpack():
    """The reference implementation, installed aside once."""
    home = ROOT / ".cache" / "msgpack"
    if not home.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(home)]
        if subprocess.run([*command, "msgpack==1.1.2"], check=False).returncode:
            pytest.skip("msgpack cannot be installed here")
    sys.path.insert(0, str(home))
    try:
        return importlib.import_module("msgpack")
    finally:
        sys.path.remove(str(home))


def tensor(value):
    dtype, shape, ext = value
    assert ext.code == 3
    kind = {"bfloat16": "uint16"}.get(dtype, dtype)
    return dtype, np.frombuffer(ext.data, kind).reshape(shape)


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, 127, 128, -1, -32, -33, 1 << 40, -(1 << 40), "", "é" * 40, "x" * 70_000, b"",
        b"1" * 300,
        [], [1] * 20, list(range(70_000)), {}, {str(i): i for i in range(20)}, {"a": {"b": [None, "c"]}},
    ],
)  # fmt: skip
def test_values_are_what_the_reference_reads(msgpack, value):
    assert msgpack.unpackb(pack(value)) == value


@pytest.mark.parametrize("size", [0, 1, 300, 70_000])
def test_extensions_are_what_the_reference_reads(msgpack, size):
    assert msgpack.unpackb(pack(Ext(3, b"x" * size))) == msgpack.ExtType(3, b"x" * size)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_features_hold_every_items_own_tensors(msgpack, dtype):
    response = answer(dtype=dtype)
    body = json.loads(json.dumps(vllm.generate_body(response, {"max_tokens": 1}, stream=True)))
    assert body["token_ids"] == response.token_ids
    assert body["stream"] is True
    features = body["features"]
    assert features["mm_hashes"] == {"image": [item.content_key for item in response.items]}
    for place, item in zip(features["mm_placeholders"]["image"], response.items, strict=True):
        ids = response.token_ids[place["offset"] : place["offset"] + place["length"]]
        assert ids == [151655] * item.token_count
    for index, encoded in enumerate(features["kwargs_data"]["image"]):
        fields = msgpack.unpackb(base64.b64decode(encoded))
        own = response.item_tensors(index)
        assert tensor(fields["pixel_values"]["data"])[0] == dtype
        np.testing.assert_array_equal(tensor(fields["pixel_values"]["data"])[1], own["pixel_values"].array)
        np.testing.assert_array_equal(
            tensor(fields["image_grid_thw"]["data"])[1], own["image_grid_thw"].array[0]
        )
        rows = own["pixel_values"].shape[0]
        assert fields["pixel_values"]["field"] == [
            "flat",
            {"slices": [[0, rows, None]], "dim": 0, "keep_on_cpu": False},
        ]
        assert fields["image_grid_thw"]["field"] == ["batched", {"keep_on_cpu": False}]


def test_items_that_the_engine_knows_are_null():
    features = vllm.features(answer(known=(0,)))
    assert [data is None for data in features["kwargs_data"]["image"]] == [True, False]
    assert len(features["mm_hashes"]["image"]) == 2


def test_the_rust_front_ends_messages_are_sorted_by_offset():
    made = vllm.media_features(answer())
    assert [item["offset"] for item in made] == sorted(item["offset"] for item in made)
    assert all(len(item["is_embed"]) == item["length"] for item in made)


def test_hf_inputs_are_views_with_their_field_config():
    response = answer(positions=True)
    inputs = vllm.hf_inputs(response)
    assert inputs["pixel_values"].data_ptr() == response.tensors["pixel_values"].array.ctypes.data
    assert inputs.keys() == vllm.field_config(response).keys() == {"pixel_values", "image_grid_thw"}
    assert vllm.field_config(response) == {
        "pixel_values": ("flat_from_sizes", "image", (24, 32), 0),
        "image_grid_thw": ("batched", "image"),
    }
