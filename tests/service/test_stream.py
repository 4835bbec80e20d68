"""Many requests over one call: tokens first, tensors after, and an error ends its own request only."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import grpc
import numpy as np
import pytest
from google.rpc import code_pb2
from patchloom_client.client import AsyncClient
from patchloom_client.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidImage,
    MessageTooLarge,
    QueueFull,
    Unavailable,
)
from patchloom_client.retry import Retry
from patchloom_client.status import error_from_status
from patchloom_proto import preprocess_pb2 as pb
from patchloom_proto import preprocess_pb2_grpc as rpc
from patchloom_service.stream import Stream

from tests.support.servers import png, request, running

SHARED = {"transport": "shared_memory"}


@asynccontextmanager
async def raw_stream(client):
    """The bare call: what goes over the wire and nothing else."""
    async with grpc.aio.insecure_channel(client.address) as channel:
        call = rpc.PreprocessServiceStub(channel).PreprocessStream()
        yield call
        call.cancel()


def start(key, body, timeout=None):
    message = pb.PreprocessStreamRequest(request_id=key, start=body)
    if timeout is not None:
        message.timeout.FromMilliseconds(int(timeout * 1000))
    return message


def cancel(key):
    message = pb.PreprocessStreamRequest(request_id=key)
    message.cancel.SetInParent()
    return message


async def events(call, count):
    """The next messages as (id, kind) and themselves."""
    found = []
    for _ in range(count):
        async with asyncio.timeout(20):
            message = await call.read()
        assert message is not grpc.aio.EOF
        found.append((message.request_id, message.WhichOneof("event"), message))
    return found


def reason(message):
    return error_from_status(message.error).reason


@asynccontextmanager
async def blocked_pixels(server, monkeypatch):
    """Pixel work waits until the block sets the event."""
    gate, pixels = asyncio.Event(), server.preprocessor.pixels

    async def wait(*arguments):
        await gate.wait()
        return await pixels(*arguments)

    monkeypatch.setattr(server.preprocessor, "pixels", wait)
    yield gate
    gate.set()


async def test_tokens_come_before_tensors_and_equal_the_unary_answer():
    async with running() as (_, client), client.stream() as stream:
        unary = await client.preprocess(request(png(1), png(2)))
        call = await stream.start(request(png(1), png(2)))
        tokens = await call.tokens()
        assert not call.done
        response = await call.response()
        assert tokens.token_ids == response.token_ids == unary.token_ids
        assert dict(tokens.tensors) == {}
        for name, tensor in unary.tensors.items():
            np.testing.assert_array_equal(response.tensors[name].array, tensor.array)


async def test_tokens_do_not_wait_for_pixels(monkeypatch):
    async with (
        running() as (server, client),
        client.stream() as stream,
        blocked_pixels(server, monkeypatch) as gate,
    ):
        calls = [await stream.start(request(png(seed))) for seed in range(4)]
        for call in calls:
            assert (await call.tokens()).items[0].path == "messages[0].content[1]"
            assert not call.done
        gate.set()
        for call in calls:
            await call.response()


async def test_a_large_tensor_comes_in_chunks_within_a_small_message_limit():
    flat = png(None, 224, 224)
    async with running(chunk_bytes=10_000) as (_, client):
        expected = await client.preprocess(request(flat))
        async with AsyncClient(client.address, max_message_bytes=60_000) as small, small.stream() as stream:
            response = await stream.preprocess(request(flat))
            assert response.message.tensors["pixel_values"].chunked == 256 * 1176 * 4
            np.testing.assert_array_equal(
                response.tensors["pixel_values"].array, expected.tensors["pixel_values"].array
            )


async def test_a_request_over_the_message_limit_is_refused_with_both_numbers():
    async with AsyncClient("127.0.0.1:1", max_message_bytes=1000) as client, client.stream() as stream:
        for attempt in (stream.start(request(png())), client.preprocess(request(png()))):
            with pytest.raises(MessageTooLarge, match=r"the request has \d+ bytes; at most 1000"):
                await attempt


async def test_streams_use_shared_memory_as_unary_calls_do():
    async with running() as (server, client), client.stream() as stream:
        expected = await client.preprocess(request(png(1)))
        with await stream.preprocess(request(png(1), options=SHARED)) as response:
            assert response.lease is not None
            np.testing.assert_array_equal(
                response.tensors["pixel_values"].array, expected.tensors["pixel_values"].array
            )
        async with asyncio.timeout(5):
            while len(server.transports.leases):
                await asyncio.sleep(0.02)


async def test_an_error_ends_its_request_and_not_the_stream():
    async with running() as (_, client), client.stream() as stream:
        good = [await stream.start(request(png(seed))) for seed in range(3)]
        bad = await stream.start(request(png(0)[:100]))
        with pytest.raises(InvalidImage) as caught:
            await bad.response()
        assert caught.value.field_path == "messages[0].content[1]"
        for call in good:
            await call.response()
        await stream.preprocess(request(png(9)))


async def test_the_same_id_in_flight_is_refused_and_the_first_goes_on(monkeypatch):
    async with (
        running() as (server, client),
        raw_stream(client) as call,
        blocked_pixels(server, monkeypatch) as gate,
    ):
        await call.write(start("a", request(png(1))))
        [(_, kind, _)] = await events(call, 1)
        assert kind == "tokens_ready"
        await call.write(start("a", request(png(2))))
        [(key, kind, message)] = await events(call, 1)
        assert (key, kind, reason(message)) == ("a", "error", "DUPLICATE_REQUEST")
        gate.set()
        [(key, kind, message)] = await events(call, 1)
        assert (key, kind) == ("a", "tensors_ready")
        await call.write(start("a", request(png(2))))
        assert [kind for _, kind, _ in await events(call, 2)] == ["tokens_ready", "tensors_ready"]


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (pb.PreprocessStreamRequest(start=request(png())), "request_id"),
        (pb.PreprocessStreamRequest(request_id="x"), "action"),
        (start("x", pb.PreprocessRequest()), "prompt"),
        (start("x", request(png()), timeout=-1), "timeout"),
    ],
)
async def test_a_malformed_message_is_answered_and_the_stream_goes_on(message, path):
    async with running() as (_, client), raw_stream(client) as call:
        await call.write(message)
        [(key, kind, answer)] = await events(call, 1)
        error = error_from_status(answer.error)
        assert (key, kind, error.reason, error.field_path) == (
            message.request_id,
            "error",
            "INVALID_MESSAGE",
            path,
        )
        await call.write(start("next", request(png())))
        assert [k for _, k, _ in await events(call, 2)] == ["tokens_ready", "tensors_ready"]


@pytest.mark.parametrize("data", [b"\x0a\xff", b"\x0a\x01x\x12" + b"\xff" * 600_000])
async def test_bytes_that_are_no_message_are_answered_and_the_stream_goes_on(data):
    async with running() as (_, client), grpc.aio.insecure_channel(client.address) as channel:
        call = channel.stream_stream(
            "/patchloom.v1.PreprocessService/PreprocessStream",
            response_deserializer=pb.PreprocessStreamResponse.FromString,
        )()
        await call.write(data)
        [(key, kind, answer)] = await events(call, 1)
        assert (key, kind, reason(answer)) == ("", "error", "INVALID_MESSAGE")
        await call.write(start("next", request(png())).SerializeToString())
        assert [k for _, k, _ in await events(call, 2)] == ["tokens_ready", "tensors_ready"]
        call.cancel()


async def test_a_cancelled_request_ends_with_cancelled_and_its_work_stops(monkeypatch):
    async with (
        running() as (server, client),
        raw_stream(client) as call,
        blocked_pixels(server, monkeypatch) as gate,
    ):
        await call.write(start("a", request(png(1))))
        await call.write(start("b", request(png(2))))
        await events(call, 2)
        await call.write(cancel("a"))
        await call.write(cancel("a"))
        [(key, kind, message)] = await events(call, 1)
        assert (key, kind, message.error.code) == ("a", "error", code_pb2.CANCELLED)
        await call.write(cancel("never"))
        gate.set()
        assert [(k, e) for k, e, _ in await events(call, 1)] == [("b", "tensors_ready")]


async def test_a_request_has_its_own_time(monkeypatch):
    async with (
        running() as (server, client),
        client.stream(retry=Retry(1)) as stream,
        blocked_pixels(server, monkeypatch) as gate,
    ):
        late = await stream.start(request(png(1)), timeout=0.3)
        patient = await stream.start(request(png(2)))
        with pytest.raises(DeadlineExceeded):
            await late.response()
        assert not patient.done
        gate.set()
        await patient.response()


async def test_cancelling_in_the_client_is_told_to_the_server(monkeypatch):
    async with running() as (server, client), client.stream() as stream, blocked_pixels(server, monkeypatch):
        call = await stream.start(request(png(1)))
        await call.tokens()
        call.cancel()
        with pytest.raises(Cancelled):
            await call.response()
        async with asyncio.timeout(5):
            while not server.metrics.value(
                "patchloom_requests_total", method="PreprocessStream", code="CANCELLED"
            ):
                await asyncio.sleep(0.02)


async def test_too_many_in_flight_are_refused_with_a_time_and_the_client_waits_it_out(monkeypatch):
    async with running(stream_requests=2) as (server, client):
        async with client.stream(retry=Retry(1)) as stream, blocked_pixels(server, monkeypatch) as gate:
            calls = [await stream.start(request(png(seed))) for seed in range(3)]
            with pytest.raises(QueueFull) as caught:
                await calls[2].response()
            assert caught.value.retry_after is not None
            gate.set()
            await asyncio.gather(*(call.response() for call in calls[:2]))
        async with client.stream(retry=Retry(20)) as stream:
            await asyncio.gather(*(stream.preprocess(request(png(seed))) for seed in range(12)))


async def test_a_client_that_stops_reading_is_bounded_and_then_left():
    settings = {"stream_bytes": 4 << 20, "chunk_bytes": 1 << 18, "stream_stall": 1.0}
    async with running(**settings) as (server, client):
        channel = grpc.aio.insecure_channel(client.address, options=[("grpc.http2.lookahead_bytes", 1 << 16)])
        call = rpc.PreprocessServiceStub(channel).PreprocessStream()
        for index in range(32):  # 32 times 2.4 MB
            await call.write(start(str(index), request(png(index, 448, 448))))
        running_at_once = 0
        async with asyncio.timeout(20):
            while not server.preprocessor._active:
                await asyncio.sleep(0.01)
            while server.preprocessor._active:
                running_at_once = max(running_at_once, server.preprocessor.buffers._idle_bytes)
                await asyncio.sleep(0.05)
        done = server.metrics.value("patchloom_requests_total", method="PreprocessStream", code="OK")
        assert done < 32
        assert running_at_once <= 8 << 20
        async with AsyncClient(client.address) as other:
            await other.preprocess(request(png(1)))
        call.cancel()
        await channel.close()


async def test_a_draining_server_answers_what_is_in_flight_and_ends_the_stream(monkeypatch):
    async with (
        running() as (server, client),
        raw_stream(client) as call,
        blocked_pixels(server, monkeypatch) as gate,
    ):
        await call.write(start("a", request(png(1))))
        await events(call, 1)
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0.05)
        await call.write(start("b", request(png(2))))
        [(key, kind, message)] = await events(call, 1)
        assert (key, kind, reason(message)) == ("b", "error", "DRAINING")
        gate.set()
        assert [(k, e) for k, e, _ in await events(call, 1)] == [("a", "tensors_ready")]
        assert await call.read() is grpc.aio.EOF
        await stopping


@asynccontextmanager
async def breakable(address):
    """A TCP proxy to the address and a function that breaks every connection through it."""
    host, _, port = address.rpartition(":")
    open_now = []

    async def forward(reader, writer):
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connect(reader, writer):
        other_reader, other_writer = await asyncio.open_connection(host, int(port))
        open_now.extend((writer, other_writer))
        await asyncio.gather(forward(reader, other_writer), forward(other_reader, writer))

    def break_all():
        for writer in open_now:
            writer.transport.abort()
        open_now.clear()

    proxy = await asyncio.start_server(connect, "127.0.0.1", 0)
    yield f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}", break_all
    break_all()
    proxy.close()


async def test_a_broken_connection_is_opened_again_and_every_request_answered(monkeypatch):
    async with (
        running() as (server, client),
        breakable(client.address) as (address, break_all),
        AsyncClient(address) as through,
        through.stream() as stream,
        blocked_pixels(server, monkeypatch) as gate,
    ):
        calls = [await stream.start(request(png(seed))) for seed in range(8)]
        await asyncio.gather(*(call.tokens() for call in calls))
        break_all()
        gate.set()
        for call in calls:
            assert (await call.response()).tensors["pixel_values"].shape == (24, 1176)
            assert call.tries == 1


async def test_a_server_that_stays_away_fails_every_request_in_flight():
    async with AsyncClient("127.0.0.1:1") as client, client.stream(retry=Retry(2, first=0.01)) as stream:
        calls = [await stream.start(request(png())) for _ in range(2)]
        for call in calls:
            with pytest.raises(Unavailable):
                await call.response()


async def test_a_stream_without_work_ends_when_the_client_is_done():
    async with running() as (_, client), raw_stream(client) as call:
        await call.write(start("a", request(png(1))))
        await call.done_writing()
        assert [kind for _, kind, _ in await events(call, 2)] == ["tokens_ready", "tensors_ready"]
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


async def test_a_stream_that_is_dropped_leaves_no_work_and_no_lease(monkeypatch):
    async with running() as (server, client):
        async with raw_stream(client) as call, blocked_pixels(server, monkeypatch):
            await call.write(start("a", request(png(1), options=SHARED)))
            await events(call, 1)
            call.cancel()
            async with asyncio.timeout(5):
                while server.preprocessor._active:
                    await asyncio.sleep(0.02)
        assert server.transports.gauges()["patchloom_leases"] == 0


def counted(server, method):
    return server.metrics.value("patchloom_requests_total", method=method, code="OK")


async def test_answers_of_many_or_unknown_bytes_come_in_chunks_and_small_ones_in_one_message():
    async with running(chunk_bytes=10_000) as (server, client):
        large = await client.preprocess(request(png(1, 448, 448)))
        assert counted(server, "PreprocessStream") == 1
        assert large.message.tensors["pixel_values"].chunked == 1024 * 1176 * 4
        one = await client.preprocess(request(png(1)))
        text = await client.preprocess(request())
        assert counted(server, "Preprocess") == 2
        assert one.tensors["pixel_values"].shape == (24, 1176)
        assert dict(text.tensors) == {}
        known = request()
        known.conversation.messages[0].content.add().image.source.content_key = large.items[0].content_key
        again = await client.preprocess(known)
        assert counted(server, "PreprocessStream") == 2
        np.testing.assert_array_equal(
            again.tensors["pixel_values"].array, large.tensors["pixel_values"].array
        )
        message = await client._unary["Preprocess"](request(png(1, 448, 448)).SerializeToString())
        assert message.tensors["pixel_values"].inline == large.tensors["pixel_values"].array.tobytes()


async def test_errors_are_the_same_in_chunks_and_in_one_message():
    broken = request(png(1, 448, 448)[:-1000])
    async with running() as (server, client):
        with pytest.raises(InvalidImage) as chunked:
            await client.preprocess(broken)
        broken.output.transport = pb.TRANSPORT_SHARED_MEMORY
        with pytest.raises(InvalidImage) as whole:
            await client.preprocess(broken)
        assert (str(chunked.value), chunked.value.field_path) == (str(whole.value), whole.value.field_path)
        failed = server.metrics.value(
            "patchloom_requests_total", method="PreprocessStream", code="INVALID_ARGUMENT"
        )
        assert failed == 1


async def test_a_large_request_to_no_server_or_beyond_its_time_fails_as_any_other(monkeypatch):
    large = request(png(1, 448, 448))
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(Unavailable):
            await client.preprocess(large)
    async with running() as (server, client), blocked_pixels(server, monkeypatch):
        with pytest.raises(DeadlineExceeded):
            await client.preprocess(large, timeout=0.2)
        task = asyncio.create_task(client.preprocess(large))
        await asyncio.sleep(0.2)
        task.cancel()
        async with asyncio.timeout(5):
            while server.preprocessor._active or server._servicer._unsent._free != 512 << 20:
                await asyncio.sleep(0.02)


async def test_a_full_server_is_asked_again_where_the_client_was_told_to(monkeypatch):
    async with running(queue_length=1) as (server, client):
        async with blocked_pixels(server, monkeypatch) as gate:
            first = asyncio.create_task(client.preprocess(request(png(1, 448, 448))))
            await asyncio.sleep(0.2)
            with pytest.raises(QueueFull) as caught:
                await client.preprocess(request(png(2, 448, 448)))
            assert caught.value.retry_after > 0
            gate.set()
            await first
        async with AsyncClient(client.address, retry=Retry(20)) as patient:
            answers = await asyncio.gather(
                *(patient.preprocess(request(png(seed, 448, 448))) for seed in range(3))
            )
            assert [a.tensors["pixel_values"].shape for a in answers] == [(1024, 1176)] * 3


@pytest.mark.parametrize("settings", [{}, {"shm_bytes": 4096}])
async def test_unsent_answers_of_all_streams_are_bounded_together(monkeypatch, settings):
    """Also those that fell back from shared memory: room is waited for one after the other."""
    async with running(max_unsent_bytes=5 << 20, chunk_bytes=1 << 20, **settings) as (server, client):
        budget, least = server._servicer._unsent, []
        give = budget.give
        monkeypatch.setattr(budget, "give", lambda size: (least.append(budget._free), give(size)))
        options = SHARED if settings else None
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(client.stream()) for _ in range(6)]
            answers = await asyncio.gather(
                *(s.preprocess(request(png(i, 448, 448), options=options)) for i, s in enumerate(streams))
            )
        assert all(a.message.tensors["pixel_values"].chunked == 1024 * 1176 * 4 for a in answers)
        assert min(least) == (5 << 20) - 1024 * 1176 * 4
        assert budget._free == 5 << 20


async def test_a_round_of_the_event_loop_copies_one_large_message_of_all_streams():
    """gRPC copies a message where its write begins; thirty in one round would hold up everything else."""
    rounds, now = [], 0

    async def write(message):
        if len(message) > 1 << 16:
            rounds.append(now)
        await asyncio.sleep(0.001)

    async with running(chunk_bytes=1 << 20) as (server, _):
        tools = server._servicer._stream_tools
        streams = [Stream(tools, None, write, None) for _ in range(8)]

        async def requests(seed):
            yield start("x", request(png(seed, 448, 448))).SerializeToString()

        async def count():
            nonlocal now
            while True:
                now += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        await asyncio.gather(*(stream.run(requests(seed)) for seed, stream in enumerate(streams)))
        counting.cancel()
    assert len(rounds) == 8 * 5
    assert len(set(rounds)) == len(rounds)


async def test_an_id_that_every_message_would_repeat_at_length_is_refused():
    async with running() as (_, client), raw_stream(client) as call:
        await call.write(start("i" * 257, request(png())))
        ((key, kind, message),) = await events(call, 1)
        assert (len(key), kind) == (257, "error")
        assert error_from_status(message.error).field_path == "request_id"
        await call.write(start("i" * 256, request(png())))
        assert [kind for _, kind, _ in await events(call, 2)] == ["tokens_ready", "tensors_ready"]


async def test_a_request_that_the_server_would_not_take_leaves_the_others():
    async with running(max_message_bytes=1 << 20) as (_, client), client.stream(retry=Retry(1)) as stream:
        big = request(png(1, 800, 800))
        assert big.ByteSize() > 1 << 20
        calls = [await stream.start(own) for own in (request(png(2)), big, request(png(3)), big)]
        answers = await asyncio.gather(*(call.response() for call in calls), return_exceptions=True)
        assert [type(answer) for answer in answers[1::2]] == [MessageTooLarge] * 2
        assert [answer.tensors["pixel_values"].shape for answer in answers[::2]] == [(24, 1176)] * 2


async def test_an_answer_that_grpc_would_not_send_fails_its_own_request():
    async with running(max_message_bytes=300_000) as (_, client), client.stream() as stream:
        shown = request(*[png(seed, 112, 112) for seed in range(5)], options={"show_messages": True})
        shown.conversation.messages[0].content[0].text.text = "1" * 60_000  # as many tokens
        assert 240_000 < shown.ByteSize() < 299_000
        calls = [await stream.start(own) for own in (request(png(2)), shown, request(png(3)))]
        answers = await asyncio.gather(*(call.response() for call in calls), return_exceptions=True)
        assert isinstance(answers[1], MessageTooLarge)
        assert [answer.tensors["pixel_values"].shape for answer in answers[::2]] == [(24, 1176)] * 2
        with pytest.raises(MessageTooLarge, match="at most 300000"):
            await client.preprocess(shown)


async def test_chunks_fit_the_limit_of_a_message_whatever_their_size():
    async with running(max_message_bytes=400_000) as (_, client):  # and the default of 1 MiB a chunk
        for most in (1 << 30, 200_000):  # of the client, whose limit holds for a chunk and what is around it
            async with AsyncClient(client.address, max_message_bytes=most) as own, own.stream() as stream:
                response = await stream.preprocess(request(png(None, 448, 448)))
                assert response.tensors["pixel_values"].array.nbytes > 4_000_000
