"""Where pixels are computed, chosen once; callers hold a Backend and do not ask again."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from patchloom_kernels.layout import Job, Parity
from patchloom_kernels.normalize import Dtype, NormalizeTable

DEVICES = ("auto", "cuda", "cpu", "interpreter")


class ResizePatchify(Protocol):
    """Write every job's patches into the flat `out` that `Backend.empty` made."""

    def __call__(
        self,
        sources: Sequence[NDArray[np.uint8]],
        jobs: Sequence[Job],
        table: NormalizeTable | None,
        out: Any,
        dtype: Dtype,
        parity: Parity,
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """The kernels of one device; the same bytes whichever it is.

    On the CPU `out` is a numpy array of `dtype.numpy` and calls run on the calling thread without the
    GIL. On CUDA and in the interpreter it is a torch tensor; CUDA launches are asynchronous.
    """

    name: str
    resize_patchify: ResizePatchify
    empty: Callable[[int, Dtype], Any]
    """An uninitialised flat output of so many elements."""
    warm: Callable[[Sequence[Dtype]], None]
    """Compile what these output types need, on a device the decoders too, before the first request does."""


def select(device: str) -> Backend:
    """The backend for "auto", "cuda", "cpu" or "interpreter"; "auto" is CUDA where torch sees one.

    Raises ValueError where the device is unknown or not there. The interpreter (Triton's, for tests)
    needs TRITON_INTERPRET=1 in the environment when the process starts.
    """
    match device:
        case "auto":
            return _triton("cuda") if _cuda_is_there() else _cpu()
        case "cpu":
            return _cpu()
        case "cuda":
            if not _cuda_is_there():
                raise ValueError("device cuda: torch sees no CUDA device; use auto or cpu")
            return _triton("cuda")
        case "interpreter":
            if os.environ.get("TRITON_INTERPRET") != "1":
                raise ValueError("device interpreter: start the process with TRITON_INTERPRET=1, or use cpu")
            return _triton("interpreter")
    raise ValueError(f"device {device!r} is unknown; use one of {', '.join(DEVICES)}")


def _cuda_is_there() -> bool:
    import torch

    return torch.cuda.is_available()


def _cpu() -> Backend:
    from patchloom_kernels.cpu.resize import resize_patchify, warm

    def empty(elements: int, dtype: Dtype) -> NDArray[Any]:
        return np.empty(elements, dtype.numpy)

    return Backend("cpu", resize_patchify, empty, warm)


def _triton(name: str) -> Backend:
    import torch

    from patchloom_kernels.image_batch import ImageBatch
    from patchloom_kernels.jpeg import decode as jpeg
    from patchloom_kernels.patchify import resize_patchify_batch, warm_batch
    from patchloom_kernels.png import decode as png

    device = torch.device("cpu" if name == "interpreter" else name)

    def empty(elements: int, dtype: Dtype) -> torch.Tensor:
        return torch.empty(elements, dtype=getattr(torch, dtype), device=device)

    def resize_patchify(
        sources: Sequence[NDArray[np.uint8]],
        jobs: Sequence[Job],
        table: NormalizeTable | None,
        out: torch.Tensor,
        dtype: Dtype,
        parity: Parity,
    ) -> None:
        batch = ImageBatch.from_arrays(sources, jobs, parity, device)
        resize_patchify_batch(batch, table, out, dtype)

    def warm(dtypes: Sequence[Dtype]) -> None:
        warm_batch(dtypes, device)
        jpeg.warm(device)
        png.warm(device)

    return Backend(name, resize_patchify, empty, warm)
