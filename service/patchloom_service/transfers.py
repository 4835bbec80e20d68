"""Bytes between the host and a device, on streams of their own beside the computing one."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy.typing as npt
import torch
from patchloom_kernels.packing import Packing


class Transfers(Protocol):
    """The way to one device and back. Safe to use from several threads."""

    device: torch.device

    def computing(self) -> AbstractContextManager[Any]:
        """Launches and allocations in the block belong to the computing stream."""
        ...

    def send(self, packing: Packing) -> torch.Tensor:
        """A device buffer uint8 [packing.size] with the packed arrays, for the computing stream."""
        ...

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[npt.NDArray[Any]]:
        """Results of the computing stream on the host. Waits for what was launched before."""
        ...


class CudaTransfers:
    """Copies through pinned memory on one stream up and one down, ordered by events.

    The pinned memory is that of torch's caching allocator, which reuses a block only when the copies
    from it are done; device memory that another stream uses is marked for its allocator.
    """

    def __init__(self, device: torch.device) -> None:
        stream: Any = torch.cuda.Stream  # untyped in torch
        self.device = device
        self._up, self._compute, self._down = (stream(device) for _ in range(3))

    def computing(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = torch.cuda.stream(self._compute)
        return context

    def send(self, packing: Packing) -> torch.Tensor:
        staging = torch.empty(packing.size - packing.room, dtype=torch.uint8, pin_memory=True)
        packing.write(staging.numpy())
        with torch.cuda.stream(self._up):
            buffer = torch.empty(packing.size, dtype=torch.uint8, device=self.device)
            buffer[packing.room :].copy_(staging, non_blocking=True)
            arrived = self._up.record_event()
        buffer.record_stream(self._compute)
        self._compute.wait_event(arrived)
        return buffer

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[npt.NDArray[Any]]:
        self._down.wait_stream(self._compute)
        hosts = []
        with torch.cuda.stream(self._down):
            for tensor in tensors:
                host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                host.copy_(tensor, non_blocking=True)
                tensor.record_stream(self._down)
                hosts.append(host)
            event: Any = torch.cuda.Event  # untyped in torch
            done = event(blocking=True)  # waits asleep
            done.record(self._down)
        done.synchronize()
        return [host.numpy() for host in hosts]


class HostTransfers:
    """The interpreter's device is the host itself."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def computing(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def send(self, packing: Packing) -> torch.Tensor:
        buffer = torch.empty(packing.size, dtype=torch.uint8)
        packing.write(buffer[packing.room :].numpy())
        return buffer

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[npt.NDArray[Any]]:
        return [tensor.numpy() for tensor in tensors]
