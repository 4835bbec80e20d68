"""Levels to the model's tensor, on the executor's device: every value is one entry of the table that came.

A quarter of the bytes of bfloat16 travels. Nothing is computed in floating point here, so the values are
the same bits on every device. Compiled code from patchloom_kernels is used where it is installed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from patchloom_client.cuda import CudaMemory
from patchloom_client.tensors import Expansion, Response, Tensor

if TYPE_CHECKING:
    import torch

_NUMPY = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
_PAD_ENTRY = 256


@dataclass(frozen=True, slots=True)
class Plan:
    """Flat rows of four axes: their sizes, which axis counts channels and which copies."""

    sizes: tuple[int, int, int, int]
    channel: int
    copies: int


def expand(response: Response, name: str = "pixel_values") -> Tensor:
    """The tensor in the model's dtype and shape, in new memory of the CPU.

    ValueError where the response has no levels under this name.
    """
    tensor, table, content = _found(response, name)
    return expand_tensor(tensor, table, content)


def expand_tensor(tensor: Tensor, table: Tensor, content: Tensor | None = None) -> Tensor:
    """The same for a tensor and its table.

    A slice of a tensor expands alone where there is no `content`: its places count in the whole tensor.
    """
    expansion = _expansion(tensor)
    plan = plan_of(tensor, expansion)
    entries = table_entries(table, expansion.dtype)
    levels = np.ascontiguousarray(tensor.array).reshape(-1)
    padding = None if content is None else padding_mask(tensor, expansion, content.array)
    out = np.empty(int(np.prod(expansion.shape, dtype=np.int64)), entries.dtype)
    try:
        from patchloom_kernels.cpu.expand import expand_levels
    except ModuleNotFoundError:
        expand_levels = expand_levels_numpy
    expand_levels(levels, padding, entries, plan.sizes, plan.channel, plan.copies, out)
    return Tensor(tensor.name, expansion.dtype, out.reshape(expansion.shape))


def expand_to_torch(
    response: Response, name: str = "pixel_values", device: "torch.device | str" = "cuda"
) -> "torch.Tensor":
    """The tensor on a device: levels go there and a Triton kernel expands them; on the CPU as `expand`."""
    import torch

    where = torch.device(device)
    if where.type == "cpu":
        return expand(response, name).torch()
    tensor, table, content = _found(response, name)
    expansion = _expansion(tensor)
    plan = plan_of(tensor, expansion)
    entries = table_entries(table, expansion.dtype)
    padding = None if content is None else padding_mask(tensor, expansion, content.array).view(np.uint8)
    return _expand_triton(tensor, expansion, plan, entries, padding, where)


def _expand_triton(
    tensor: Tensor,
    expansion: Expansion,
    plan: Plan,
    entries: npt.NDArray[Any],
    padding: npt.NDArray[np.uint8] | None,
    device: "torch.device",
) -> "torch.Tensor":
    import torch
    from patchloom_kernels.expand import expand_levels

    dtype = getattr(torch, expansion.dtype)
    values = torch.from_numpy(entries).view(dtype).to(device)
    levels = _flat_levels(tensor).to(device)
    mask = None if padding is None else torch.from_numpy(padding).to(device)
    out = torch.empty(expansion.shape, dtype=dtype, device=device)
    expand_levels(levels, mask, values, plan.sizes, plan.channel, plan.copies, out.view(-1))
    return out


def _flat_levels(tensor: Tensor) -> "torch.Tensor":
    if isinstance(tensor.array, CudaMemory):
        return tensor.torch().reshape(-1)
    return Tensor(tensor.name, "uint8", np.ascontiguousarray(tensor.array).reshape(-1)).torch()


def expand_levels_numpy(
    levels: npt.NDArray[np.uint8],
    padding: npt.NDArray[np.bool_] | None,
    entries: npt.NDArray[Any],
    sizes: Sequence[int],
    channel: int,
    copies: int,
    out: npt.NDArray[Any],
) -> None:
    """As `patchloom_kernels.cpu.expand.expand_levels`: slower, obvious, right by definition."""
    single = [1 if axis == copies else size for axis, size in enumerate(sizes)]
    rows = levels.reshape(-1, *single).astype(np.intp)
    if padding is not None:
        rows[padding.reshape(rows.shape)] = _PAD_ENTRY
    index = np.arange(sizes[channel]).reshape([-1 if axis == channel else 1 for axis in range(4)])
    out.reshape(-1, *sizes)[...] = entries[index, rows]


def plan_of(tensor: Tensor, expansion: Expansion) -> Plan:
    """Pictures [..., 3, height, width] are rows of whole pictures; other tensors are rows of patches."""
    if is_pictures(tensor, expansion):
        height, width = tensor.shape[-2:]
        return Plan((3, 1, height, width), 0, 1)
    sides = {"c": 3, "t": expansion.temporal, "y": expansion.patch[0], "x": expansion.patch[1]}
    first, second, third, last = (sides[axis] for axis in expansion.columns)
    return Plan((first, second, third, last), expansion.columns.index("c"), expansion.columns.index("t"))


def is_pictures(tensor: Tensor, expansion: Expansion) -> bool:
    """Whether the last three axes are channels, height and width."""
    return tensor.array.ndim > 3 and expansion.columns == "ctyx" and expansion.temporal == 1


def table_entries(table: Tensor, dtype: str) -> npt.NDArray[Any]:
    """The float32 table [channels, 257] rounded to nearest even in the dtype; bfloat16 as its bits."""
    values = np.ascontiguousarray(table.array, np.float32)
    if dtype != "bfloat16":
        return values.astype(_NUMPY[dtype])
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def padding_mask(
    tensor: Tensor, expansion: Expansion, content: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """True for each element of the flat tensor that no content rectangle covers."""
    padding = np.ones(tensor.array.size, np.bool_)
    for start, canvas_h, canvas_w, top, left, height, width in content.tolist():
        canvas = np.zeros((canvas_h, canvas_w), np.bool_)
        canvas[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)] = True
        if is_pictures(tensor, expansion):
            _mark_picture(padding.reshape(-1, 3, *tensor.shape[-2:]), start, canvas)
        else:
            rows = _cut(canvas, expansion.patch, expansion.merge, expansion.columns)
            padding[start : start + rows.size] = ~rows
    return padding


def _mark_picture(padding: npt.NDArray[np.bool_], start: int, canvas: npt.NDArray[np.bool_]) -> None:
    """A canvas of tiles as large as the pictures, or one that lies within a single picture.

    Pictures of a batch that is padded to the largest have canvases of their own sizes.
    """
    height, width = padding.shape[-2:]
    if canvas.shape[0] % height == 0 and canvas.shape[1] % width == 0:
        rows = _cut(canvas, (height, width), 1, "ctyx")
        padding.reshape(-1)[start : start + rows.size] = ~rows
        return
    picture, place = divmod(start, 3 * height * width)
    top, left = divmod(place, width)
    padding[picture, :, top : top + canvas.shape[0], left : left + canvas.shape[1]] = ~canvas


def _cut(
    canvas: npt.NDArray[np.bool_], patch: tuple[int, int], merge: int, columns: str
) -> npt.NDArray[np.bool_]:
    """A canvas as flat rows of patches without temporal copies, in the order of the layout."""
    height, width = patch
    down, across = canvas.shape[0] // height, canvas.shape[1] // width
    blocks = canvas.reshape(down // merge, merge, height, across // merge, merge, width)
    patches = blocks.transpose(0, 3, 1, 4, 2, 5).reshape(-1, height, width)
    order = columns.replace("t", "")
    whole = np.broadcast_to(patches[:, None], (len(patches), 3, height, width))
    return whole.transpose(0, *(1 + "cyx".index(axis) for axis in order)).reshape(-1)


def _found(response: Response, name: str) -> tuple[Tensor, Tensor, Tensor | None]:
    tensor, table = response.tensors.get(name), response.tensors.get(f"{name}.table")
    if tensor is None or table is None:
        raise ValueError(f"the response has no levels {name!r}; ask for encoding uint8")
    return tensor, table, response.tensors.get(f"{name}.content")


def _expansion(tensor: Tensor) -> Expansion:
    if tensor.expansion is None:
        raise ValueError(f"{tensor.name} holds values already; ask for encoding uint8")
    return tensor.expansion
