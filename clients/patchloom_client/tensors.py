"""A response as values: ids, items, and tensors as numpy views without a copy."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from operator import itemgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.cuda import CudaMemory, map_cuda
from patchloom_client.errors import Internal
from patchloom_client.shm import map_segment

if TYPE_CHECKING:
    import torch

_NUMPY: dict[int, tuple[str, np.dtype[Any]]] = {
    pb.DTYPE_FLOAT32: ("float32", np.dtype("<f4")),
    pb.DTYPE_BFLOAT16: ("bfloat16", np.dtype("<u2")),
    pb.DTYPE_FLOAT16: ("float16", np.dtype("<f2")),
    pb.DTYPE_UINT8: ("uint8", np.dtype("u1")),
    pb.DTYPE_INT64: ("int64", np.dtype("<i8")),
    pb.DTYPE_INT32: ("int32", np.dtype("<i4")),
    pb.DTYPE_BOOL: ("bool", np.dtype("?")),
}


@dataclass(frozen=True, slots=True)
class Expansion:
    """What a uint8 tensor expands to; `patchloom_client.expand` does it."""

    dtype: str
    shape: tuple[int, ...]
    columns: str
    patch: tuple[int, int]
    merge: int
    temporal: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a response. `array` is a read-only view, C order; bfloat16 is held as its uint16 bits.

    A tensor in CUDA memory has a `CudaMemory` for an array, which `torch` takes as it is.
    """

    name: str
    dtype: str
    array: npt.NDArray[Any]
    expansion: Expansion | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self.array.shape

    def torch(self) -> "torch.Tensor":
        """The same memory as a torch tensor; it must not be written to."""
        import warnings

        import torch

        if isinstance(self.array, CudaMemory):
            shared = torch.as_tensor(self.array, device="cuda")
            return shared.view(torch.bfloat16) if self.dtype == "bfloat16" else shared
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            tensor = torch.from_numpy(self.array)
        return tensor.view(torch.bfloat16) if self.dtype == "bfloat16" else tensor


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank takes of a response under vision data parallelism.

    `tensors` has, under each name, one view per item of the share, in the order of `items`.
    """

    rank: int
    items: tuple[pb.MediaItem, ...]
    tensors: Mapping[str, tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Response:
    """An answer of the service. `message` is the protobuf message, `tensors` the views of its payloads.

    A context manager: leaving it, or `close`, empties `tensors` and gives leased memory back. Views that
    were taken out of it stay readable and unchanged for as long as they live.
    """

    message: pb.PreprocessResponse
    tensors: dict[str, Tensor]
    _give_back: list[Callable[[], object]] = field(default_factory=list, repr=False)

    @property
    def token_ids(self) -> list[int]:
        """The prompt."""
        return list(self.message.token_ids)

    @property
    def items(self) -> tuple[pb.MediaItem, ...]:
        """The media items in prompt order."""
        return tuple(self.message.items)

    @property
    def token_types(self) -> npt.NDArray[np.uint8] | None:
        """One value per token, None where the family has none."""
        if not self.message.HasField("token_types"):
            return None
        return np.frombuffer(self.message.token_types.values, np.uint8)

    @property
    def lease(self) -> pb.Lease | None:
        """The lease of the memory that tensors are in, None where all are in the message."""
        return lease_of(self.message)

    def item_tensors(self, index: int) -> dict[str, Tensor]:
        """Views of an item's parts of the tensors; empty where its pixels were not sent.

        Internal where the response is closed, or the server named a part that no tensor has.
        """
        parts = self.message.items[index].slices
        return {part.tensor: _part(self.tensors.get(part.tensor), part) for part in parts}

    def shard(self, rank: int) -> Share:
        """The share of a rank; ValueError where the request asked for no plan or for fewer ranks."""
        if not 0 <= rank < len(self.message.shards):
            raise ValueError(f"no shard {rank}; the request asked for {len(self.message.shards)}")
        indices = tuple(self.message.shards[rank].items)
        if any(index >= len(self.message.items) for index in indices):
            raise Internal("the server's plan of shards names an item that is not there")
        parts = [self.item_tensors(index) for index in indices]
        names = dict.fromkeys(name for part in parts for name in part)
        tensors = {name: tuple(part[name] for part in parts if name in part) for name in names}
        return Share(rank, tuple(self.message.items[index] for index in indices), tensors)

    def close(self) -> None:
        """Lets go of the tensors and gives leased memory back; a second call does nothing."""
        self.tensors.clear()
        for give_back in self._give_back:
            give_back()

    def __enter__(self) -> "Response":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[pb.MediaItem]:
        return iter(self.items)


def read_response(
    message: pb.PreprocessResponse,
    *,
    chunks: Mapping[str, npt.NDArray[np.uint8]] | None = None,
    release: Callable[[pb.Lease], None] | None = None,
) -> Response:
    """The response of a message; tensors in shared memory are mapped read-only, none is copied.

    With `release` the response owns its lease: closing or losing it calls `release`, once. Without, it is
    a reader's view, for a rank that was handed the message. `chunks` holds the content of chunked tensors.
    Raises StaleHandle where the memory is gone, FailedPrecondition where it is another host's, Internal where
    a tensor is not what the message says.
    """
    named = sorted(message.tensors.items(), key=itemgetter(0))
    lease = _lease([data for _, data in named])
    segments: dict[str, Any] = {}
    try:
        tensors = {name: _checked(name, data, segments, chunks or {}) for name, data in named}
    except BaseException:
        if lease is not None and release is not None:
            release(lease)
        raise
    response = Response(message, tensors)
    if lease is not None and release is not None:
        finalizer = weakref.finalize(response, release, lease)
        finalizer.atexit = False
        response._give_back.append(finalizer)
    return response


def lease_of(message: pb.PreprocessResponse) -> pb.Lease | None:
    """The lease that the handles of a response name."""
    return _lease(message.tensors.values())


def _lease(tensors: Iterable[pb.TensorData]) -> pb.Lease | None:
    for data in tensors:
        if data.WhichOneof("payload") == "handle":
            handle = data.handle
            return pb.Lease(
                server_instance=handle.server_instance,
                lease_id=handle.lease_id,
                generation=handle.generation,
            )
    return None


def _checked(
    name: str, data: pb.TensorData, segments: dict[str, Any], chunks: Mapping[str, npt.NDArray[np.uint8]]
) -> Tensor:
    try:
        return _tensor(name, data, segments, chunks)
    except (KeyError, OverflowError, ValueError) as error:
        raise Internal(f"the server's tensor {name!r} has another size or type than it says") from error


def _tensor(
    name: str,
    data: pb.TensorData,
    segments: dict[str, Any],
    chunks: Mapping[str, npt.NDArray[np.uint8]],
) -> Tensor:
    dtype, kind = _NUMPY[data.dtype]
    shape: tuple[int, ...] = tuple(data.shape)
    payload = data.WhichOneof("payload")
    if payload == "handle" and data.handle.HasField("cuda_ipc"):
        device: Any = map_cuda(data.handle, kind, shape)
        return Tensor(name, dtype, device, _expansion(data))
    content: Any = data.inline
    offset, size = 0, len(data.inline)
    if payload == "handle":
        content, offset, size = _segment(data.handle, segments), data.handle.offset, data.handle.size
    elif payload == "chunked":
        content = chunks[name]
        size = len(content)
    count = prod(shape)
    if size != count * kind.itemsize:
        raise ValueError(f"{size} bytes for the shape {shape}")
    array: npt.NDArray[Any] = np.frombuffer(content, kind, count, offset) if count else np.empty(0, kind)
    array.setflags(write=False)
    return Tensor(name, dtype, array.reshape(shape), _expansion(data))


def _segment(handle: pb.TensorHandle, segments: dict[str, Any]) -> Any:
    """The segment of a handle, mapped once per response."""
    name = handle.shared_memory.name
    if name not in segments:
        segments[name] = map_segment(handle)
    return segments[name]


def _part(tensor: Tensor | None, part: pb.TensorSlice) -> Tensor:
    if tensor is None:
        raise Internal(f"the response has no tensor {part.tensor!r}, or is closed")
    if part.axis >= len(tensor.shape) or part.start + part.count > tensor.shape[part.axis]:
        raise Internal(f"the tensor {part.tensor!r} does not have the part that the server names")
    index = (slice(None),) * part.axis + (slice(part.start, part.start + part.count),)
    expansion = tensor.expansion
    if expansion is not None:
        shape = (*expansion.shape[: part.axis], part.count, *expansion.shape[part.axis + 1 :])
        expansion = replace(expansion, shape=shape)
    return Tensor(tensor.name, tensor.dtype, tensor.array[index], expansion)


def _expansion(data: pb.TensorData) -> Expansion | None:
    if not data.HasField("expansion"):
        return None
    e = data.expansion
    return Expansion(
        _NUMPY[e.dtype][0], tuple(e.shape), e.columns, (e.patch_height, e.patch_width), e.merge, e.temporal
    )
