"""processor_output and item objects: one dict a modality, inclusive offsets, views of the same memory."""

import mmap
from pathlib import Path

import numpy as np
import pytest
from patchloom_client.integrations import sglang

from tests.support.responses import answer
from tests.support.servers import png, request, running


def test_all_images_are_in_one_dict():
    response = answer()
    arguments = sglang.generate_arguments(response)
    assert arguments["input_ids"] == response.token_ids
    [made] = arguments["image_data"]
    assert (made["format"], made["modality"]) == ("processor_output", "IMAGE")
    assert made["pixel_values"].data_ptr() == response.tensors["pixel_values"].array.ctypes.data
    assert made["image_grid_thw"].tolist() == [[1, 4, 6], [1, 8, 4]]
    for first, last in made["offsets"]:
        assert set(response.token_ids[first : last + 1]) == {151655}
        assert 151655 not in (response.token_ids[first - 1], response.token_ids[last + 1])
    assert len(made["offsets"]) == 2


def test_a_prompt_without_images_has_no_image_data():
    response = answer(known=(0, 1))
    assert sglang.generate_arguments(response) == {"input_ids": response.token_ids}


def test_each_item_has_its_own_feature_hash_and_offsets():
    response = answer()
    items = sglang.mm_items(response)
    assert [tuple(item["feature"].shape) for item in items] == [(24, 1176), (32, 1176)]
    assert len({item["hash"] for item in items}) == 2
    assert all(item["pad_value"] >= 1_000_000 for item in items)
    assert [item["model_specific_data"]["image_grid_thw"].tolist() for item in items] == [
        [[1, 4, 6]],
        [[1, 8, 4]],
    ]


def test_the_hand_over_holds_plain_values():
    response = answer(positions=True)
    meta = sglang.handover(response)
    assert meta["token_ids"] == response.token_ids
    assert [item["model_specific_data"] for item in meta["items"]] == [
        {"image_grid_thw": [[1, 4, 6]]},
        {"image_grid_thw": [[1, 8, 4]]},
    ]
    assert meta["mrope_delta"] == response.tensors["rope_deltas"].array.tolist()
    positions = sglang.mrope(response)["mrope_positions"]
    assert tuple(positions.shape) == (3, len(response.token_ids))


async def test_pointers_lead_to_the_items_in_the_file():
    async with running() as (_, client):
        wanted = request(png(1), png(2, 112, 56), options={"transport": "shared_memory"})
        with await client.preprocess(wanted) as response:
            for pointer, item in zip(sglang.shm_pointers(response), response.items, strict=True):
                expected = response.item_tensors(item.index)["pixel_values"].array
                with Path(pointer["path"]).open("rb") as file:
                    memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
                count = int(np.prod(pointer["shape"]))
                got = np.frombuffer(memory, pointer["dtype"], count, pointer["offset"])
                np.testing.assert_array_equal(got.reshape(pointer["shape"]), expected)


def test_pixels_in_the_message_have_no_pointer():
    with pytest.raises(ValueError, match="shared_memory"):
        sglang.shm_pointers(answer())
