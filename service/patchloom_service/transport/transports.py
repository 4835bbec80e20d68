"""The transports of a server: which one a response takes, and the leases over all of them."""

import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from patchloom_service.buffers import BufferPool
from patchloom_service.config import Config
from patchloom_service.errors import FailedPrecondition, OutOfMemory
from patchloom_service.transport.cuda_ipc import CudaBindings, CudaDelivery, CudaDriver, CudaPool
from patchloom_service.transport.inline import InlineDelivery
from patchloom_service.transport.leases import Handle, LeaseKey, Leases, Owner
from patchloom_service.transport.shared_delivery import SharedDelivery
from patchloom_service.transport.shared_memory import MODES, Arena, namespace_id
from patchloom_service.types import OutputOptions, Transport

log = logging.getLogger("patchloom")


class Delivery(Protocol):
    """The tensors of one response on their way: taken, committed when complete, closed when sent."""

    @property
    def fell_back(self) -> bool:
        """Whether the tensors are in the message, though another transport was asked for."""
        ...

    def take(self, sizes: Sequence[int]) -> Sequence[npt.NDArray[np.uint8]]:
        """Memory for the pixel tensors."""
        ...

    def take_now(self, sizes: Sequence[int]) -> Sequence[npt.NDArray[np.uint8]] | None:
        """The same where that takes no time, else None."""
        ...

    def commit(self) -> None:
        """Lets readers in; the tensors are complete."""
        ...

    def handle(self, array: npt.NDArray[Any]) -> Handle | None:
        """Where a tensor is; None for one in the message."""
        ...

    def close(self, sent: bool) -> None:
        """Gives back what no lease holds; ends the lease too where the message was not sent."""
        ...


class Transports:
    """All transports of one server; `sweep` is to be called every second or so."""

    def __init__(self, config: Config, pool: BufferPool, cuda: CudaDriver | None = None) -> None:
        """`cuda` replaces the driver that `config.cuda_ipc_bytes` asks for."""
        self._pool = pool
        self._inline_fallback = config.shm_fallback == "inline"
        try:
            self._arena: Arena | None = Arena(config.shm_bytes, MODES[config.shm_readers])
        except OSError as error:
            log.warning("no shared memory: %s", error)
            self._arena = None
        self._cuda = _cuda_pool(config, cuda)
        instance = secrets.token_hex(16) if self._arena is None else self._arena.instance
        self.leases = Leases(instance, config.lease_time)
        self._namespace_id = "" if self._arena is None else namespace_id()

    def delivery(
        self, output: OutputOptions, namespace: str, owner: Owner | None, call: str = ""
    ) -> Delivery:
        """The way of one response, to a call of that name: see Leases.grant.

        FailedPrecondition where this server has no such transport.
        """
        match output.transport:
            case Transport.INLINE:
                return InlineDelivery(self._pool)
            case Transport.SHARED_MEMORY:
                return self._shared(namespace, owner, output.lease_time, call)
            case Transport.CUDA_IPC if self._cuda is not None:
                return CudaDelivery(
                    self._cuda, self._pool, self.leases, namespace, owner, output.lease_time, call
                )
            case Transport.CUDA_IPC:
                raise FailedPrecondition(
                    "this server has no CUDA memory for executors; use shared_memory", "output.transport"
                )

    def _shared(self, namespace: str, owner: Owner | None, seconds: float | None, call: str) -> Delivery:
        fallback = InlineDelivery(self._pool, fell_back=True) if self._inline_fallback else None
        if self._arena is None:
            if fallback is None:
                raise OutOfMemory("this server has no shared memory; use inline", "output.transport")
            return fallback
        return SharedDelivery(
            self._arena, self._namespace_id, self.leases, fallback, namespace, owner, seconds, call
        )

    def release(self, keys: Sequence[LeaseKey], namespace: str = "") -> int:
        """See Leases.release."""
        return self.leases.release(keys, namespace)

    def release_calls(self, calls: Sequence[str], namespace: str = "") -> int:
        """See Leases.release_calls."""
        return self.leases.release_calls(calls, namespace)

    def renew(self, keys: Sequence[LeaseKey], seconds: float | None, namespace: str = "") -> float:
        """See Leases.renew."""
        return self.leases.renew(keys, seconds, namespace)

    def sweep(self) -> None:
        """Ends leases that are over and frees memory that nobody reads any more."""
        self.leases.sweep()
        if self._arena is not None:
            self._arena.sweep()
        if self._cuda is not None:
            self._cuda.sweep()

    def close(self) -> None:
        """Ends every lease and unlinks all memory; who maps it keeps it."""
        self.leases.close()
        if self._arena is not None:
            self._arena.close()
        if self._cuda is not None:
            self._cuda.close()

    def gauges(self) -> Mapping[str, float]:
        """What is held now and what became of the leases, by metric name."""
        values: dict[str, float] = {
            "patchloom_leases": len(self.leases),
            "patchloom_leases_granted_total": self.leases.granted,
        }
        for how, count in self.leases.endings.items():
            values[f"patchloom_leases_{how.value}_total"] = count
        if self._cuda is not None:
            values["patchloom_cuda_bytes"] = self._cuda.used
        if self._arena is not None:
            values["patchloom_shm_bytes"] = self._arena.used
            values["patchloom_shm_idle_bytes"] = self._arena.idle
            values["patchloom_shm_readers"] = self._arena.readers()
        return values


def _cuda_pool(config: Config, driver: CudaDriver | None) -> CudaPool | None:
    """The pool that the settings ask for; ValueError where there is no CUDA to make it of."""
    if not config.cuda_ipc_bytes:
        return None
    try:
        return CudaPool(driver or CudaBindings(), config.cuda_ipc_bytes)
    except (ImportError, OSError) as error:
        raise ValueError(
            f"cuda_ipc_bytes needs a CUDA device and the package cuda-bindings: {error}"
        ) from error
