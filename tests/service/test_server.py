"""The real server on a loopback port: health, reflection, typed errors, isolation, SIGTERM."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from functools import partial
from types import SimpleNamespace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from patchloom_client import errors
from patchloom_client.client import Client
from patchloom_proto import preprocess_pb2 as pb

from tests.support.servers import model_directory, png, request, running


async def health(port, service=""):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status


async def services(port):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        async for answer in stub.ServerReflectionInfo(iter([ask])):
            return sorted(service.name for service in answer.list_services_response.service)


@pytest.fixture
def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_health_and_reflection_answer(free_port):
    async with running(address=f"127.0.0.1:{free_port}"):
        assert await health(free_port) == health_pb2.HealthCheckResponse.SERVING
        assert await health(free_port, "patchloom.v1.PreprocessService") == 1
        assert "patchloom.v1.PreprocessService" in await services(free_port)


async def test_unary_and_count_give_the_same_ids_and_ranges():
    async with running() as (_, client):
        whole = await client.preprocess(request(png(1), png(2, 84, 56)))
        counted = await client.count_tokens(request(png(1), png(2, 84, 56)))
        assert counted.token_ids == whole.token_ids
        assert [list(i.ranges) for i in counted.items] == [list(i.ranges) for i in whole.items]
        assert counted.tensors == {}


async def test_a_second_request_decodes_nothing():
    async with running() as (_, client):
        first = await client.preprocess(request(png(3)))
        second = await client.preprocess(request(png(3)))
        assert first.message.counters.decodes == 1
        assert (second.message.counters.decodes, second.message.counters.cache_hits) == (0, 1)
        assert second.tensors["pixel_values"].array.tobytes() == first.tensors["pixel_values"].array.tobytes()


async def test_the_same_image_twice_in_a_request_is_decoded_once():
    async with running() as (_, client):
        answer = await client.preprocess(request(png(4), png(4)))
        assert answer.message.counters.decodes == 1


async def test_a_key_only_part_gives_the_same_pixels_and_a_miss_names_all_keys():
    async with running() as (_, client):
        first = await client.preprocess(request(png(5)))
        again = request()
        again.conversation.messages[0].content.add().image.source.content_key = first.items[0].content_key
        second = await client.preprocess(again)
        assert second.tensors["pixel_values"].array.tobytes() == first.tensors["pixel_values"].array.tobytes()
        for key in ("0" * 64, "1" * 64):
            again.conversation.messages[0].content.add().image.source.content_key = key
        with pytest.raises(errors.ContentKeyNotFound) as caught:
            await client.preprocess(again)
        assert caught.value.keys == ("0" * 64, "1" * 64)


async def test_keys_of_other_settings_are_all_missing():
    async with running() as (_, client):
        first = await client.preprocess(request(png(6), png(7)))
        keys = tuple(item.content_key for item in first.items)
        again = request(options={"parity": "pillow12"})
        for key in keys:
            again.conversation.messages[0].content.add().image.source.content_key = key
        with pytest.raises(errors.ContentKeyNotFound) as caught:
            await client.preprocess(again)
        assert caught.value.keys == keys


async def test_a_miss_of_all_keys_that_a_request_may_have_reaches_the_client():
    keys = tuple(f"{number:064x}" for number in range(256))
    missing = request()
    for key in keys:
        missing.conversation.messages[0].content.add().image.source.content_key = key
    async with running() as (_, client):
        with pytest.raises(errors.ContentKeyNotFound) as caught:
            await client.preprocess(missing)
    assert caught.value.keys == keys


async def test_one_bad_image_among_many_requests_fails_its_own_only():
    async with running() as (_, client):
        requests = [request(png(i)) for i in range(8)]
        requests[3].conversation.messages[0].content[1].image.source.data = png(3)[:-40]
        answers = await asyncio.gather(*(client.preprocess(r) for r in requests), return_exceptions=True)
        bad = answers.pop(3)
        assert isinstance(bad, errors.InvalidImage)
        assert bad.field_path == "messages[0].content[1]"
        assert all(not isinstance(answer, BaseException) for answer in answers)


@pytest.mark.parametrize(
    ("change", "error", "path"),
    [
        (lambda r: setattr(r, "model", "other"), errors.ModelNotFound, "model"),
        (lambda r: setattr(r.conversation.messages[0], "role", 0), errors.InvalidMessage, "messages[0].role"),
        (lambda r: r.conversation.messages[0].content.add(), errors.InvalidMessage, "messages[0].content[1]"),
        (lambda r: r.ClearField("conversation"), errors.InvalidMessage, "prompt"),
        (lambda r: setattr(r, "model", "🙂" * 5000), errors.ModelNotFound, "model"),
        (
            lambda r: setattr(r.conversation.messages[0].content.add().image.source, "content_key", "k" * 99),
            errors.InvalidMessage,
            "messages[0].content[1].source.content_key",
        ),
        (lambda r: setattr(r.output, "parity", 99), errors.InvalidMessage, "output.parity"),
        (
            lambda r: setattr(r, "expected_fingerprint", "x"),
            errors.FingerprintMismatch,
            "expected_fingerprint",
        ),
        (
            lambda r: setattr(r.render, "template_kwargs", b"[1]"),
            errors.InvalidMessage,
            "render.template_kwargs",
        ),
    ],
)
async def test_a_malformed_request_is_a_typed_error_with_its_place(change, error, path):
    async with running() as (_, client):
        made = request()
        change(made)
        with pytest.raises(error) as caught:
            await client.preprocess(made)
        assert caught.value.field_path == path


@pytest.mark.parametrize("size", [9, 1 << 20])
async def test_bytes_that_are_no_request_are_a_typed_error(size):
    async with running() as (_, client), grpc.aio.insecure_channel(client.address) as channel:
        call = channel.unary_unary("/patchloom.v1.PreprocessService/Preprocess")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff" * size)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "no PreprocessRequest" in caught.value.details()


async def test_long_and_short_requests_are_read_alike():
    """Short plain ones on the event loop, all others beside it."""
    async with running() as (_, client):
        short = await client.preprocess(request(png(1)))
        long = request(png(1))
        long.conversation.messages.add(role=2).content.add().text.text = "x" * (600 << 10)
        for other in (long, request(*[png(1)] * 40)):
            answered = await client.preprocess(other)
            part = answered.item_tensors(len(answered.items) - 1)["pixel_values"].array
            assert part.tobytes() == short.item_tensors(0)["pixel_values"].array.tobytes()


async def test_a_deadline_is_kept():
    async with running() as (_, client):
        with pytest.raises(errors.DeadlineExceeded):
            await client.preprocess(request(png(6, 2000, 2000)), timeout=0.001)


async def test_a_full_queue_says_so():
    async with running(queue_length=1) as (_, client):
        answers = await asyncio.gather(
            *(client.preprocess(request(png(i, 600, 600))) for i in range(6)), return_exceptions=True
        )
        refused = [answer for answer in answers if isinstance(answer, errors.QueueFull)]
        assert refused
        assert len(refused) < 6


async def test_a_request_over_the_memory_bound_is_refused():
    async with running(max_inflight_bytes=1000) as (_, client):
        with pytest.raises(errors.OutOfMemory, match="at most 1000"):
            await client.preprocess(request(png(7)))


async def test_an_internal_fault_says_nothing_of_itself(monkeypatch, caplog):
    async with running() as (server, client):

        def broken(*_):
            raise RuntimeError("secret 0xdeadbeef")

        monkeypatch.setattr(server.preprocessor, "model", broken)
        with pytest.raises(errors.Internal) as caught:
            await client.preprocess(request())
        assert "secret" not in str(caught.value)
        assert "secret" in caplog.text


async def test_models_are_listed_with_what_was_learnt():
    async with running() as (_, client):
        (model,) = await client.list_models()
        assert (model.name, model.family) == ("tiny", "qwen2_5_vl")
        assert (await client.get_model("tiny")).fingerprint == model.fingerprint


def test_sigterm_ends_a_served_command_in_peace(free_port):
    address = f"127.0.0.1:{free_port}"
    command = [sys.executable, "-m", "patchloom_client.cli", "serve", "--model", str(model_directory())]
    process = subprocess.Popen(
        [*command, "--served-name", "m", "--address", address, "--device", "cpu"],
        env={**os.environ, "GRPC_VERBOSITY": "NONE"},
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 120
        with Client(address, timeout=10) as client:
            while True:
                try:
                    assert [m.name for m in client.list_models()] == ["m"]
                    break
                except errors.Unavailable:
                    assert process.poll() is None, process.stderr.read().decode()
                    assert time.monotonic() < deadline
                    time.sleep(0.3)
            assert len(client.preprocess(request(png(8))).items) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.stderr.close()
        process.wait()


async def test_a_full_queue_reads_no_request():
    async with running(queue_length=1) as (server, client):
        with server.preprocessor.admitted(), pytest.raises(errors.QueueFull):
            await client._tried(partial(client._in_one, "Preprocess", b"no message at all"), 10)


async def test_the_room_of_an_answer_that_nobody_reads_comes_back_once(monkeypatch):
    done = []
    context = SimpleNamespace(time_remaining=lambda: None, add_done_callback=done.append)
    async with running(request_timeout=0.1, max_unsent_bytes=1000) as (server, _):
        servicer = server._servicer
        await servicer._hold_until_sent(5000, context)
        assert servicer._unsent._free == 0
        await servicer._hold_until_sent(100, context)  # waits for the time of the first
        assert servicer._unsent._free == 800
        for call in done:
            call(context)
        await asyncio.sleep(0.2)
        assert servicer._unsent._free == 1000


async def test_a_call_gives_back_a_bounded_number_of_leases():
    async with running() as (_, client):
        with pytest.raises(errors.LimitExceeded, match="at most 16384") as caught:
            await client.release_leases([pb.Lease()] * 16385)
        assert caught.value.field_path == "leases"


async def by_key(client, key, own=None, **options):
    """The answer to an image by its key, with its own most pixels and the request's options."""
    asked = request(options=options)
    part = asked.conversation.messages[0].content.add().image
    part.source.content_key = key
    if own is not None:
        part.options.max_pixels = own
    return await client.preprocess(asked)


async def test_a_key_is_of_a_size_and_another_is_missing():
    async with running() as (_, client):
        large = (await client.preprocess(request(png(8, 448, 448)))).items[0]
        small = (await client.preprocess(request(png(8, 448, 448), options={"max_pixels": 70_000}))).items[0]
        assert large.token_count > small.token_count
        for own, options in ((70_000, {}), (None, {"max_pixels": 70_000})):
            with pytest.raises(errors.ContentKeyNotFound) as caught:
                await by_key(client, large.content_key, own, **options)
            assert caught.value.keys == (large.content_key,)
            assert (await by_key(client, small.content_key, own, **options)).items[0] == small
        for item in (large, small):  # a key without options is of the size that it was made with
            assert (await by_key(client, item.content_key)).items[0].token_count == item.token_count
        again = await by_key(client, large.content_key, 10_000_000)  # changes nothing
        assert again.items[0].token_count == large.token_count
        with pytest.raises(errors.InvalidArgument) as caught:
            await by_key(client, large.content_key, 1)
        assert caught.value.field_path == "messages[0].content[1]"


async def test_a_key_is_of_a_dtype_and_another_is_missing():
    async with running() as (_, client):
        first = (await client.preprocess(request(png(9)))).items[0].content_key
        with pytest.raises(errors.ContentKeyNotFound):
            await by_key(client, first, dtype="bfloat16")
        second = (
            (await client.preprocess(request(png(9), options={"dtype": "bfloat16"}))).items[0].content_key
        )
        assert first != second
        assert (await by_key(client, second, dtype="bfloat16")).items[0].content_key == second


async def test_a_stream_whose_client_is_gone_at_once_is_no_fault_of_the_server(caplog):
    async def gone(_):
        raise grpc.aio.UsageError("RPC already finished.")

    context = SimpleNamespace(send_initial_metadata=gone, done=lambda: False)
    async with running() as (server, _):
        await server._servicer.PreprocessStream(None, context)
        assert (
            server.metrics.value("patchloom_requests_total", method="PreprocessStream", code="INTERNAL") == 0
        )
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_items_by_key_count_towards_the_pixels_of_a_request():
    async with running(max_request_pixels=40_050) as (_, client):
        key = (await client.preprocess(request(png(9, 200, 200)))).items[0].content_key
        again = request()
        for _ in range(2):
            again.conversation.messages[0].content.add().image.source.content_key = key
        with pytest.raises(errors.LimitExceeded) as caught:
            await client.preprocess(again)
        assert caught.value.field_path == "messages[0].content[2]"
