"""A response as values: ids, items, and tensors as numpy views without a copy."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from patchloom_proto import preprocess_pb2 as pb

if TYPE_CHECKING:
    import torch

_NUMPY = {
    pb.DTYPE_FLOAT32: ("float32", np.dtype("<f4")),
    pb.DTYPE_BFLOAT16: ("bfloat16", np.dtype("<u2")),
    pb.DTYPE_FLOAT16: ("float16", np.dtype("<f2")),
    pb.DTYPE_UINT8: ("uint8", np.dtype("u1")),
    pb.DTYPE_INT64: ("int64", np.dtype("<i8")),
    pb.DTYPE_INT32: ("int32", np.dtype("<i4")),
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
    """A tensor of a response. `array` is a read-only view, C order; bfloat16 is held as its uint16 bits."""

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

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            tensor = torch.from_numpy(self.array)
        return tensor.view(torch.bfloat16) if self.dtype == "bfloat16" else tensor


@dataclass(frozen=True, slots=True)
class Response:
    """An answer of the service. `message` is the protobuf message, `tensors` the views of its payloads.

    A context manager: leaving it ends what the views refer to.
    """

    message: pb.PreprocessResponse
    tensors: Mapping[str, Tensor]

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

    def __enter__(self) -> "Response":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def __iter__(self) -> Iterator[pb.MediaItem]:
        return iter(self.items)


def read_response(message: pb.PreprocessResponse) -> Response:
    """The response of a message whose tensors are inline."""
    tensors = {name: _inline(name, data) for name, data in sorted(message.tensors.items())}
    return Response(message, tensors)


def _inline(name: str, data: pb.TensorData) -> Tensor:
    dtype, kind = _NUMPY[data.dtype]
    array = np.frombuffer(data.inline, kind).reshape(tuple(data.shape))
    return Tensor(name, dtype, array, _expansion(data))


def _expansion(data: pb.TensorData) -> Expansion | None:
    if not data.HasField("expansion"):
        return None
    e = data.expansion
    return Expansion(
        _NUMPY[e.dtype][0], tuple(e.shape), e.columns, (e.patch_height, e.patch_width), e.merge, e.temporal
    )
