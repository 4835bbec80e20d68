import numpy as np
import pytest
from patchloom_client.assembly import Assembly, Chunk, read_event, start_message
from patchloom_client.errors import Internal
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
        with pytest.raises(Internal):
            read_event(whole[:length])
    with pytest.raises(Internal):
        read_event(whole + b"\x0b")  # a group


def test_fields_of_a_newer_server_are_passed_over():
    whole = chunk(tensor="t", offset=300, data=b"12345").SerializeToString()
    for unknown in (b"\xf8\x01\x05", b"\xf9\x0112345678", b"\xfa\x01\x02ab", b"\xfd\x011234"):
        assert read_event(whole + unknown) == read_event(unknown + whole) == read_event(whole)


def announced():
    assembly = Assembly()
    response = pb.PreprocessResponse()
    response.tensors["a"].chunked = 10
    response.tensors["b"].chunked = 3
    response.tensors["c"].inline = b"abc"
    assembly.announce(response)
    return assembly


def test_an_assembly_is_complete_with_the_last_byte_of_every_tensor():
    assert not Assembly().complete
    assembly = announced()
    for tensor, offset, size in (("a", 0, 3), ("b", 0, 1), ("a", 3, 0), ("a", 3, 7), ("b", 1, 2)):
        assert not assembly.complete
        assembly.add(Chunk("1", tensor, offset, memoryview(bytes(range(offset, offset + size)))))
    assert assembly.complete
    np.testing.assert_array_equal(assembly.content["a"], np.arange(10))
    np.testing.assert_array_equal(assembly.content["b"], np.arange(3))


@pytest.mark.parametrize(
    ("tensor", "offset", "size"),
    [("a", 1, 1), ("a", 0, 11), ("a", 1 << 63, 1), ("x", 0, 1), ("c", 0, 3), ("b", 0, 4)],
)
def test_a_chunk_that_is_out_of_turn_or_of_no_tensor_is_the_servers_fault(tensor, offset, size):
    with pytest.raises(Internal, match="out of turn"):
        announced().add(Chunk("1", tensor, offset, memoryview(bytes(size))))


def test_the_same_chunk_twice_and_a_second_answer_are_the_servers_fault():
    assembly = announced()
    assembly.add(Chunk("1", "a", 0, memoryview(b"1")))
    with pytest.raises(Internal, match="out of turn"):
        assembly.add(Chunk("1", "a", 0, memoryview(b"1")))
    with pytest.raises(Internal, match="twice"):
        assembly.announce(pb.PreprocessResponse())


@pytest.mark.parametrize("size", [1 << 62, (1 << 64) - 1])
def test_a_size_that_no_memory_has_is_the_servers_fault(size):
    response = pb.PreprocessResponse()
    response.tensors["a"].chunked = size
    with pytest.raises(Internal, match=str(size)):
        Assembly().announce(response)


@pytest.mark.parametrize("size", [0, 5, 127, 128, 70_000])
def test_the_message_that_starts_a_request_is_protobuf_s(size):
    request = pb.PreprocessRequest(model="m" * size)
    message = pb.PreprocessStreamRequest.FromString(start_message(request.SerializeToString()))
    assert message.start == request
    assert message.request_id
    assert message.WhichOneof("action") == "start"
