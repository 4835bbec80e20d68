"""Opens CUDA memory that the server leased, through the optional package cuda-bindings; nothing is copied."""

from collections.abc import Callable
from math import prod
from typing import Any, Protocol

import numpy as np
from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.errors import FailedPrecondition, StaleHandle


class CudaMemory:
    """Device memory of another process, open for as long as this or a part of it lives.

    Speaks the CUDA array interface, so that torch.as_tensor and cupy.asarray share the memory. `strides` are
    bytes an axis, None for C order.
    """

    def __init__(
        self,
        address: int,
        kind: "np.dtype[Any]",
        shape: tuple[int, ...],
        keep: Any,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        self.shape = shape
        self.ndim = len(shape)
        self.size = prod(shape)
        self.nbytes = self.size * kind.itemsize
        self._address = address
        self._kind = kind
        self._keep = keep
        self._strides = strides
        self.__cuda_array_interface__ = {
            "data": (address, True),
            "shape": shape,
            "typestr": kind.str,
            "strides": strides,
            "version": 3,
        }

    def __getitem__(self, parts: tuple[slice, ...]) -> "CudaMemory":
        """A part of the leading axes, by slices without a step, as of a numpy array."""
        strides = self._strides or tuple(
            self._kind.itemsize * prod(self.shape[axis + 1 :]) for axis in range(self.ndim)
        )
        spans = [part.indices(extent)[:2] for part, extent in zip(parts, self.shape, strict=False)]
        shape = (*(max(end - start, 0) for start, end in spans), *self.shape[len(parts) :])
        offset = sum(start * stride for (start, _), stride in zip(spans, strides, strict=False))
        return CudaMemory(self._address + offset, self._kind, shape, self._keep, strides)


class CudaOpener(Protocol):
    """What mapping asks of CUDA."""

    def device_of(self, uuid: bytes) -> int:
        """The number of the device with this UUID here; LookupError where there is none."""
        ...

    def open_memory(self, device: int, handle: bytes) -> tuple[int, Callable[[], None]]:
        """The address of an exported allocation, and what closes it."""
        ...

    def wait_event(self, device: int, handle: bytes) -> None:
        """Makes the device wait until the content is complete."""
        ...


class _Open:
    """Closes an allocation once nobody refers to it."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close

    def __del__(self) -> None:
        self._close()


def map_cuda(
    handle: pb.TensorHandle,
    kind: "np.dtype[Any]",
    shape: tuple[int, ...],
    opener: CudaOpener | None = None,
) -> CudaMemory:
    """The memory of a handle as a tensor. Keep the lease: the server reuses the memory once it is released.

    FailedPrecondition where cuda-bindings or the device is missing, StaleHandle where the memory is gone.
    """
    opener = _bindings() if opener is None else opener
    if handle.size != int(np.prod(shape, dtype=np.int64)) * kind.itemsize:
        raise StaleHandle("the handle is malformed; ask for the tensors again")
    try:
        device = opener.device_of(handle.cuda_ipc.device_uuid)
    except LookupError as error:
        raise FailedPrecondition("the tensors are on another device or host", "output.transport") from error
    try:
        address, close = opener.open_memory(device, handle.cuda_ipc.memory_handle)
        keep = _Open(close)
        opener.wait_event(device, handle.cuda_ipc.event_handle)
    except OSError as error:
        raise StaleHandle("the CUDA memory is gone; ask for the tensors again") from error
    return CudaMemory(address + handle.offset, kind, shape, keep)


def _bindings() -> CudaOpener:
    try:
        return _Bindings()
    except ImportError as error:
        raise FailedPrecondition(
            "CUDA IPC needs the package cuda-bindings; install it or use shared_memory", "output.transport"
        ) from error


class _Bindings:
    def __init__(self) -> None:
        from cuda.bindings import runtime

        self._runtime: Any = runtime

    def device_of(self, uuid: bytes) -> int:
        count = self._check(self._runtime.cudaGetDeviceCount())
        for device in range(count):
            properties = self._check(self._runtime.cudaGetDeviceProperties(device))
            if bytes(properties.uuid.bytes)[:16] == uuid:
                return device
        raise LookupError(uuid)

    def open_memory(self, device: int, handle: bytes) -> tuple[int, Callable[[], None]]:
        runtime = self._runtime
        self._check(runtime.cudaSetDevice(device))
        opened = runtime.cudaIpcMemHandle_t()
        opened.reserved = handle
        flags = runtime.cudaIpcMemLazyEnablePeerAccess
        address = int(self._check(runtime.cudaIpcOpenMemHandle(opened, flags)))
        return address, lambda: runtime.cudaIpcCloseMemHandle(address)

    def wait_event(self, device: int, handle: bytes) -> None:
        runtime = self._runtime
        opened = runtime.cudaIpcEventHandle_t()
        opened.reserved = handle
        event = self._check(runtime.cudaIpcOpenEventHandle(opened))
        self._check(runtime.cudaEventSynchronize(event))
        self._check(runtime.cudaEventDestroy(event))

    def _check(self, answer: tuple[Any, ...]) -> Any:
        code, *values = answer
        if int(code) != 0:
            raise OSError(f"CUDA error {int(code)}")
        return values[0] if values else None
