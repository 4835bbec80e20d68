"""Messages of a stream, serialized: a tensor's bytes are copied once on their way into one."""

from collections.abc import Iterator

import numpy as np
from google.rpc import status_pb2
from patchloom_proto import preprocess_pb2 as pb

from patchloom_service.result import Tensor
from patchloom_service.wire.fields import length_delimited

_NUMBERS = {name: f.number for name, f in pb.PreprocessStreamResponse.DESCRIPTOR.fields_by_name.items()}
_DATA = pb.TensorChunk.DESCRIPTOR.fields_by_name["data"].number


def failed(request_id: str, status: status_pb2.Status) -> bytes:
    """The error of a request."""
    return pb.PreprocessStreamResponse(request_id=request_id, error=status).SerializeToString()


def tokens_ready(request_id: str, response: bytes) -> bytes:
    """A serialized response without tensors."""
    return _event(request_id, "tokens_ready", response)


def tensors_ready(request_id: str, response: bytes) -> bytes:
    """A serialized response, whole but for the content of chunked tensors."""
    return _event(request_id, "tensors_ready", response)


def chunks(request_id: str, name: str, tensor: Tensor, size: int) -> Iterator[bytes]:
    """The content of a tensor in pieces of at most `size` bytes, each made when it is asked for."""
    content = np.ascontiguousarray(tensor.array).reshape(-1).view(np.uint8).data
    for start in range(0, len(content), size):
        piece = content[start : start + size]
        head = pb.TensorChunk(tensor=name, offset=start).SerializeToString()
        head += length_delimited(_DATA, len(piece))
        yield _event(request_id, "chunk", head, piece)


def _event(request_id: str, kind: str, *parts: bytes | memoryview) -> bytes:
    key = request_id.encode()
    size = sum(len(part) for part in parts)
    head = length_delimited(_NUMBERS["request_id"], len(key)) + key + length_delimited(_NUMBERS[kind], size)
    return b"".join((head, *parts))
