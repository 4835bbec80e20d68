"""Servers that answer what they must not: the client says so, at once and in its own errors."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from patchloom_client import errors
from patchloom_client.client import AsyncClient, Client
from patchloom_client.retry import ONCE
from patchloom_proto import preprocess_pb2 as pb

pytestmark = pytest.mark.timeout(60)


def announcement(**fields):
    response = pb.PreprocessResponse(model="m", token_ids=[1])
    response.tensors["t"].dtype = pb.DTYPE_UINT8
    response.tensors["t"].shape.append(4)
    for name, value in fields.items():
        setattr(response.tensors["t"], name, value)
    return response


def event(**fields):
    return pb.PreprocessStreamResponse(request_id="1", **fields).SerializeToString()


def chunk(**fields):
    return event(chunk=pb.TensorChunk(**fields))


READY = event(tensors_ready=announcement(chunked=4))

BROKEN = {
    "chunk before its announcement": [chunk(tensor="t", data=b"1234")],
    "chunk of no tensor": [READY, chunk(tensor="x", data=b"1234")],
    "chunk behind the end": [READY, chunk(tensor="t", offset=1 << 62, data=b"1234")],
    "chunk too long": [READY, chunk(tensor="t", data=b"12345")],
    "chunk that overlaps": [READY, chunk(tensor="t", data=b"123"), chunk(tensor="t", offset=1, data=b"3")],
    "second announcement": [READY, READY],
    "memory that nobody has": [event(tensors_ready=announcement(chunked=(1 << 64) - 1))],
    "size of another shape": [event(tensors_ready=announcement(chunked=3)), chunk(tensor="t", data=b"123")],
    "inline of another shape": [event(tensors_ready=announcement(inline=b"12345"))],
    "type that is not known": [event(tensors_ready=announcement(inline=b"1234", dtype=77))],
    "no message": [b"\xff\xff\xff"],
    "a chunk of another wire type": [b"\x0a\x011\x20\x05"],
    "a tensor of another wire type": [b"\x0a\x011\x22\x02\x08\x05"],
    "an offset of another wire type": [b"\x0a\x011\x22\x03\x12\x01\x31"],
    "data of another wire type": [b"\x0a\x011\x22\x02\x18\x05"],
    "a name that is no text": [b"\x0a\x011\x22\x03\x0a\x01\xff"],
}
UNFINISHED = {"nothing": [], "less than announced": [READY, chunk(tensor="t", data=b"12")]}


@asynccontextmanager
async def server_of(messages, then_wait=False):
    """A server that answers every stream with the messages, and leaves it open or ends it."""

    async def answer(_requests, _context):
        for message in messages:
            yield message
        if then_wait:
            await asyncio.Event().wait()

    async def answer_once(_request, _context):
        return messages[0]

    methods = {
        "PreprocessStream": grpc.stream_stream_rpc_method_handler(answer),
        "CountTokens": grpc.unary_unary_rpc_method_handler(answer_once),
    }
    handler = grpc.method_handlers_generic_handler("patchloom.v1.PreprocessService", methods)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@asynccontextmanager
async def stream_to(messages):
    """A client's stream to such a server, which leaves it open."""
    async with (
        server_of(messages, then_wait=True) as address,
        AsyncClient(address) as client,
        client.stream(retry=ONCE) as stream,
    ):
        yield stream


def request():
    """One that is answered in chunks."""
    message = pb.PreprocessRequest()
    message.conversation.messages.add().content.add().image.source.url = "https://example.com/a.png"
    return message


@pytest.mark.parametrize("name", BROKEN)
async def test_an_answer_that_is_none_is_the_servers_fault(name):
    async with server_of(BROKEN[name], then_wait=True) as address, AsyncClient(address) as client:
        with pytest.raises(errors.Internal):
            await client.preprocess(request(), timeout=20)


@pytest.mark.parametrize("name", BROKEN)
async def test_an_answer_that_is_none_ends_the_calls_of_a_stream(name):
    async with stream_to(BROKEN[name]) as stream:
        with pytest.raises(errors.Internal):
            await stream.preprocess(request(), timeout=20)


async def test_an_answer_in_one_message_that_is_none_is_the_servers_fault():
    async with server_of([b"\xff\xff\xff"]) as address, AsyncClient(address) as client:
        with pytest.raises(errors.Internal):
            await client.count_tokens(request())


@pytest.mark.parametrize("name", UNFINISHED)
async def test_a_stream_that_ends_too_early_is_a_server_that_went_away(name):
    async with server_of(UNFINISHED[name]) as address, AsyncClient(address) as client:
        with pytest.raises(errors.Unavailable):
            await client.preprocess(request())
        async with client.stream(retry=ONCE) as stream:
            with pytest.raises(errors.Unavailable):
                await stream.preprocess(request())


async def test_one_broken_answer_leaves_the_other_calls_of_a_stream():
    whole = pb.PreprocessStreamResponse(request_id="2", tensors_ready=announcement(inline=b"1234"))
    messages = [chunk(tensor="x", data=b"1"), whole.SerializeToString()]
    async with stream_to(messages) as stream:
        first, second = [await stream.start(request()) for _ in range(2)]
        with pytest.raises(errors.Internal):
            await first.response()
        assert bytes((await second.response()).tensors["t"].array) == b"1234"


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan")])
async def test_a_timeout_in_which_nothing_can_end_is_refused(timeout):
    async with server_of([]) as address, AsyncClient(address) as client, client.stream() as stream:
        for call in (client.preprocess, client.count_tokens, stream.preprocess):
            with pytest.raises(errors.InvalidMessage) as caught:
                await call(request(), timeout=timeout)
            assert caught.value.field_path == "timeout"


async def test_a_deadline_says_how_long_it_was():
    async with server_of([], then_wait=True) as address, AsyncClient(address) as client:
        with pytest.raises(errors.DeadlineExceeded, match=r"within 0\.2 s"):
            await client.preprocess(request(), timeout=0.2)


def test_a_body_that_was_not_read_by_a_protocol_is_named():
    with Client("127.0.0.1:1") as client, pytest.raises(TypeError, match=r"patchloom_client\.protocols"):
        client.preprocess({"messages": []})
