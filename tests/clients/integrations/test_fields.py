"""What belongs to which item, and the conversions between the engines' ways to say it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchloom_client.integrations import fields
from patchloom_client.integrations.fields import Field, Kind
from patchloom_proto import preprocess_pb2 as pb

from tests.clients.integrations.answers import inkling, laid_out
from tests.support.responses import answer, service
from tests.support.servers import png, request

IMAGE, AUDIO = pb.MODALITY_IMAGE, pb.MODALITY_AUDIO


def test_patches_are_flat_and_grids_are_batched():
    assert fields.fields(answer(positions=True)) == {
        "pixel_values": Field(Kind.FLAT, IMAGE, 0, (24, 32)),
        "image_grid_thw": Field(Kind.BATCHED, IMAGE, 0, (1, 1)),
    }


@pytest.mark.parametrize("wide", [False, True])
def test_tiles_are_flat_however_many_an_image_has(wide):
    response = service("internvl3").run(request(png(1, 448, 448), png(2, 448, 896 if wide else 448)))
    assert fields.fields(response) == {"pixel_values": Field(Kind.FLAT, IMAGE, 0, (1, 3 if wide else 1))}


def test_one_patch_an_image_is_flat_beside_a_grid():
    tensors = {"pixel_values": np.zeros((2, 12), np.float32), "image_grid_thw": np.ones((2, 3), np.int64)}
    row = {"pixel_values": 1, "image_grid_thw": 1}
    kinds = {name: field.kind for name, field in fields.fields(laid_out(tensors, row, row)).items()}
    assert kinds == {"pixel_values": Kind.FLAT, "image_grid_thw": Kind.BATCHED}


@pytest.mark.parametrize("beside", ["image_sizes", "image_position_ids", "num_local_patches"])
def test_pixels_are_batched_beside_what_such_families_have(beside):
    tensors = {"pixel_values": np.zeros((2, 3, 8, 8), np.float32), beside: np.ones((2, 2), np.int64)}
    row = {"pixel_values": 1, beside: 1}
    kinds = {name: field.kind for name, field in fields.fields(laid_out(tensors, row, row)).items()}
    assert kinds == {"pixel_values": Kind.BATCHED, beside: Kind.BATCHED}


def test_further_tiles_are_flat_where_every_image_has_one():
    tensors = {
        "pixel_values": np.zeros((2, 3, 8, 8), np.float32),
        "pixel_values_local": np.zeros((2, 3, 4, 4), np.float32),
        "num_local_patches": np.ones(2, np.int64),
    }
    row = dict.fromkeys(tensors, 1)
    assert fields.fields(laid_out(tensors, row, row))["pixel_values_local"].kind is Kind.FLAT


@pytest.mark.parametrize("kinds", [("audio", "image", "image"), ("image", "audio", "image")])
def test_every_tensor_has_the_modality_of_its_own_items(kinds):
    found = fields.fields(inkling(*kinds, encoding="uint8"))
    assert {name: field.modality for name, field in found.items()} == {
        "audio_input_ids": AUDIO,
        "audio_input_ids_mask": AUDIO,
        "pixel_values": IMAGE,
        "pixel_values.table": IMAGE,
        "pixel_values.content": IMAGE,
    }
    assert [len(found[name].sizes) for name in ("audio_input_ids", "pixel_values")] == [1, 2]


def test_each_item_has_its_own_main_tensor():
    response = inkling("audio", "image")
    names = [fields.primary(response, item) for item in response.items]
    assert names == ["audio_input_ids", "pixel_values"]


def test_a_closed_response_has_no_main_tensor():
    response = answer()
    response.close()
    with pytest.raises(ValueError, match=r"messages\[0\].content\[1\]: .*closed"):
        fields.primary(response, response.items[0])


def test_a_known_item_is_named_by_its_path_and_content_key():
    response = answer(known=(1,))
    key = response.items[1].content_key
    with pytest.raises(ValueError, match=rf"messages\[0\].content\[2\]: .*known.*{key}"):
        fields.sent_items(response)


def test_counted_items_are_refused():
    counted = service().run(request(png(1)), count_only=True)
    with pytest.raises(ValueError, match=r"messages\[0\].content\[1\]: .*CountTokens"):
        fields.sent_items(counted)


def test_several_modalities_are_refused_where_one_is_known():
    with pytest.raises(ValueError, match="not image and audio"):
        fields.only_modality(inkling("audio", "image").items)


def test_known_items_have_no_part():
    assert fields.fields(answer(known=(0,)))["pixel_values"].sizes == (32,)


@given(st.integers(0, 1 << 20), st.integers(1, 1 << 20))
def test_inclusive_offsets_convert_both_ways(offset, length):
    assert fields.from_inclusive(*fields.inclusive(offset, length)) == (offset, length)


def test_a_hash_is_its_first_eight_bytes_and_a_pad_value_its_low_thirty_bits():
    key = "ff" * 8 + "00" * 24
    assert fields.hash_u64(key) == (1 << 64) - 1
    assert fields.pad_value(key) == 1_000_000 + (1 << 30) - 1


def test_two_images_of_one_size_have_different_hashes():
    keys = [item.content_key for item in answer().items]
    assert len({fields.hash_u64(key) for key in keys}) == len({fields.pad_value(key) for key in keys}) == 2


def test_an_item_of_several_ranges_is_refused_where_one_is_known():
    response = answer()
    item = response.items[0]
    item.ranges.add(offset=90, length=1)
    with pytest.raises(ValueError, match="2 placeholder ranges"):
        fields.only_range(item)


def test_the_mask_is_true_on_ranges_and_false_on_structural_tokens():
    item = answer().items[0]
    item.span.offset, item.span.length = item.ranges[0].offset - 1, item.ranges[0].length + 2
    assert fields.embed_mask(item) == [False, *[True] * item.ranges[0].length, False]
