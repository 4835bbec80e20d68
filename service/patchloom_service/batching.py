"""Pixels: planned items in, tensors out. Each image is decoded and resized once, however many ask for it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided
from patchloom_kernels.backend import Backend, select
from patchloom_kernels.layout import Job, Parity, PatchLayout, Piece
from patchloom_kernels.normalize import Dtype, NormalizeTable, bfloat16_bits

from patchloom_service.budget import ByteBudget
from patchloom_service.buffers import Allocator, BufferPool
from patchloom_service.config import Config
from patchloom_service.errors import InvalidArgument, PatchloomError
from patchloom_service.intake import MediaWork
from patchloom_service.media.decode import decode, warm_up
from patchloom_service.models.base import (
    MediaPlan,
    ModelSpec,
    PixelTensor,
    ReferenceProcessor,
    TensorLayout,
    TensorPiece,
)
from patchloom_service.pictures import PictureCache, Pictures, Pixels, Resized, resized_images
from patchloom_service.result import Expansion, Tensor
from patchloom_service.served import PixelSettings
from patchloom_service.types import Encoding
from patchloom_service.workers import Workers

if TYPE_CHECKING:
    from patchloom_service.device import DevicePipeline, Drawn


@dataclass(frozen=True, slots=True)
class PixelOutcome:
    """The tensors of one request and what they cost. `buffers` go back to the pool after use."""

    tensors: Mapping[str, Tensor]
    layout: TensorLayout
    decodes: int
    hits: int
    misses: int
    buffers: tuple[npt.NDArray[np.uint8], ...]


class PixelEngine:
    """Computes pixels on one backend, within the pools and budgets of `config`."""

    def __init__(self, config: Config, backend: Backend, workers: Workers, cache: PictureCache) -> None:
        self._backend = backend
        self._kernel = select("cpu").resize_patchify
        self._device = _pipeline(config, backend.name)
        self._workers = workers
        self._cache = cache
        self._budget = ByteBudget(config.max_inflight_bytes)
        self.buffers = BufferPool(config.max_inflight_bytes // 4)

    def warm(self) -> None:
        """Compiles decoders and kernels."""
        warm_up()
        self._backend.warm(tuple(Dtype))

    def gauges(self) -> Mapping[str, float]:
        """Present counts of the device, none on a CPU."""
        return {} if self._device is None else self._device.gauges()

    def close(self) -> None:
        """Waits for what the device still does."""
        if self._device is not None:
            self._device.close()

    async def compute(
        self,
        works: Sequence[MediaWork],
        spec: ModelSpec,
        settings: PixelSettings,
        fingerprint: str,
        namespace: str,
        allocator: Allocator | None = None,
    ) -> PixelOutcome:
        """The tensors of `works`, which stand in prompt order. An error names the item's path.

        Pixels are written to memory of `allocator`, without one to memory of the pool.
        """
        async with self._budget.hold(_cost(works, settings)):
            write: Write
            if self._device is not None and spec.reference is None:
                on_device = await self._sources(works, settings, namespace)
                decodes = on_device.decodes
                write = partial(self._write_on_device, on_device, settings, fingerprint, namespace)
                pictures: Sequence[Pictures] = ()
            else:
                pictures, decodes = await self._all_pictures(works, settings, fingerprint, namespace)
                write = partial(self._write, pictures)
            tensors, layout, buffers = await self._lay_out(spec, settings, works, pictures, write, allocator)
        misses = decodes
        return PixelOutcome(tensors, layout, decodes, len(works) - misses, misses, tuple(buffers))

    async def _all_pictures(
        self, works: Sequence[MediaWork], settings: PixelSettings, fingerprint: str, namespace: str
    ) -> tuple[list[Pictures], int]:
        """What the cache or the decoder has of each work, and how many were decoded."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._pictures(work, settings, fingerprint, namespace)) for work in works
            ]
        found = [task.result() for task in tasks]
        return [picture for picture, _ in found], sum(decoded for _, decoded in found)

    async def _pictures(
        self, work: MediaWork, settings: PixelSettings, fingerprint: str, namespace: str
    ) -> tuple[Pictures, bool]:
        if work.pictures is not None:
            return work.pictures, False
        if not work.plan.pieces:
            return Pictures(work.plan, fingerprint, {}), False
        cached = self._cache.peek(namespace, work.key)
        if cached is not None:
            return cached, False
        return await self._workers.decode(self._compute_once, work, settings, fingerprint, namespace)

    def _compute_once(
        self, work: MediaWork, settings: PixelSettings, fingerprint: str, namespace: str
    ) -> tuple[Pictures, bool]:
        computed = False

        def compute() -> Pictures:
            nonlocal computed
            computed = True
            return Pictures(work.plan, fingerprint, self._resize(work, settings))

        try:
            pictures = self._cache.get_or_compute(namespace, work.key, compute)
        except PatchloomError as error:
            raise error.at(work.item.path) from error
        return pictures, computed

    def _resize(self, work: MediaWork, settings: PixelSettings) -> dict[Resized, Pixels]:
        source = _decoded(work, settings)
        pieces = [placed.piece for placed in work.plan.pieces]
        return resized_images(self._kernel, source, pieces, Parity(settings.parity))

    async def _sources(
        self, works: Sequence[MediaWork], settings: PixelSettings, namespace: str
    ) -> "_Sources":
        """The works as the device takes them, each file read once."""
        from patchloom_service.device_source import read_source

        cached: dict[str, Any] = {}
        tasks: dict[str, asyncio.Task[Any]] = {}
        async with asyncio.TaskGroup() as group:
            for work in works:
                kept = work.pictures or self._cache.peek(namespace, work.key)
                if kept is not None and kept.decoded is not None:
                    cached[work.key] = kept.decoded
                elif work.data is not None and work.plan.pieces and work.key not in tasks:
                    tasks[work.key] = group.create_task(self._read(read_source, work, settings))
        made = {key: task.result() for key, task in tasks.items()}
        return _Sources(works, {**made, **cached}, len(made))

    async def _read(self, read: Callable[..., Any], work: MediaWork, settings: PixelSettings) -> Any:
        try:
            return await self._workers.decode(read, work.data, work.header, settings.background)
        except PatchloomError as error:
            raise error.at(work.item.path) from error

    async def _lay_out(
        self,
        spec: ModelSpec,
        settings: PixelSettings,
        works: Sequence[MediaWork],
        pictures: Sequence[Pictures],
        write: "Write",
        allocator: Allocator | None,
    ) -> tuple[dict[str, Tensor], TensorLayout, Sequence[npt.NDArray[np.uint8]]]:
        plans = [work.plan for work in works]
        layout = spec.layout(plans)
        if spec.reference is not None:
            tensors, buffers = await self._by_reference(spec.reference, settings, works, pictures, allocator)
            return tensors, layout, buffers
        levels = settings.encoding is Encoding.UINT8
        written = spec.layout([_single(plan) for plan in plans]) if levels else layout
        table = spec.table(Parity(settings.parity))
        dtype = Dtype.UINT8 if levels else Dtype(settings.dtype)
        sizes = [_nbytes(tensor, dtype) for tensor in written.pixels]
        buffers = await self._take(sizes, allocator)
        flats = [buffer[:size].view(dtype.numpy) for size, buffer in zip(sizes, buffers, strict=True)]
        for tensor, flat in zip(written.pixels, flats, strict=True):
            if tensor.fill is not None:
                flat[:] = 0 if levels else table.to(dtype)[0, tensor.fill]
        await write(list(zip(written.pixels, flats, strict=True)), None if levels else table, dtype)
        tensors = {}
        for full, tensor, flat in zip(layout.pixels, written.pixels, flats, strict=True):
            expansion = _expansion(full, Dtype(settings.dtype)) if levels else None
            tensors[full.name] = Tensor(dtype.value, flat.reshape(tensor.shape), expansion)
            if levels:
                tensors[f"{full.name}.table"] = Tensor("float32", table.values)
                if (content := _content(tensor)) is not None:
                    tensors[f"{full.name}.content"] = Tensor("int64", content)
        for name, constant in layout.constants.items():
            tensors[name] = Tensor(constant.dtype.name, constant)
        return tensors, written if levels else layout, buffers if allocator is None else ()

    async def _by_reference(
        self,
        reference: ReferenceProcessor,
        settings: PixelSettings,
        works: Sequence[MediaWork],
        pictures: Sequence[Pictures],
        allocator: Allocator | None,
    ) -> tuple[dict[str, Tensor], Sequence[npt.NDArray[np.uint8]]]:
        """The tensors of the checkpoint's own processor, floating-point ones rounded to the dtype."""
        if settings.encoding is Encoding.UINT8:
            raise InvalidArgument("a reference row has no uint8 encoding; ask for model", "output.encoding")
        images = [
            own.by(work.plan.pieces[0].piece)[..., :3] for work, own in zip(works, pictures, strict=True)
        ]
        made = await self._workers.kernel(reference.run, images) if images else {}
        tensors = {name: _typed(array, Dtype(settings.dtype)) for name, array in made.items()}
        sizes = [tensor.array.nbytes for tensor in tensors.values()]
        buffers = await self._take(sizes, allocator)
        for (name, tensor), size, buffer in zip(tensors.items(), sizes, buffers, strict=True):
            flat = buffer[:size].view(tensor.array.dtype)
            flat[:] = tensor.array.reshape(-1)
            tensors[name] = replace(tensor, array=flat.reshape(tensor.array.shape))
        return tensors, buffers if allocator is None else ()

    async def _take(
        self, sizes: Sequence[int], allocator: Allocator | None
    ) -> Sequence[npt.NDArray[np.uint8]]:
        if allocator is None:
            return [self.buffers.take(size) for size in sizes]
        return await asyncio.to_thread(allocator.take, sizes)

    async def _write(
        self, pictures: Sequence[Pictures], targets: "Targets", table: NormalizeTable | None, dtype: Dtype
    ) -> None:
        async with asyncio.TaskGroup() as group:
            for tensor, flat in targets:
                for source, jobs in _by_source(tensor.jobs).items():
                    group.create_task(
                        self._workers.kernel(self._write_item, pictures[source], jobs, table, flat, dtype)
                    )

    async def _write_on_device(
        self,
        sources: "_Sources",
        settings: PixelSettings,
        fingerprint: str,
        namespace: str,
        targets: "Targets",
        table: NormalizeTable | None,
        dtype: Dtype,
    ) -> None:
        """All images of a request to the batch former at once, and their patches to their places."""
        from patchloom_service.device import DeviceImage

        assert self._device is not None
        placed: dict[int, list[_Place]] = {}
        for tensor, flat in targets:
            for job in tensor.jobs:
                placed.setdefault(job.source, []).append((flat, job))
        images = []
        for index, places in placed.items():
            work = sources.works[index]
            images.append(
                DeviceImage(
                    identity=(namespace, work.key),
                    source=sources.by_key[work.key],
                    read_again=partial(_decoded, work, settings),
                    background=settings.background,
                    pieces=tuple(job.piece for _, job in places),
                    table=table,
                    dtype=dtype,
                    parity=Parity(settings.parity),
                )
            )
        self._device.submit(images)
        async with asyncio.TaskGroup() as group:
            for (index, places), image in zip(placed.items(), images, strict=True):
                work = sources.works[index]
                group.create_task(self._place(work, fingerprint, namespace, places, image.result))

    async def _place(
        self,
        work: MediaWork,
        fingerprint: str,
        namespace: str,
        places: "Sequence[_Place]",
        result: "Future[Drawn]",
    ) -> None:
        try:
            drawn = await asyncio.wrap_future(result)
        except PatchloomError as error:
            raise error.at(work.item.path) from error
        if drawn.decoded is not None:
            self._cache.put(namespace, work.key, Pictures(work.plan, fingerprint, {}, drawn.decoded))
        await self._workers.kernel(_scatter, places, drawn.patches)

    def _write_item(
        self,
        pictures: Pictures,
        jobs: Sequence[Job],
        table: NormalizeTable | None,
        flat: npt.NDArray[Any],
        dtype: Dtype,
    ) -> None:
        sources = [pictures.by(job.piece) for job in jobs]
        self._kernel(sources, _laid_out(jobs), table, flat, dtype, Parity.ATEN_U8)


@dataclass(frozen=True, slots=True)
class _Sources:
    """What the device needs of the images of a request, by content key; `decodes` were not in the cache."""

    works: Sequence[MediaWork]
    by_key: Mapping[str, Any]
    decodes: int


_Place: TypeAlias = tuple[npt.NDArray[Any], Job]
Targets: TypeAlias = Sequence[tuple[PixelTensor, npt.NDArray[Any]]]
Write: TypeAlias = Callable[[Targets, NormalizeTable | None, Dtype], Awaitable[None]]


def _pipeline(config: Config, name: str) -> "DevicePipeline | None":
    """The pipeline of a device; a process on a CPU does not even load its code."""
    if name == "cpu":
        return None
    from patchloom_service.device import DevicePipeline

    return DevicePipeline(config, name == "interpreter")


def _decoded(work: MediaWork, settings: PixelSettings) -> Pixels:
    assert work.data is not None
    assert work.header is not None
    return decode(work.data, work.header, settings.background)


def _scatter(places: Sequence[_Place], patches: Sequence[npt.NDArray[Any]]) -> None:
    """Copies the values of pieces to where their jobs want them."""
    for (flat, job), values in zip(places, patches, strict=True):
        layout, strides = job.piece.layout, job.strides
        if strides == layout.strides():
            flat[job.start : job.start + values.size] = values
            continue
        sides = {"c": 3, "t": layout.temporal, "y": layout.patch[0], "x": layout.patch[1]}
        shape = (job.piece.rows, *(sides[axis] for axis in layout.columns))
        steps = (strides.row, *(getattr(strides, axis) for axis in layout.columns))
        view = as_strided(flat[job.start :], shape, [step * flat.itemsize for step in steps])
        view[...] = values.reshape(shape)


def _typed(array: npt.NDArray[Any], dtype: Dtype) -> Tensor:
    if array.dtype.kind != "f":
        return Tensor(array.dtype.name, array)
    if dtype is Dtype.BFLOAT16:
        return Tensor(dtype.value, bfloat16_bits(array.astype(np.float32)))
    return Tensor(dtype.value, array.astype(dtype.numpy))


def _laid_out(jobs: Sequence[Job]) -> list[Job]:
    """The jobs reading images that are resized already, one source a job."""
    return [
        replace(job, source=i, piece=replace(job.piece, source=job.piece.target, via=()))
        for i, job in enumerate(jobs)
    ]


def _nbytes(tensor: PixelTensor, dtype: Dtype) -> int:
    return int(np.prod(tensor.shape, dtype=np.int64)) * dtype.numpy.itemsize


def _by_source(jobs: Sequence[Job]) -> dict[int, list[Job]]:
    grouped: dict[int, list[Job]] = {}
    for job in jobs:
        grouped.setdefault(job.source, []).append(job)
    return grouped


def _cost(works: Sequence[MediaWork], settings: PixelSettings) -> int:
    """Bytes in work: the decoded pixels of one image after the other at worst all, and the patches."""
    width = 1 if settings.encoding is Encoding.UINT8 else Dtype(settings.dtype).numpy.itemsize
    total = 0
    for work in works:
        if work.header is not None:
            total += work.header.pixels * 4
        for placed in work.plan.pieces:
            total += placed.piece.rows * placed.piece.layout.row_size() * width
            total += sum(step.canvas[0] * step.canvas[1] * 3 for step in placed.piece.via)
    return total


def _single(plan: MediaPlan) -> MediaPlan:
    """The plan without temporal copies."""
    return replace(
        plan,
        pieces=tuple(
            TensorPiece(p.tensor, replace(p.piece, layout=replace(p.piece.layout, temporal=1)))
            for p in plan.pieces
        ),
    )


def _expansion(full: PixelTensor, dtype: Dtype) -> Expansion:
    layout: PatchLayout = full.jobs[0].piece.layout
    return Expansion(dtype.value, full.shape, layout.columns, layout.patch, layout.merge, layout.temporal)


def _content(tensor: PixelTensor) -> npt.NDArray[np.int64] | None:
    """Where padding is no level: per piece [start, canvas h, w, content top, left, h, w], else None.

    Padding of a piece that is itself a level counts as content.
    """
    pieces = [(job.start, job.piece) for job in tensor.jobs]
    if tensor.fill is None and all(_covered(piece) or max(piece.pad) < 256 for _, piece in pieces):
        return None
    rows = [(start, *piece.canvas, *_rectangle(piece)) for start, piece in pieces]
    return np.array(rows, np.int64).reshape(-1, 7)


def _rectangle(piece: Piece) -> tuple[int, int, int, int]:
    """(top, left, height, width) of the part of the canvas that holds levels."""
    return (*piece.offset, *piece.target) if max(piece.pad) > 255 else (0, 0, *piece.canvas)


def _covered(piece: Piece) -> bool:
    """Whether the content covers the whole canvas."""
    return all(
        offset <= 0 and offset + target >= canvas
        for offset, target, canvas in zip(piece.offset, piece.target, piece.canvas, strict=True)
    )
