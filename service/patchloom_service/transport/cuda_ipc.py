"""CUDA memory for executors on the same host: a bounded pool of own allocations with IPC handles.

Never torch's allocator and no pickle: an exported allocation must not be freed or reused while another
process has it open, and only an own pool can promise that. The driver is behind a small seam.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from patchloom_service.buffers import BufferPool
from patchloom_service.errors import OutOfMemory
from patchloom_service.transport.leases import CudaLocation, Ending, Handle, Lease, Leases, Owner

_GRAIN = 2 << 20  # CUDA exports whole allocations of this granularity
_ALIGN = 256


class CudaDriver(Protocol):
    """What the pool asks of CUDA; every failure is an OutOfMemory or an OSError."""

    def device_uuid(self) -> bytes:
        """The 16 bytes of the device's UUID."""
        ...

    def allocate(self, size: int) -> int:
        """The address of new device memory."""
        ...

    def free(self, address: int) -> None:
        """Frees device memory that no process has open."""
        ...

    def memory_handle(self, address: int) -> bytes:
        """The cudaIpcMemHandle_t of an allocation."""
        ...

    def event(self) -> tuple[Any, bytes]:
        """A new interprocess event and its cudaIpcEventHandle_t."""
        ...

    def upload(self, address: int, content: npt.NDArray[np.uint8], event: Any) -> None:
        """Copies host bytes to an address and records the event behind the copy."""
        ...


@dataclass(slots=True, eq=False)
class Block:
    """One allocation; `generation` counts its uses."""

    address: int
    capacity: int
    memory_handle: bytes
    event: Any
    event_handle: bytes
    generation: int = 0


class CudaPool:
    """Allocations of at most `max_bytes` in all; thread-safe.

    A block whose lease expired may still be open in its holder: it waits until the holder is seen to be
    gone, and is neither freed nor reused before.
    """

    def __init__(self, driver: CudaDriver, max_bytes: int) -> None:
        self.driver = driver
        self.uuid = driver.device_uuid()
        self._max_bytes = max_bytes
        self._used = 0
        self._idle: list[Block] = []
        self._abandoned: list[tuple[Block, Owner | None]] = []
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Bytes of all allocations."""
        return self._used

    def take(self, size: int) -> Block:
        """A block of at least `size` bytes; OutOfMemory where the pool is full."""
        capacity = -(-max(size, 1) // _GRAIN) * _GRAIN
        with self._lock:
            fitting = [block for block in self._idle if capacity <= block.capacity <= 2 * capacity]
            if fitting:
                block = min(fitting, key=lambda block: block.capacity)
                self._idle.remove(block)
            else:
                block = self._create(capacity)
        block.generation += 1
        return block

    def give(self, block: Block) -> None:
        """Takes a block back that its holder released."""
        with self._lock:
            self._idle.append(block)

    def abandon(self, block: Block, owner: Owner | None) -> None:
        """Keeps a block apart until its owner is gone."""
        with self._lock:
            self._abandoned.append((block, owner))

    def sweep(self) -> None:
        """Takes abandoned blocks back whose owner is seen to be gone."""
        with self._lock:
            for block, owner in list(self._abandoned):
                if owner is not None and owner.lost():
                    self._abandoned.remove((block, owner))
                    self._idle.append(block)

    def close(self) -> None:
        """Frees what nobody holds; the rest ends with the process."""
        with self._lock:
            while self._idle:
                self._free(self._idle.pop())

    def _create(self, capacity: int) -> Block:
        if capacity > self._max_bytes:
            raise OutOfMemory(f"the tensors need {capacity} bytes; at most {self._max_bytes} are allowed")
        while self._used + capacity > self._max_bytes and self._idle:
            self._free(self._idle.pop(0))
        if self._used + capacity > self._max_bytes:
            raise OutOfMemory(
                f"{self._used} of {self._max_bytes} bytes of CUDA memory are held; release tensors",
                retry_after=0.5,
            )
        address = self.driver.allocate(capacity)
        self._used += capacity
        event, event_handle = self.driver.event()
        return Block(address, capacity, self.driver.memory_handle(address), event, event_handle)

    def _free(self, block: Block) -> None:
        self.driver.free(block.address)
        self._used -= block.capacity


class CudaDelivery:
    """The pixels of one response: written to host memory, then copied to one block under a lease."""

    def __init__(
        self,
        pool: CudaPool,
        host: BufferPool,
        leases: Leases,
        namespace: str,
        owner: Owner | None,
        seconds: float | None,
        call: str = "",
    ) -> None:
        self._pool = pool
        self._host = host
        self._leases = leases
        self._namespace = namespace
        self._owner = owner
        self._seconds = seconds
        self._call = call
        self._buffer: npt.NDArray[np.uint8] | None = None
        self._size = 0
        self._block: Block | None = None
        self._lease: Lease | None = None

    @property
    def fell_back(self) -> bool:
        """Never: CUDA memory was asked for, and a full pool is an error."""
        return False

    def take(self, sizes: Sequence[int]) -> Sequence[npt.NDArray[np.uint8]]:
        """Consecutive parts of one host buffer, each at a multiple of 256 bytes."""
        starts = [0]
        for size in sizes:
            starts.append(-(-(starts[-1] + size) // _ALIGN) * _ALIGN)
        if not sizes:
            return []
        self._size = starts[-1]
        self._block = self._pool.take(self._size)
        self._buffer = buffer = self._host.take(self._size)
        return [buffer[start : start + size] for start, size in zip(starts, sizes, strict=False)]

    def take_now(self, sizes: Sequence[int]) -> Sequence[npt.NDArray[np.uint8]] | None:
        """None: the driver may have to allocate."""
        return None

    def commit(self) -> None:
        """Copies the pixels to the device and grants the lease."""
        if self._block is None or self._buffer is None:
            return
        self._pool.driver.upload(self._block.address, self._buffer[: self._size], self._block.event)
        backing = BlockBacking(self._pool, self._block, self._owner)
        self._lease = self._leases.grant(
            backing, self._block.generation, self._namespace, self._owner, self._seconds, self._call
        )

    def handle(self, array: npt.NDArray[Any]) -> Handle | None:
        """Where `array` is in the block, None for an array elsewhere."""
        if self._lease is None or self._block is None or self._buffer is None or not array.nbytes:
            return None
        offset = int(array.__array_interface__["data"][0] - self._buffer.__array_interface__["data"][0])
        if not 0 <= offset < self._size:
            return None
        block = self._block
        location = CudaLocation(self._pool.uuid, block.memory_handle, block.event_handle)
        return Handle(self._lease.key, offset, array.nbytes, self._lease.expires, location)

    def close(self, sent: bool) -> None:
        """Gives back what no lease holds. A kernel may still write to the host buffer of a failed request."""
        if self._lease is None:
            if self._block is not None:
                self._pool.give(self._block)
            return
        if self._buffer is not None:
            self._host.give(self._buffer)
        if not sent:
            self._leases.revoke(self._lease.key)


class BlockBacking:
    """A block as the memory of a lease."""

    def __init__(self, pool: CudaPool, block: Block, owner: Owner | None) -> None:
        self._pool = pool
        self._block = block
        self._owner = owner

    def end(self, how: Ending) -> None:
        """Reused after a release or the owner's death, kept apart after anything else."""
        if how in (Ending.RELEASED, Ending.OWNER_LOST):
            self._pool.give(self._block)
        else:
            self._pool.abandon(self._block, self._owner)


class CudaBindings:
    """The driver through the package cuda-bindings. ImportError where it is missing."""

    def __init__(self) -> None:
        from cuda.bindings import runtime

        self._runtime: Any = runtime
        self._check(runtime.cudaFree(0))

    def device_uuid(self) -> bytes:
        """See CudaDriver."""
        properties = self._check(self._runtime.cudaGetDeviceProperties(0))
        return bytes(properties.uuid.bytes)[:16]

    def allocate(self, size: int) -> int:
        """See CudaDriver."""
        return int(self._check(self._runtime.cudaMalloc(size)))

    def free(self, address: int) -> None:
        """See CudaDriver."""
        self._check(self._runtime.cudaFree(address))

    def memory_handle(self, address: int) -> bytes:
        """See CudaDriver."""
        return bytes(self._check(self._runtime.cudaIpcGetMemHandle(address)).reserved)

    def event(self) -> tuple[Any, bytes]:
        """See CudaDriver."""
        runtime = self._runtime
        flags = runtime.cudaEventInterprocess | runtime.cudaEventDisableTiming
        event = self._check(runtime.cudaEventCreateWithFlags(flags))
        return event, bytes(self._check(runtime.cudaIpcGetEventHandle(event)).reserved)

    def upload(self, address: int, content: npt.NDArray[np.uint8], event: Any) -> None:
        """See CudaDriver."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        source = content.__array_interface__["data"][0]
        self._check(self._runtime.cudaMemcpy(address, source, content.nbytes, kind))
        self._check(self._runtime.cudaEventRecord(event, 0))

    def _check(self, answer: tuple[Any, ...]) -> Any:
        code, *values = answer
        if int(code) == int(self._runtime.cudaError_t.cudaErrorMemoryAllocation):
            raise OutOfMemory("the CUDA device is full; try again later", retry_after=1.0)
        if int(code) != 0:
            raise OSError(f"CUDA error {int(code)}")
        return values[0] if values else None
