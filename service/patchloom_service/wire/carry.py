"""How the tensors of a response are carried: in the message, by handle, in chunks, apart."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from patchloom_proto import preprocess_pb2 as pb

from patchloom_service.result import Tensor
from patchloom_service.transport.leases import CudaLocation, Handle, SharedLocation

Carry = Callable[[str, Tensor, pb.TensorData], None]
"""Puts a tensor's content, or what leads to it, into a TensorData whose dtype and shape are set."""


def carry_inline(name: str, tensor: Tensor, message: pb.TensorData) -> None:
    """The content in the message itself."""
    message.inline = np.ascontiguousarray(tensor.array).reshape(-1).view(np.uint8).tobytes()


def carry_apart(announced: list[tuple[str, Tensor]], least: int = 1 << 16) -> Carry:
    """Leaves the content of tensors above `least` bytes out and collects them; the others go inline."""

    def carry(name: str, tensor: Tensor, message: pb.TensorData) -> None:
        if tensor.array.nbytes <= least:
            carry_inline(name, tensor, message)
        else:
            announced.append((name, tensor))

    return carry


def carry_handles(find: Callable[[npt.NDArray[Any]], Handle | None], rest: Carry = carry_inline) -> Carry:
    """A handle for each tensor that `find` knows a place of; the others go by `rest`."""

    def carry(name: str, tensor: Tensor, message: pb.TensorData) -> None:
        handle = find(tensor.array)
        if handle is None:
            rest(name, tensor, message)
        else:
            _write_handle(handle, message.handle)

    return carry


def carry_chunked(announced: list[tuple[str, Tensor]], least: int) -> Carry:
    """Announces tensors above `least` bytes as chunked and collects them; the others go inline."""

    def carry(name: str, tensor: Tensor, message: pb.TensorData) -> None:
        if tensor.array.nbytes <= least:
            carry_inline(name, tensor, message)
        else:
            message.chunked = tensor.array.nbytes
            announced.append((name, tensor))

    return carry


def _write_handle(handle: Handle, message: pb.TensorHandle) -> None:
    message.server_instance = handle.key.instance
    message.lease_id = handle.key.lease_id
    message.generation = handle.key.generation
    message.offset = handle.offset
    message.size = handle.size
    message.expires.FromNanoseconds(int(handle.expires * 1e9))
    match handle.location:
        case SharedLocation(name, namespace_id):
            message.shared_memory.name = name
            message.shared_memory.namespace_id = namespace_id
        case CudaLocation(uuid, memory, event):
            message.cuda_ipc.device_uuid = uuid
            message.cuda_ipc.memory_handle = memory
            message.cuda_ipc.event_handle = event
