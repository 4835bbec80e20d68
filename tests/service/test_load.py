"""Requests that end badly under load: they free their memory and their place, and harm nobody."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest
from patchloom_client import errors
from patchloom_service import batching

from tests.support.servers import png, request, running


@asynccontextmanager
async def blocked_decoding(monkeypatch):
    """Decoding waits inside until the gate opens."""
    gate, decode = threading.Event(), batching.decode

    def slow(*args):
        gate.wait(20)
        return decode(*args)

    monkeypatch.setattr(batching, "decode", slow)
    try:
        yield gate
    finally:
        gate.set()


def free_bytes(server):
    budget = server.preprocessor._engine._budget
    unsent = server._servicer._unsent
    return budget._free == budget._max_bytes and unsent._free == unsent._max_bytes


async def settled(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_cancelled_request_frees_its_memory_and_its_place(monkeypatch):
    async with running(queue_length=1) as (server, client):
        await client.preprocess(request(png(1)), timeout=300)
        async with blocked_decoding(monkeypatch):
            call = asyncio.create_task(client.preprocess(request(png(2)), timeout=300))
            await settled(lambda: server.preprocessor._active == 1 and not free_bytes(server))
            with pytest.raises(errors.QueueFull) as refused:
                await client.preprocess(request(png(1)))
            assert refused.value.retry_after > 0
            call.cancel()
            await settled(lambda: server.preprocessor._active == 0 and free_bytes(server))
            assert len((await client.preprocess(request(png(1)))).items) == 1


async def test_an_expired_request_frees_its_memory_and_its_place(monkeypatch):
    async with running(queue_length=1) as (server, client):
        await client.preprocess(request(png(1)), timeout=300)
        async with blocked_decoding(monkeypatch):
            with pytest.raises(errors.DeadlineExceeded):
                await client.preprocess(request(png(2)), timeout=0.3)
            await settled(lambda: server.preprocessor._active == 0 and free_bytes(server))
            assert len((await client.preprocess(request(png(1)))).items) == 1


async def test_one_poisoned_request_among_thirty_two_changes_nothing_for_the_others():
    async with running(pixel_cache_bytes=0) as (server, client):
        alone = [await client.preprocess(request(png(seed)), timeout=300) for seed in range(31)]
        requests = [request(png(seed)) for seed in range(31)]
        requests.insert(16, request(png(99)[:-40]))
        answers = await asyncio.gather(
            *(client.preprocess(made, timeout=300) for made in requests), return_exceptions=True
        )
        poisoned = answers.pop(16)
        assert isinstance(poisoned, errors.InvalidImage)
        assert poisoned.field_path == "messages[0].content[1]"
        for one, other in zip(alone, answers, strict=True):
            assert one.token_ids == other.token_ids
            assert one.items == other.items
            assert {n: t.array.tobytes() for n, t in one.tensors.items()} == {
                n: t.array.tobytes() for n, t in other.tensors.items()
            }
        await settled(lambda: free_bytes(server))


async def test_what_the_pixel_cache_holds_is_in_the_metrics():
    async with running() as (server, client):
        await client.preprocess(request(png(1), png(1), png(2)), timeout=300)
        await client.preprocess(request(png(1)), timeout=300)
        lines = dict(line.split() for line in server.metrics.text().splitlines() if "cache" in line)
        assert lines["patchloom_pixel_cache_entries"] == "2"
        assert int(lines["patchloom_pixel_cache_bytes"]) > 0
        assert (lines["patchloom_cache_misses_total"], lines["patchloom_cache_hits_total"]) == ("2", "2")


async def test_answers_that_fell_back_to_inline_are_bounded_too(monkeypatch):
    async with running(shm_bytes=4096, max_unsent_bytes=100_000) as (server, client):
        held = []
        take = server._servicer._unsent.take

        async def counting(size):
            held.append(size)
            await take(size)

        monkeypatch.setattr(server._servicer._unsent, "take", counting)
        calls = [request(png(i), options={"transport": "shared_memory"}) for i in range(4)]
        answers = await asyncio.gather(*(client.preprocess(call, timeout=300) for call in calls))
        assert all(a.message.warnings[0].reason == "TRANSPORT_FELL_BACK" for a in answers)
        assert held == [100_000] * 4
        await settled(lambda: free_bytes(server))
