"""Each example loop feeds an engine that records what it is given."""

import importlib.util
import json
from pathlib import Path

import pytest

from tests.support.servers import ROOT, running

BODIES = [
    json.loads((ROOT / "tests/data/histories" / f"{name}.json").read_text())["chat"] | {"model": ""}
    for name in ("user_images", "three_rounds")
]


def example(name):
    spec = importlib.util.spec_from_file_location(name, Path(ROOT / "clients/examples" / f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def vllm_engine(body):
    hashes = body["features"]["mm_hashes"]["image"]
    assert all(body["features"]["kwargs_data"]["image"])
    return len(body["token_ids"]), len(hashes)


async def sglang_engine(input_ids, image_data):
    return len(input_ids), len(image_data[0]["offsets"])


async def proto_engine(ids, fields):
    assert "shm" in fields["pixel_values"]
    return len(ids), len(fields["mm_hashes"])


@pytest.mark.parametrize(
    ("name", "engine"),
    [("vllm_loop", vllm_engine), ("sglang_loop", sglang_engine), ("engine_proto_loop", proto_engine)],
)
async def test_a_loop_gives_the_engine_every_image_and_its_memory_back(name, engine):
    async with running() as (server, client):
        expected = [await client.count_tokens(_request(body)) for body in BODIES]
        answers = await example(name).serve(client.address, BODIES, engine)
        assert answers == [(len(count.token_ids), len(count.items)) for count in expected]
        assert server.transports.gauges()["patchloom_leases"] == 0


def _request(body):
    from patchloom_client.protocols import PROTOCOLS

    return PROTOCOLS["chat"](body)
