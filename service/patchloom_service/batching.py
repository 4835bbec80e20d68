"""Pixels: planned items in, tensors out. Each image is decoded and resized once, however many ask for it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided
from patchloom_kernels.backend import Backend
from patchloom_kernels.cpu.resize import resize_patchify
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
from patchloom_service.pictures import (
    PictureCache,
    Pictures,
    Pixels,
    Resized,
    kept_images,
    resized_images,
    resized_key,
)
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
        counted: set[str] = set()  # content keys that were decoded for this request
        async with self._budget.hold(_cost(works, settings)):
            pictures: Sequence[Pictures] = ()
            if spec.reference is not None:
                pictures = await self._all_pictures(works, settings, fingerprint, namespace, counted)
            write: Write = partial(self._write, works, settings, fingerprint, namespace, counted)
            if self._device is not None and spec.reference is None:
                on_device = await self._sources(works, settings, namespace)
                counted.update(on_device.fresh)
                write = partial(self._write_on_device, on_device, settings, fingerprint, namespace)
            tensors, layout, buffers = await self._lay_out(spec, settings, works, pictures, write, allocator)
        misses = len(counted)
        return PixelOutcome(tensors, layout, misses, len(works) - misses, misses, tuple(buffers))

    async def _all_pictures(
        self,
        works: Sequence[MediaWork],
        settings: PixelSettings,
        fingerprint: str,
        namespace: str,
        counted: set[str],
    ) -> list[Pictures]:
        """What the cache or the decoder has of each work."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._pictures(work, settings, fingerprint, namespace, counted, None))
                for work in works
            ]
        return [task.result()[0] for task in tasks]

    async def _pictures(
        self,
        work: MediaWork,
        settings: PixelSettings,
        fingerprint: str,
        namespace: str,
        counted: set[str],
        drawing: "_Drawing | None",
    ) -> tuple[Pictures, bool]:
        """The resized images of a work, and whether making them drew the patches on the way."""
        known = work.pictures or self._cache.peek(namespace, work.key)
        if known is not None:
            return known, False
        drawn = False

        def compute() -> Pictures:
            nonlocal drawn
            counted.add(work.key)
            source, pieces = _decoded(work, settings), [placed.piece for placed in work.plan.pieces]
            parity = Parity(settings.parity)
            kept = kept_images(pieces) if drawing is not None else None
            if drawing is None or kept is None:
                return Pictures(
                    work.plan, fingerprint, resized_images(resize_patchify, source, pieces, parity)
                )
            drawing.draw(source, parity, kept)
            drawn = True
            return Pictures(work.plan, fingerprint, kept)

        def compute_once() -> Pictures:
            try:
                return self._cache.get_or_compute(namespace, work.key, compute)
            except PatchloomError as error:
                raise error.at(work.item.path) from error

        pictures = await self._workers.decode(compute_once)
        return pictures, drawn

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
        return _Sources(works, {**made, **cached}, frozenset(made))

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
        taken = allocator.take_now(sizes)
        return await asyncio.to_thread(allocator.take, sizes) if taken is None else taken

    async def _write(
        self,
        works: Sequence[MediaWork],
        settings: PixelSettings,
        fingerprint: str,
        namespace: str,
        counted: set[str],
        targets: "Targets",
        table: NormalizeTable | None,
        dtype: Dtype,
    ) -> None:
        """Patches of every work: on the way of resizing where that is due, else from resized images."""

        async def write_one(work: MediaWork, drawing: _Drawing) -> None:
            pictures, drawn = await self._pictures(work, settings, fingerprint, namespace, counted, drawing)
            if not drawn:
                await self._workers.kernel(drawing.lay_out, pictures)

        async with asyncio.TaskGroup() as group:
            for index, places in _by_source(targets).items():
                group.create_task(write_one(works[index], _Drawing(places, table, dtype)))

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
        placed = _by_source(targets)
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


@dataclass(frozen=True, slots=True)
class _Sources:
    """What the device needs of the images of a request, by content key; `fresh` were not in the cache."""

    works: Sequence[MediaWork]
    by_key: Mapping[str, Any]
    fresh: frozenset[str]


_Place: TypeAlias = tuple[npt.NDArray[Any], Job]
Targets: TypeAlias = Sequence[tuple[PixelTensor, npt.NDArray[Any]]]
Write: TypeAlias = Callable[[Targets, NormalizeTable | None, Dtype], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Where the patches of one item go, and how they are written, on the calling thread."""

    places: "Sequence[_Place]"
    table: NormalizeTable | None
    dtype: Dtype

    def draw(self, source: Pixels, parity: Parity, kept: Mapping[Resized, Pixels]) -> None:
        """Patches from the decoded image, leaving the resized images in `kept`."""
        for flat, jobs in self._by_flat():
            keep = [kept[resized_key(job.piece)] for job in jobs]
            own = [replace(job, source=0) for job in jobs]
            resize_patchify([source], own, self.table, flat, self.dtype, parity, keep)

    def lay_out(self, pictures: Pictures) -> None:
        """Patches from the resized images."""
        for flat, jobs in self._by_flat():
            sources = [pictures.by(job.piece) for job in jobs]
            resize_patchify(sources, _laid_out(jobs), self.table, flat, self.dtype, Parity.ATEN_U8)

    def _by_flat(self) -> Iterator[tuple[npt.NDArray[Any], list[Job]]]:
        flats = {id(flat): flat for flat, _ in self.places}
        for key, flat in flats.items():
            yield flat, [job for own, job in self.places if id(own) == key]


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


def _by_source(targets: Targets) -> dict[int, list[_Place]]:
    grouped: dict[int, list[_Place]] = {}
    for tensor, flat in targets:
        for job in tensor.jobs:
            grouped.setdefault(job.source, []).append((flat, job))
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
