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

from tests.clients.integrations.answers import check_known_item_is_refused, inkling, laid_out
from tests.support.responses import answer, service
from tests.support.servers import ROOT, png, request


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


def test_all_items_may_be_known():
    assert vllm.features(answer(known=(0, 1)))["kwargs_data"] == {"image": [None, None]}


@pytest.mark.parametrize("known", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("convert", [vllm.media_features, vllm.hf_inputs, vllm.field_config])
def test_known_items_are_named_and_refused_where_nothing_refers_to_them(convert, known):
    check_known_item_is_refused(convert, known)


def test_counted_items_have_no_features():
    with pytest.raises(ValueError, match="CountTokens"):
        vllm.features(service().run(request(png(1)), count_only=True))


def test_a_prompt_without_media_has_nothing_to_hand_over():
    response = service().run(request())
    assert vllm.generate_body(response, {}) == {"token_ids": response.token_ids, "sampling_params": {}}
    assert (vllm.media_features(response), vllm.hf_inputs(response), vllm.field_config(response)) == (
        [],
        {},
        {},
    )


@pytest.mark.parametrize("kinds", [("audio", "image", "image"), ("image", "audio", "image")])
def test_images_and_audio_have_their_own_field_config(kinds):
    response = inkling(*kinds, encoding="uint8")
    patches = tuple(response.items[i].token_count for i, kind in enumerate(kinds) if kind == "image")
    assert vllm.field_config(response) == {
        "audio_input_ids": ("batched", "audio"),
        "audio_input_ids_mask": ("batched", "audio"),
        "pixel_values": ("flat_from_sizes", "image", patches, 0),
        "pixel_values.table": ("shared", "image", 2),
        "pixel_values.content": ("shared", "image", 2),
    }


def test_an_item_has_the_tensors_of_its_own_modality_only(msgpack):
    features = vllm.features(inkling("audio", "image", encoding="uint8"))
    names = {
        modality: set(msgpack.unpackb(base64.b64decode(encoded)))
        for modality, [encoded] in features["kwargs_data"].items()
    }
    assert names == {
        "audio": {"audio_input_ids", "audio_input_ids_mask"},
        "image": {"pixel_values", "pixel_values.table", "pixel_values.content"},
    }


def test_one_number_an_item_is_a_tensor_without_extents(msgpack):
    tensors = {"pixel_values": np.zeros((2, 3, 4, 4), np.float32), "num_local_patches": np.arange(2)}
    row = dict.fromkeys(tensors, 1)
    fields = msgpack.unpackb(vllm.item_kwargs(laid_out(tensors, row, row), 1))
    assert tensor(fields["num_local_patches"]["data"])[1] == np.array(1)
    assert fields["num_local_patches"]["data"][1] == []


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
