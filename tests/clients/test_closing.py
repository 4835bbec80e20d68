"""Clients that are closed: what is in flight and what comes later says so, and nothing waits for ever."""

import asyncio
import gc
import os
import threading

import pytest
from patchloom_client.client import AsyncClient, Client
from patchloom_client.errors import Cancelled, FailedPrecondition, PatchloomError, QueueFull
from patchloom_client.retry import Retry
from patchloom_proto import preprocess_pb2 as pb
from patchloom_service.errors import QueueFull as ServiceQueueFull

from tests.support.servers import png, request, running

pytestmark = pytest.mark.timeout(60)


async def test_what_is_in_flight_when_a_client_is_closed_is_cancelled(monkeypatch):
    async with running() as (server, other):
        gate = asyncio.Event()

        async def wait(*_):
            await gate.wait()

        monkeypatch.setattr(server.preprocessor, "prepare", wait)
        monkeypatch.setattr(server.preprocessor, "begin", wait)
        client = AsyncClient(other.address)
        stream = client.stream()
        shared = {"transport": "shared_memory"}
        calls = [
            client.count_tokens(request(png(1))),
            client.preprocess(request(png(1, 200, 200))),
            client.preprocess(request(png(1), options=shared)),
            stream.preprocess(request(png(1))),
        ]
        tasks = [asyncio.create_task(call) for call in calls]
        await asyncio.sleep(0.3)
        await client.close()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in found] == [Cancelled] * 4
        gate.set()


async def test_a_closed_client_says_that_it_is():
    async with running() as (_, other):
        client = AsyncClient(other.address)
        response = await client.preprocess(request(png(1), options={"transport": "shared_memory"}))
        stream = client.stream()
        await client.close()
        await client.close()
        for call in (client.count_tokens, client.preprocess, stream.preprocess):
            with pytest.raises(Cancelled, match="closed"):
                await call(request(png(1)))
        response.close()  # its lease stays until it ends, and nobody is told
        await asyncio.sleep(0.1)


async def test_nothing_is_started_on_a_closed_stream():
    async with running() as (_, client):
        async with client.stream() as stream:
            await stream.preprocess(request(png(1)))
        with pytest.raises(Cancelled, match="closed"):
            await stream.start(request(png(1)))


def test_a_closed_blocking_client_says_that_it_is_from_any_thread():
    client = Client("127.0.0.1:1")
    found, ready = [], threading.Barrier(5)

    def close():
        ready.wait()
        client.close()

    def call():
        ready.wait()
        for _ in range(200):
            try:
                client.count_tokens(pb.PreprocessRequest(), timeout=5)
            except PatchloomError as error:
                found.append(type(error).__name__)

    threads = [threading.Thread(target=work) for work in (close, close, call, call, call)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) <= {"Cancelled", "Unavailable"}
    assert found.count("Cancelled") > 500
    with pytest.raises(Cancelled):
        client.list_models()


def test_a_client_is_no_use_to_a_child_of_its_process():
    with Client("127.0.0.1:1") as client:
        child = os.fork()
        if child == 0:
            try:
                client.list_models()
            except FailedPrecondition:
                client.close()
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


async def test_all_tries_together_have_the_time_of_one_call(monkeypatch):
    async with running() as (server, other):
        tries = []

        def full():
            tries.append(1)
            raise ServiceQueueFull("full", retry_after=0.2)

        monkeypatch.setattr(server.preprocessor, "admitted", full)
        async with AsyncClient(other.address, retry=Retry(attempts=100)) as client:
            start = asyncio.get_running_loop().time()
            with pytest.raises(QueueFull):
                await client.count_tokens(request(png(1)), timeout=1.0)
            assert asyncio.get_running_loop().time() - start < 1.5
        assert 2 < len(tries) < 6


def test_a_server_that_asks_for_hours_is_not_waited_for():
    assert Retry().delay(QueueFull("full", retry_after=61.0), 1) is None
    assert Retry().delay(QueueFull("full", retry_after=59.0), 1) >= 59


async def test_a_call_that_waits_to_be_tried_again_ends_with_its_client(monkeypatch):
    async with running() as (server, other):
        client = AsyncClient(other.address, retry=Retry(attempts=2))

        def full():
            raise ServiceQueueFull("full", retry_after=30.0)

        monkeypatch.setattr(server.preprocessor, "admitted", full)
        waiting = asyncio.create_task(client.count_tokens(request(png(1))))
        await asyncio.sleep(0.2)
        await client.close()
        with pytest.raises(Cancelled):
            await asyncio.wait_for(waiting, 2)


async def test_what_is_over_is_held_by_nobody():
    """Without the collector of cycles, which engines switch off."""
    async with running() as (server, client):
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                await client.preprocess(request(png(1, 200, 200)))
            assert not client._open
            async with client.stream() as stream:
                options = {"transport": "shared_memory"}
                response = await stream.preprocess(request(png(1), options=options), timeout=50)
                assert len(server.transports.leases) == 1
                del response
                async with asyncio.timeout(5):
                    while len(server.transports.leases):
                        await asyncio.sleep(0.02)
        finally:
            gc.enable()


@pytest.mark.parametrize("timeout", [float("inf"), 1e10, 1e8])
async def test_a_timeout_of_years_is_none(timeout):
    async with running() as (_, client), client.stream() as stream:
        for call in (client.preprocess, client.count_tokens, stream.preprocess):
            await call(request(png(1)), timeout=timeout)


async def test_the_largest_bound_that_grpc_can_be_told_is_taken():
    async with running() as (_, client), AsyncClient(client.address, max_message_bytes=2**31 - 1) as own:
        await own.preprocess(request(png(1)))
