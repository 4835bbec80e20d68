"""Against the messages of smg-grpc-proto itself: every field exists there and survives the wire."""

import importlib
import subprocess
import sys

import numpy as np
import pytest
from patchloom_client.integrations import engine_proto

from tests.clients.integrations.answers import check_known_item_is_refused, inkling
from tests.support.responses import answer, service
from tests.support.servers import ROOT, png, request, running

VERSION = "0.4.28"


@pytest.fixture(scope="module")
def smg():
    """The generated modules of the package, installed aside once without its dependencies."""
    home = ROOT / ".cache" / f"smg-{VERSION}"
    if not home.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(home)]
        if subprocess.run([*command, f"smg-grpc-proto=={VERSION}"], check=False).returncode:
            pytest.skip("smg-grpc-proto cannot be installed here")
    sys.path.insert(0, str(home))
    yield lambda name: importlib.import_module(f"smg_grpc_proto.generated.{name}_pb2")
    sys.path.remove(str(home))


def array(data, field):
    kind = {"bfloat16": "uint16"}.get(data.dtype, data.dtype)
    return np.frombuffer(getattr(data, field), kind).reshape(data.shape)


def again(message):
    return type(message).FromString(message.SerializeToString())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_vllm_inputs_are_vllms_message(smg, dtype):
    response = answer(dtype=dtype)
    message = again(smg("vllm_engine").MultimodalInputs(**engine_proto.vllm_inputs(response, 151655)))
    np.testing.assert_array_equal(
        array(message.pixel_values, "inline"), response.tensors["pixel_values"].array
    )
    assert message.pixel_values.dtype == dtype
    assert (dict(message.flat_keys), list(message.batched_keys)) == (
        {"pixel_values": "patches_per_image"},
        ["image_grid_thw", "patches_per_image"],
    )
    assert array(message.model_specific_tensors["patches_per_image"], "inline").tolist() == [24, 32]
    assert array(message.model_specific_tensors["image_grid_thw"], "inline").tolist() == [
        [1, 4, 6],
        [1, 8, 4],
    ]
    assert list(message.mm_hashes) == [item.content_key for item in response.items]
    assert [(p.offset, p.length) for p in message.mm_placeholders] == [
        (item.ranges[0].offset, item.ranges[0].length) for item in response.items
    ]
    assert (message.im_token_id, message.modality) == (151655, 1)


def test_sglang_inputs_are_sglangs_message(smg):
    response = answer()
    message = again(smg("sglang_scheduler").MultimodalInputs(**engine_proto.sglang_inputs(response)))
    np.testing.assert_array_equal(array(message.pixel_values, "data"), response.tensors["pixel_values"].array)
    assert list(message.modalities) == ["image", "image"]
    assert len(message.mm_placeholders) == 2


def test_tokenspeed_inputs_have_one_item_each(smg):
    response = answer()
    message = again(
        smg("tokenspeed_scheduler").MultimodalInputs(**engine_proto.tokenspeed_inputs(response, 7))
    )
    assert [item.content_hash.hex() for item in message.items] == [i.content_key for i in response.items]
    for index, item in enumerate(message.items):
        expected = response.item_tensors(index)["pixel_values"].array
        np.testing.assert_array_equal(array(item.encoder_input, "inline"), expected)
        assert item.placeholder_token_id == 7


@pytest.mark.parametrize("kinds", [("audio", "image"), ("image", "audio")])
def test_tokenspeed_items_have_their_own_encoder_inputs(smg, kinds):
    response = inkling(*kinds)
    pb = smg("tokenspeed_scheduler")
    message = again(pb.MultimodalInputs(**engine_proto.tokenspeed_inputs(response)))
    names = {"image": "pixel_values", "audio": "audio_input_ids"}
    for index, (kind, item) in enumerate(zip(kinds, message.items, strict=True)):
        assert item.modality == smg("common").Modality.Value(kind.upper())
        expected = response.item_tensors(index)[names[kind]].array
        np.testing.assert_array_equal(array(item.encoder_input, "inline"), expected)
        others = [] if kind == "image" else ["audio_input_ids_mask"]
        assert list(item.model_specific_tensors) == others


def test_audio_clips_are_said_to_be_audio(smg):
    response = inkling("audio", "audio")
    message = again(smg("sglang_scheduler").MultimodalInputs(**engine_proto.sglang_inputs(response)))
    assert list(message.modalities) == ["audio", "audio"]
    inputs = again(smg("vllm_engine").MultimodalInputs(**engine_proto.vllm_inputs(response)))
    assert inputs.modality == smg("common").AUDIO
    assert inputs.encoder_input_key == "audio_input_ids"


@pytest.mark.parametrize("convert", [engine_proto.vllm_inputs, engine_proto.sglang_inputs])
@pytest.mark.parametrize("kinds", [("audio", "image"), ("image", "audio")])
def test_a_message_of_one_modality_takes_no_mixture(convert, kinds):
    with pytest.raises(ValueError, match="one modality, not image and audio"):
        convert(inkling(*kinds))


@pytest.mark.parametrize("known", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize(
    "convert", [engine_proto.vllm_inputs, engine_proto.sglang_inputs, engine_proto.tokenspeed_inputs]
)
def test_known_items_are_named_and_refused(convert, known):
    check_known_item_is_refused(convert, known)


@pytest.mark.parametrize(
    ("convert", "engine"),
    [
        (engine_proto.vllm_inputs, "vllm_engine"),
        (engine_proto.sglang_inputs, "sglang_scheduler"),
        (engine_proto.tokenspeed_inputs, "tokenspeed_scheduler"),
    ],
)
def test_a_prompt_without_media_makes_an_empty_message(smg, convert, engine):
    message = smg(engine).MultimodalInputs(**convert(service().run(request())))
    assert message == smg(engine).MultimodalInputs()


def test_tiles_are_flat_where_every_image_has_one():
    made = engine_proto.vllm_inputs(service("internvl3").run(request(png(1, 448, 448), png(2, 448, 448))))
    assert made["flat_keys"] == {"pixel_values": "patches_per_image"}
    assert made["batched_keys"] == ["patches_per_image"]


async def test_shared_memory_goes_by_its_place(smg):
    async with running() as (_, client):
        wanted = request(png(1), options={"transport": "shared_memory"})
        with await client.preprocess(wanted) as response:
            message = again(smg("vllm_engine").MultimodalInputs(**engine_proto.vllm_inputs(response)))
            handle = response.message.tensors["pixel_values"].handle
            assert message.pixel_values.WhichOneof("payload") == "shm"
            assert (message.pixel_values.shm.name, message.pixel_values.shm.offset) == (
                handle.shared_memory.name,
                handle.offset,
            )
            assert message.pixel_values.shm.nbytes == response.tensors["pixel_values"].array.nbytes
