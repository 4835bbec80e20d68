"""processor_output and item objects: one dict a modality, inclusive offsets, views of the same memory."""

import mmap
from pathlib import Path

import numpy as np
import pytest
from patchloom_client.integrations import sglang

from tests.clients.integrations.answers import check_known_item_is_refused, inkling
from tests.support.responses import answer, service
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
    response = service().run(request())
    assert sglang.generate_arguments(response) == {"input_ids": response.token_ids}
    assert sglang.mm_items(response) == sglang.shm_pointers(response) == []
    assert sglang.handover(response) == {"items": [], "token_ids": response.token_ids}
    with pytest.raises(ValueError, match="no media items"):
        sglang.processor_output(response)


@pytest.mark.parametrize("known", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize(
    "convert",
    [
        sglang.generate_arguments,
        sglang.processor_output,
        sglang.mm_items,
        sglang.shm_pointers,
        sglang.handover,
    ],
)
def test_known_items_are_named_and_refused(convert, known):
    check_known_item_is_refused(convert, known)


def test_one_dict_is_of_one_modality():
    [made] = sglang.generate_arguments(inkling("audio", "audio"))["image_data"]
    assert made["modality"] == "AUDIO"
    for convert in (sglang.generate_arguments, sglang.processor_output):
        with pytest.raises(ValueError, match="one modality, not image and audio"):
            convert(inkling("audio", "image"))


@pytest.mark.parametrize("kinds", [("audio", "image"), ("image", "audio")])
def test_images_and_audio_have_their_own_features(kinds):
    response = inkling(*kinds)
    names = {"image": "pixel_values", "audio": "audio_input_ids"}
    items = sglang.mm_items(response)
    assert [item["modality"] for item in items] == [kind.upper() for kind in kinds]
    for index, (kind, item) in enumerate(zip(kinds, items, strict=True)):
        expected = response.item_tensors(index)[names[kind]].array
        np.testing.assert_array_equal(item["feature"].numpy(), expected)
        [(first, last)] = item["offsets"]
        assert last - first + 1 == response.items[index].token_count
    own = {"image": [], "audio": ["audio_input_ids_mask"]}
    meta = sglang.handover(response)["items"]
    assert [list(item["model_specific_data"]) for item in meta] == [own[kind] for kind in kinds]


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
