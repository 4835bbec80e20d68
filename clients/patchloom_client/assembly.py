"""Answers in several messages: a response that announces tensors, and chunks of their content."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.errors import Internal

Bytes = npt.NDArray[np.uint8]

_EVENT = {name: f.number for name, f in pb.PreprocessStreamResponse.DESCRIPTOR.fields_by_name.items()}
_CHUNK = {name: field.number for name, field in pb.TensorChunk.DESCRIPTOR.fields_by_name.items()}
_START = pb.PreprocessStreamRequest.DESCRIPTOR.fields_by_name["start"].number
_SEEN = 31 << 20  # bytes; glibc learns from blocks below 32 MiB

# wire types, protobuf.dev/programming-guides/encoding; the fixed ones with their bytes
_VARINT, _LENGTH_DELIMITED = 0, 2
_FIXED = {1: 8, 5: 4}


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a tensor; `data` is a view of the message that it came in."""

    request_id: str
    tensor: str
    offset: int
    data: memoryview


Event = pb.PreprocessStreamResponse | Chunk


def read_event(message: bytes) -> Event:
    """A serialized PreprocessStreamResponse; Internal where it is none.

    A chunk is read here: protobuf would copy its content twice.
    """
    try:
        fields = _fields(memoryview(message))
        if _EVENT["chunk"] not in fields:
            return pb.PreprocessStreamResponse.FromString(message)
        return _chunk(fields)
    except (DecodeError, TypeError, UnicodeDecodeError) as error:
        raise Internal("the server sent a message that cannot be read") from error


def _chunk(fields: Mapping[int, Any]) -> Chunk:
    """The chunk of an event's fields; TypeError where one has another type."""
    none = memoryview(b"")
    chunk = _fields(memoryview(fields[_EVENT["chunk"]]))
    return Chunk(
        request_id=str(fields.get(_EVENT["request_id"], none), "utf-8"),
        tensor=str(chunk.get(_CHUNK["tensor"], none), "utf-8"),
        offset=index(chunk.get(_CHUNK["offset"], 0)),
        data=memoryview(chunk.get(_CHUNK["data"], none)),
    )


def start_message(request: bytes) -> bytes:
    """The serialized PreprocessStreamRequest that starts a serialized request, the only one of its stream."""
    head = pb.PreprocessStreamRequest(request_id="1").SerializeToString()
    return b"".join((head, _encoded(_START << 3 | _LENGTH_DELIMITED), _encoded(len(request)), request))


class Assembly:
    """What has come of one answer. Internal where a server sends what cannot be one."""

    def __init__(self) -> None:
        self.announced: pb.PreprocessResponse | None = None
        self.content: Mapping[str, Bytes] = {}
        self._come: dict[str, int] = {}  # bytes, which come in order
        self._missing = 0

    @property
    def complete(self) -> bool:
        """Whether nothing is missing any more."""
        return self.announced is not None and self._missing == 0

    def announce(self, response: pb.PreprocessResponse) -> None:
        """The response; the content of its chunked tensors follows."""
        if self.announced is not None:
            raise Internal("the server answered a request twice")
        sizes = {n: d.chunked for n, d in response.tensors.items() if d.WhichOneof("payload") == "chunked"}
        if sizes:
            _settle_malloc()
        try:
            self.content = {name: np.empty(size, np.uint8) for name, size in sizes.items()}
        except (MemoryError, OverflowError, ValueError) as error:
            raise Internal(f"no memory for tensors of {sum(sizes.values())} bytes") from error
        self.announced = response
        self._come = dict.fromkeys(sizes, 0)
        self._missing = sum(sizes.values())

    def add(self, chunk: Chunk) -> None:
        """The next piece of an announced tensor."""
        size = len(chunk.data)
        end = chunk.offset + size
        if self._come.get(chunk.tensor) != chunk.offset or end > len(self.content[chunk.tensor]):
            raise Internal(f"the server sent bytes {chunk.offset} to {end} of {chunk.tensor!r} out of turn")
        self.content[chunk.tensor][chunk.offset : end] = np.frombuffer(chunk.data, np.uint8)
        self._come[chunk.tensor] = end
        self._missing -= size


@cache
def _settle_malloc() -> None:
    """Lets glibc reuse the memory of a chunk for the next, as it does once it saw a larger block freed.

    Until then it returns each block to the system, and fresh pages cost more than the copy (mallopt(3),
    M_MMAP_THRESHOLD). The block is never touched.
    """
    bytes(_SEEN)


def _fields(message: memoryview) -> dict[int, Any]:
    """The fields of a message by number: integers, and views of what is length-delimited."""
    found: dict[int, Any] = {}
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 in _FIXED:  # in no message of today
            at += _FIXED[key & 7]
            continue
        value, at = _varint(message, at)
        if key & 7 == _LENGTH_DELIMITED:
            start, at = at, at + value
            found[key >> 3] = message[start:at]
        elif key & 7 == _VARINT:
            found[key >> 3] = value
        else:
            raise DecodeError(f"field {key >> 3} has no type that this encoding knows")
    if at > len(message):
        raise DecodeError("the message is cut off")
    return found


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends."""
    value = 0
    for place, byte in enumerate(message[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise DecodeError("the message is cut off")


def _encoded(value: int) -> bytes:
    """A number as a varint."""
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])
