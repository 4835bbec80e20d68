"""Ids in, ids out, through the whole pipeline."""

import pytest
from patchloom_client import errors
from patchloom_client.protocols import PROTOCOLS

from tests.support.servers import png, request, running


def tokens(ids, *images):
    made = PROTOCOLS["tokens"]({"token_ids": list(ids), "media": []})
    for data in images:
        made.tokens.media.add().image.source.data = data
    return made


async def test_expanded_and_unexpanded_ids_give_the_same_answer():
    async with running() as (_, client):
        whole = await client.preprocess(request(png(1), png(2, 84, 56)))
        ids = whole.token_ids
        single = [i for n, i in enumerate(ids) if not (i == 151655 and n and ids[n - 1] == 151655)]
        for prompt in (ids, single):
            answer = await client.preprocess(tokens(prompt, png(1), png(2, 84, 56)))
            assert answer.token_ids == ids
            assert [list(i.ranges) for i in answer.items] == [list(i.ranges) for i in whole.items]
            assert answer.items[0].path == "media[0]"
            pixels = answer.tensors["pixel_values"].array
            assert pixels.tobytes() == whole.tensors["pixel_values"].array.tobytes()


@pytest.mark.parametrize("extra", [[151655], [4_000_000_000], [151655, 151655, 151655]])
async def test_a_placeholder_without_item_and_a_foreign_id_are_refused(extra):
    async with running() as (_, client):
        whole = await client.preprocess(request(png(1)))
        with pytest.raises(errors.InvalidArgument) as caught:
            await client.preprocess(tokens([*whole.token_ids, *extra], png(1)))
        assert caught.value.field_path in ("tokens.token_ids", "media[0]")
