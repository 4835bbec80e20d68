"""What belongs to which item, and the conversions between the engines' ways to say it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchloom_client.integrations import fields
from patchloom_client.integrations.fields import Field, Kind

from tests.support.responses import answer


def test_patches_are_flat_and_grids_are_batched():
    assert fields.fields(answer(positions=True)) == {
        "pixel_values": Field(Kind.FLAT, 0, (24, 32)),
        "image_grid_thw": Field(Kind.BATCHED, 0, (1, 1)),
    }


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
