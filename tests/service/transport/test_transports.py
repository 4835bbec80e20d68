"""Tensors over shared memory from a real server: the same values, one memory, and nothing left behind."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial

import grpc
import numpy as np
import pytest
from patchloom_client.errors import (
    FailedPrecondition,
    LimitExceeded,
    OutOfMemory,
    StaleHandle,
)
from patchloom_client.tensors import read_response
from patchloom_proto import preprocess_pb2 as pb
from patchloom_proto import preprocess_pb2_grpc as rpc
from patchloom_service import batching, servicer
from patchloom_service.config import Config

from tests.support.servers import ROOT, png, request, running

SHARED = {"transport": "shared_memory"}


def segments(server):
    instance = server.transports.leases.instance
    return [name for name in os.listdir("/dev/shm") if name.startswith(f"patchloom-{instance}.")]


async def until(condition, seconds=5.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("encoding", ["model", "uint8"])
async def test_shared_memory_has_the_values_of_the_message(dtype, encoding):
    options = {"dtype": dtype, "encoding": encoding, "positions": True}
    async with running() as (_, client):
        inline = await client.preprocess(request(png(1), png(2, 112, 56), options=options))
        with await client.preprocess(request(png(1), png(2, 112, 56), options=options | SHARED)) as shared:
            assert shared.message.tensors["pixel_values"].WhichOneof("payload") == "handle"
            assert shared.tensors.keys() == inline.tensors.keys()
            for name, tensor in inline.tensors.items():
                other = shared.tensors[name]
                assert (other.dtype, other.expansion) == (tensor.dtype, tensor.expansion)
                np.testing.assert_array_equal(other.array, tensor.array)


async def test_views_are_of_the_mapping_itself():
    async with running() as (_, client):
        response = await client.preprocess(request(png(), options=SHARED | {"dtype": "bfloat16"}))
        tensor = response.tensors["pixel_values"]
        assert not tensor.array.flags.owndata
        assert not tensor.array.flags.writeable
        assert tensor.torch().data_ptr() == tensor.array.ctypes.data
        assert str(tensor.torch().dtype) == "torch.bfloat16"
        del tensor
        response.close()


async def test_a_closed_response_gives_its_memory_back_for_reuse():
    async with running() as (server, client):
        for _ in range(5):
            with await client.preprocess(request(png(), options=SHARED)):
                pass
            await until(lambda: len(server.transports.leases) == 0)
        assert len([name for name in segments(server) if not name.endswith(".lock")]) == 1
        assert server.transports.gauges()["patchloom_leases_released_total"] == 5


async def test_a_lost_response_gives_its_memory_back():
    async with running() as (server, client):
        response = await client.preprocess(request(png(), options=SHARED))
        assert len(server.transports.leases) == 1
        del response
        gc.collect()
        await until(lambda: len(server.transports.leases) == 0)


async def test_views_outlive_the_response_unchanged():
    async with running() as (server, client):
        response = await client.preprocess(request(png(1), options=SHARED))
        view = response.tensors["pixel_values"].array
        before = view.copy()
        response.close()
        await until(lambda: len(server.transports.leases) == 0)
        for seed in range(2, 6):
            with await client.preprocess(request(png(seed), options=SHARED)):
                pass
        np.testing.assert_array_equal(view, before)


async def test_released_twice_is_stale():
    async with running() as (_, client):
        response = await client.preprocess(request(png(), options=SHARED))
        lease = response.lease
        assert await client.release_leases([lease]) == 1
        with pytest.raises(StaleHandle) as caught:
            await client.release_leases([lease])
        assert caught.value.field_path == "leases[0]"


@pytest.mark.parametrize(
    "change", [{"generation": 99}, {"server_instance": "0" * 32}, {"lease_id": "x"}, {"lease_id": ""}]
)
async def test_a_wrong_lease_is_a_failed_precondition_and_the_right_one_stays(change):
    async with running() as (_, client):
        response = await client.preprocess(request(png(), options=SHARED))
        wrong = pb.Lease()
        wrong.CopyFrom(response.lease)
        for name, value in change.items():
            setattr(wrong, name, value)
        for attempt in (client.release_leases([wrong]), client.renew_leases([wrong])):
            with pytest.raises(StaleHandle):
                await attempt
        assert await client.release_leases([response.lease]) == 1


async def test_an_expired_lease_is_unlinked_stale_and_still_readable():
    async with running() as (server, client):
        response = await client.preprocess(request(png(), options=SHARED | {"lease_time": 0.2}))
        before = response.tensors["pixel_values"].array.copy()
        await until(lambda: server.transports.gauges().get("patchloom_leases_expired_total") == 1)
        for attempt in (client.release_leases([response.lease]), client.renew_leases([response.lease])):
            with pytest.raises(StaleHandle):
                await attempt
        with pytest.raises(StaleHandle):
            read_response(response.message)
        with await client.preprocess(request(png(9), options=SHARED)):
            np.testing.assert_array_equal(response.tensors["pixel_values"].array, before)


async def test_a_renewed_lease_outlives_its_first_time():
    async with running() as (server, client):
        response = await client.preprocess(request(png(), options=SHARED | {"lease_time": 0.3}))
        expires = await client.renew_leases([response.lease], 60.0)
        assert expires > response.message.tensors["pixel_values"].handle.expires.seconds + 30
        await asyncio.sleep(1.2)
        assert len(server.transports.leases) == 1
        response.close()


async def test_a_full_arena_falls_back_to_the_message_with_a_warning():
    async with running(shm_bytes=100_000) as (server, client):
        response = await client.preprocess(request(png(1, 224, 224), options=SHARED))
        assert response.message.tensors["pixel_values"].WhichOneof("payload") == "inline"
        assert [w.reason for w in response.message.warnings] == ["TRANSPORT_FELL_BACK"]
        assert server.transports.gauges()["patchloom_shm_bytes"] == 0


async def test_a_response_without_pixels_takes_no_memory_and_warns_of_nothing():
    async with running() as (server, client):
        held = (await client.preprocess(request(png(1)))).items[0].content_key
        for wanted in (
            request(options=SHARED),
            request(png(1), options=SHARED | {"known_content_keys": [held]}),
        ):
            response = await client.preprocess(wanted)
            assert (response.tensors, list(response.message.warnings), response.lease) == ({}, [], None)
        assert server.transports.gauges()["patchloom_leases_granted_total"] == 0


async def test_a_cancelled_request_never_lends_the_memory_that_a_kernel_may_still_write(monkeypatch):
    async with running() as (server, client):
        engine = server.preprocessor._engine
        started, write = asyncio.Event(), engine._write

        async def slow(*arguments):
            started.set()
            await asyncio.sleep(60)
            await write(*arguments)

        monkeypatch.setattr(engine, "_write", slow)
        task = asyncio.create_task(client.preprocess(request(png(1), png(4), options=SHARED)))
        await started.wait()
        names = segments(server)
        task.cancel()
        await until(lambda: server.preprocessor._active == 0)
        monkeypatch.setattr(engine, "_write", write)
        with await client.preprocess(request(png(2), options=SHARED)) as response:
            name = response.message.tensors["pixel_values"].handle.shared_memory.name
            assert name not in names
            assert len(segments(server)) == 2


async def test_a_thread_that_goes_on_after_its_request_was_cancelled_lends_nothing(monkeypatch):
    async with running() as (server, client):
        started, go_on, over = threading.Event(), threading.Event(), threading.Event()
        decoded = batching._decoded

        def slow(*arguments):
            started.set()
            go_on.wait(60)
            return decoded(*arguments)

        def written(delivery, result):
            try:
                return finish(delivery, result)
            finally:
                over.set()

        finish = servicer._written
        monkeypatch.setattr(batching, "_decoded", slow)
        monkeypatch.setattr(servicer, "_written", written)
        task = asyncio.create_task(client.preprocess(request(png(1), options=SHARED)))
        await asyncio.to_thread(started.wait, 60)
        names = segments(server)
        task.cancel()
        await until(lambda: server.preprocessor._active == 0)
        go_on.set()
        await asyncio.to_thread(over.wait, 60)
        assert (len(server.transports.leases), server.transports.leases.granted) == (0, 0)
        with await client.preprocess(request(png(2), options=SHARED)) as response:
            assert response.message.tensors["pixel_values"].handle.shared_memory.name not in names
        await until(lambda: server.preprocessor._engine._budget._free == Config().max_inflight_bytes)


async def test_a_full_arena_is_resource_exhausted_where_configured():
    async with running(shm_bytes=400_000, shm_fallback="error") as (server, client):
        held = await client.preprocess(request(png(1, 112, 112), options=SHARED))
        with pytest.raises(OutOfMemory) as caught:
            await client.preprocess(request(png(2, 112, 112), options=SHARED))
        assert caught.value.retry_after is not None
        with pytest.raises(OutOfMemory) as caught:
            await client.preprocess(request(png(2, 448, 448), options=SHARED))
        assert caught.value.retry_after is None
        held.close()
        await until(lambda: len(server.transports.leases) == 0)
        (await client.preprocess(request(png(2, 112, 112), options=SHARED))).close()


async def test_a_failed_request_leaves_no_segment():
    async with running() as (server, client):
        broken = png(3)[:200]
        with pytest.raises(Exception):  # noqa: B017 - any typed error
            await client.preprocess(request(png(), broken, options=SHARED))
        assert [name for name in segments(server) if not name.endswith(".lock")] == []


async def test_cuda_ipc_without_a_device_is_a_failed_precondition():
    async with running() as (_, client):
        with pytest.raises(FailedPrecondition) as caught:
            await client.preprocess(request(png(), options={"transport": "cuda_ipc"}))
        assert caught.value.field_path == "output.transport"


async def test_an_owner_that_is_no_process_is_refused():
    async with running() as (_, client):
        async with grpc.aio.insecure_channel(client.address) as channel:
            stub = rpc.PreprocessServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Preprocess(request(png()), metadata=(("patchloom-owner", "nobody"),))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_killed_client_frees_its_memory():
    async with running(address="127.0.0.1:0") as (server, client):
        code = (
            "import asyncio, os, signal, sys\n"
            f"sys.path.insert(0, {str(ROOT)!r})\n"
            "from tests.support.servers import png, request\n"
            "from patchloom_client.client import AsyncClient\n"
            "async def main():\n"
            "    client = AsyncClient(sys.argv[1])\n"
            "    held = await client.preprocess(request(png(), options={'transport': 'shared_memory'}))\n"
            "    print(held.tensors['pixel_values'].shape, flush=True)\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
            "asyncio.run(main())\n"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, client.address, stdout=subprocess.PIPE
        )
        assert await process.stdout.readline() != b""
        await process.wait()
        await until(lambda: server.transports.gauges().get("patchloom_leases_owner_lost_total") == 1)
        await until(lambda: server.transports.gauges()["patchloom_shm_bytes"] == 0)


async def test_many_readers_map_one_memory_and_are_counted():
    async with running() as (server, client):
        with await client.preprocess(request(png(), options=SHARED)) as response:
            readers = [read_response(response.message) for _ in range(8)]
            gauges = server.transports.gauges()
            assert (gauges["patchloom_shm_readers"], gauges["patchloom_leases"]) == (9, 1)
            assert server.metrics.value("patchloom_decodes_total") == 1
            for reader in readers:
                reader.close()
            assert server.transports.gauges()["patchloom_shm_readers"] == 1


async def test_the_metrics_are_served_over_http():
    async with running(metrics_address="127.0.0.1:0") as (server, client):
        with await client.preprocess(request(png(), options=SHARED)):
            for path, status in (("/metrics", b"200 OK"), ("/", b"404 Not Found")):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.metrics_port)
                writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                answer = await reader.read()
                writer.close()
                await writer.wait_closed()
                assert answer.startswith(b"HTTP/1.1 " + status)
                assert (b"\npatchloom_leases 1\n" in answer) == (path == "/metrics")


async def test_a_stopped_server_leaves_no_file():
    async with running() as (server, client):
        response = await client.preprocess(request(png(), options=SHARED))
        assert segments(server) != []
    assert segments(server) == []
    assert response.tensors["pixel_values"].array.shape == (24, 1176)


async def test_shards_split_the_items_without_a_copy():
    async with running() as (_, client):
        images = [png(seed, 56 * (seed + 1), 84) for seed in range(4)]
        with await client.preprocess(request(*images, options=SHARED | {"shards": 2})) as response:
            shares = [response.shard(rank) for rank in range(2)]
            assert sorted(item.index for share in shares for item in share.items) == [0, 1, 2, 3]
            whole = response.tensors["pixel_values"].array
            for share in shares:
                for item, part in zip(share.items, share.tensors["pixel_values"], strict=True):
                    piece = next(s for s in item.slices if s.tensor == "pixel_values")
                    expected = whole[piece.start : piece.start + piece.count]
                    assert part.array.ctypes.data == expected.ctypes.data
                    assert part.shape == expected.shape
            with pytest.raises(ValueError, match="no shard 2"):
                response.shard(2)


async def test_a_request_that_is_cancelled_when_its_answer_is_ready_leaves_no_lease():
    async with running() as (server, client):
        leases = server.transports.leases
        asked = request(png(1), options=SHARED)
        (await client.preprocess(asked)).close()  # the image is in the cache
        for delay in [number * 0.0002 for number in range(60)]:
            task = asyncio.create_task(client.preprocess(asked))
            await asyncio.sleep(delay)
            task.cancel()
            with suppress(asyncio.CancelledError):
                (await task).close()
        await until(lambda: not len(leases) and not server.preprocessor._active, 20)


async def test_the_name_of_a_call_that_got_a_lease_gives_it_back():
    async with running() as (server, client):
        asked = request(png(1), options=SHARED)
        await client._tried(
            partial(client._in_one, "Preprocess", asked.SerializeToString(), name="x" * 32), 10
        )
        assert len(server.transports.leases) == 1
        assert await client._give_back(["x" * 32, "y" * 32]) == 1
        assert not len(server.transports.leases)
        with pytest.raises(LimitExceeded) as caught:
            await client._give_back(["x"] * 16385)
        assert caught.value.field_path == "calls"
