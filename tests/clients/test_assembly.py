import numpy as np
import pytest
from google.protobuf.message import DecodeError
from patchloom_client.assembly import Assembly, Chunk, read_event, start_message
from patchloom_proto import preprocess_pb2 as pb


def chunk(**fields):
    return pb.PreprocessStreamResponse(request_id="a request", chunk=pb.TensorChunk(**fields))


@pytest.mark.parametrize("size", [0, 1, 127, 128, 300, 20_000])
@pytest.mark.parametrize("offset", [0, 1, 127, 128, 1 << 40, (1 << 64) - 1])
def test_a_chunk_is_read_as_protobuf_reads_it(size, offset):
    message = chunk(tensor="pixel_values", offset=offset, data=bytes(range(256)) * (size // 256 + 1))
    read = read_event(message.SerializeToString())
    assert isinstance(read, Chunk)
    assert (read.request_id, read.tensor, read.offset) == ("a request", "pixel_values", offset)
    assert read.data == message.chunk.data


def test_a_chunk_of_nothing_is_read():
    assert read_event(chunk().SerializeToString()) == Chunk("a request", "", 0, memoryview(b""))


@pytest.mark.parametrize(
    "message",
    [
        pb.PreprocessStreamResponse(request_id="x", tokens_ready=pb.PreprocessResponse(token_ids=[1, 2])),
        pb.PreprocessStreamResponse(request_id="x", tensors_ready=pb.PreprocessResponse(model="m")),
        pb.PreprocessStreamResponse(request_id="x"),
        pb.PreprocessStreamResponse(),
    ],
)
def test_other_messages_are_protobuf_s(message):
    assert read_event(message.SerializeToString()) == message


def test_a_message_that_is_cut_off_is_refused_wherever_it_is():
    message = chunk(tensor="t", offset=300, data=b"12345")
    whole = message.SerializeToString()
    for length in range(1, len(whole)):
        if length == len(message.request_id) + 2:  # ends between two fields
            assert read_event(whole[:length]) == pb.PreprocessStreamResponse(request_id=message.request_id)
            continue
        with pytest.raises(DecodeError):
            read_event(whole[:length])
    with pytest.raises(DecodeError):
        read_event(whole + b"\x0b")  # a group


def test_fields_of_a_newer_server_are_passed_over():
    whole = chunk(tensor="t", offset=300, data=b"12345").SerializeToString()
    for unknown in (b"\xf8\x01\x05", b"\xf9\x0112345678", b"\xfa\x01\x02ab", b"\xfd\x011234"):
        assert read_event(whole + unknown) == read_event(unknown + whole) == read_event(whole)


def test_an_assembly_is_complete_with_its_last_byte_in_any_order():
    assembly = Assembly()
    response = pb.PreprocessResponse()
    response.tensors["a"].chunked = 10
    response.tensors["b"].inline = b"abc"
    assert not assembly.complete
    assembly.announce(response)
    for offset in (6, 0, 3):
        assert not assembly.complete
        data = bytes(range(offset, min(offset + 3, 10))) if offset < 6 else bytes(range(6, 10))
        assembly.add(Chunk("1", "a", offset, memoryview(data)))
    assert assembly.complete
    np.testing.assert_array_equal(assembly.content["a"], np.arange(10))


@pytest.mark.parametrize("size", [0, 5, 127, 128, 70_000])
def test_the_message_that_starts_a_request_is_protobuf_s(size):
    request = pb.PreprocessRequest(model="m" * size)
    message = pb.PreprocessStreamRequest.FromString(start_message(request.SerializeToString()))
    assert message.start == request
    assert message.request_id
    assert message.WhichOneof("action") == "start"
