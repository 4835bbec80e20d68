"""Pixels: planned items in, tensors out. Each image is decoded and resized once, however many ask for it."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided
from patchloom_kernels.backend import Backend
from patchloom_kernels.cpu.resize import Assist, resize_patchify
from patchloom_kernels.layout import Job, Parity
from patchloom_kernels.normalize import Dtype, NormalizeTable, bfloat16_bits

from patchloom_service.budget import ByteBudget
from patchloom_service.buffers import Allocator, BufferPool
from patchloom_service.config import Config
from patchloom_service.errors import errors_at
from patchloom_service.forms import Form, Place, Targets, form_of, places_by_source
from patchloom_service.intake import MediaWork
from patchloom_service.media.cache import arrival
from patchloom_service.media.decode import decode, warm_up
from patchloom_service.models.base import ModelSpec, ReferenceProcessor, TensorLayout
from patchloom_service.pictures import (
    PictureCache,
    Pictures,
    Pixels,
    Resized,
    kept_images,
    resized_images,
    resized_key,
)
from patchloom_service.result import Tensor
from patchloom_service.served import PixelSettings
from patchloom_service.types import Encoding, Modality
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
        drawer = _Drawer(self._cache, self._workers.assist_decoder, settings, fingerprint, namespace)
        async with self._budget.hold(_cost(works, settings)):
            if spec.reference is not None:
                pictures = await self._all_pictures(works, drawer)
                tensors, buffers = await self._by_reference(
                    spec.reference, settings, works, pictures, allocator
                )
                layout = spec.layout([work.plan for work in works])
                return _outcome(works, drawer, tensors, layout, buffers if allocator is None else ())
            sources = None if self._device is None else await self._sources(works, settings, namespace)
            form = form_of(spec, settings, [work.plan for work in works])
            buffers = await self._take(form.sizes, allocator)
            targets = form.targets(buffers)
            if sources is None:
                await self._write(works, drawer, form, targets)
            else:
                drawer.counted.update(sources.fresh)
                await self._write_on_device(sources, drawer, form, targets)
        return _outcome(
            works, drawer, form.tensors(targets), form.written, buffers if allocator is None else ()
        )

    def compute_here(
        self,
        work: MediaWork,
        spec: ModelSpec,
        settings: PixelSettings,
        fingerprint: str,
        namespace: str,
        allocator: Allocator | None = None,
    ) -> PixelOutcome | None:
        """As `compute`, for one image and wholly on the calling thread, which is to be one of the decoders.

        None where that cannot be: another thread or a device has to have a part in it, or bytes to be
        waited for.
        """
        if self._device is not None or spec.reference is not None or work.item.modality is not Modality.IMAGE:
            return None
        if self._cache.computing(namespace, work.key):  # a thread that waits for another is lost to the rest
            return None
        cost = _cost([work], settings)
        if not self._budget.try_take(cost):
            return None
        try:
            drawer = _Drawer(self._cache, self._workers.assist_decoder, settings, fingerprint, namespace)
            form = form_of(spec, settings, [work.plan])
            buffers = self._pooled(form.sizes) if allocator is None else allocator.take(form.sizes)
            targets = form.targets(buffers)
            for places in places_by_source(targets).values():
                drawing = _Drawing(places, form.applied, form.dtype)
                pictures, drawn = drawer.known(work), False
                if pictures is None:
                    made, drawn = drawer.pictures(work, drawing)
                    with errors_at(work.item.path):
                        pictures = made.result()  # another thread's, in the rare case that it began just now
                if not drawn:
                    drawing.lay_out(pictures)
        finally:
            self._budget.give(cost)
        return _outcome(
            [work], drawer, form.tensors(targets), form.written, buffers if allocator is None else ()
        )

    async def _all_pictures(self, works: Sequence[MediaWork], drawer: "_Drawer") -> list[Pictures]:
        """What the cache or the decoder has of each work."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._pictures(work, drawer, None)) for work in works]
        return [task.result()[0] for task in tasks]

    async def _pictures(
        self, work: MediaWork, drawer: "_Drawer", drawing: "_Drawing | None"
    ) -> tuple[Pictures, bool]:
        """See `_Drawer.pictures`. What another request computes is waited for here, not by a thread."""
        known = drawer.known(work)
        if known is not None:
            return known, False
        made, drawn = await self._workers.decode(drawer.pictures, work, drawing)
        with errors_at(work.item.path):
            return await arrival(made), drawn

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
        with errors_at(work.item.path):
            return await self._workers.decode(read, work.data, work.header, settings.background)

    async def _by_reference(
        self,
        reference: ReferenceProcessor,
        settings: PixelSettings,
        works: Sequence[MediaWork],
        pictures: Sequence[Pictures],
        allocator: Allocator | None,
    ) -> tuple[dict[str, Tensor], Sequence[npt.NDArray[np.uint8]]]:
        """The tensors of the checkpoint's own processor, floating-point ones rounded to the dtype."""
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
        return tensors, buffers

    async def _take(
        self, sizes: Sequence[int], allocator: Allocator | None
    ) -> Sequence[npt.NDArray[np.uint8]]:
        if allocator is None:
            return self._pooled(sizes)
        taken = allocator.take_now(sizes)
        return await asyncio.to_thread(allocator.take, sizes) if taken is None else taken

    def _pooled(self, sizes: Sequence[int]) -> Sequence[npt.NDArray[np.uint8]]:
        return [self.buffers.take(size) for size in sizes]

    async def _write(
        self, works: Sequence[MediaWork], drawer: "_Drawer", form: Form, targets: Targets
    ) -> None:
        """Patches of every work: on the way of resizing where that is due, else from resized images."""

        async def write_one(work: MediaWork, drawing: _Drawing) -> None:
            pictures, drawn = await self._pictures(work, drawer, drawing)
            if not drawn:
                await self._workers.kernel(drawing.lay_out, pictures)

        async with asyncio.TaskGroup() as group:
            for index, places in places_by_source(targets).items():
                group.create_task(write_one(works[index], _Drawing(places, form.applied, form.dtype)))

    async def _write_on_device(
        self, sources: "_Sources", drawer: "_Drawer", form: Form, targets: Targets
    ) -> None:
        """All images of a request to the batch former at once, and their patches to their places."""
        from patchloom_service.device import DeviceImage

        assert self._device is not None
        settings = drawer.settings
        placed = places_by_source(targets)
        images = []
        for index, places in placed.items():
            work = sources.works[index]
            images.append(
                DeviceImage(
                    identity=(drawer.namespace, work.key),
                    source=sources.by_key[work.key],
                    read_again=partial(_decoded, work, settings),
                    background=settings.background,
                    pieces=tuple(job.piece for _, job in places),
                    table=form.applied,
                    dtype=form.dtype,
                    parity=Parity(settings.parity),
                )
            )
        self._device.submit(images)
        async with asyncio.TaskGroup() as group:
            for (index, places), image in zip(placed.items(), images, strict=True):
                work = sources.works[index]
                group.create_task(
                    self._place(work, drawer.fingerprint, drawer.namespace, places, image.result)
                )

    async def _place(
        self,
        work: MediaWork,
        fingerprint: str,
        namespace: str,
        places: Sequence[Place],
        result: "Future[Drawn]",
    ) -> None:
        with errors_at(work.item.path):
            drawn = await asyncio.wrap_future(result)
        if drawn.decoded is not None:
            self._cache.put(namespace, work.key, Pictures(work.plan, fingerprint, {}, drawn.decoded))
        await self._workers.kernel(_scatter, places, drawn.patches)


@dataclass(frozen=True, slots=True)
class _Sources:
    """What the device needs of the images of a request, by content key; `fresh` were not in the cache."""

    works: Sequence[MediaWork]
    by_key: Mapping[str, Any]
    fresh: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Drawer:
    """Makes the pictures of one request, on any thread; `counted` has the content keys that it decoded."""

    cache: PictureCache
    assist: Assist
    settings: PixelSettings
    fingerprint: str
    namespace: str
    counted: set[str] = field(default_factory=set)

    def known(self, work: MediaWork) -> Pictures | None:
        """What there is already of a work."""
        return work.pictures or self.cache.peek(self.namespace, work.key)

    def pictures(self, work: MediaWork, drawing: "_Drawing | None") -> "tuple[Future[Pictures], bool]":
        """The resized images of a work, and whether making them drew the patches on the way.

        They are still to come where another thread computes them.
        """
        drawn = False

        def compute() -> Pictures:
            nonlocal drawn
            self.counted.add(work.key)
            source, pieces = _decoded(work, self.settings), [placed.piece for placed in work.plan.pieces]
            parity = Parity(self.settings.parity)
            kept = kept_images(pieces) if drawing is not None else None
            if drawing is None or kept is None:
                images = resized_images(resize_patchify, source, pieces, parity)
                return Pictures(work.plan, self.fingerprint, images)
            drawing.draw(source, parity, kept, self.assist)
            drawn = True
            return Pictures(work.plan, self.fingerprint, kept)

        with errors_at(work.item.path):
            return self.cache.get_or_lead(self.namespace, work.key, compute), drawn


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Where the patches of one item go, and how they are written, on the calling thread."""

    places: Sequence[Place]
    table: NormalizeTable | None
    dtype: Dtype

    def draw(self, source: Pixels, parity: Parity, kept: Mapping[Resized, Pixels], assist: Assist) -> None:
        """Patches from the decoded image, leaving the resized images in `kept`."""
        for flat, jobs in self._by_flat():
            keep = [kept[resized_key(job.piece)] for job in jobs]
            own = [replace(job, source=0) for job in jobs]
            resize_patchify([source], own, self.table, flat, self.dtype, parity, keep, assist)

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


def _scatter(places: Sequence[Place], patches: Sequence[npt.NDArray[Any]]) -> None:
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


def _outcome(
    works: Sequence[MediaWork],
    drawer: _Drawer,
    tensors: Mapping[str, Tensor],
    layout: TensorLayout,
    buffers: Sequence[npt.NDArray[np.uint8]],
) -> PixelOutcome:
    misses = len(drawer.counted)
    return PixelOutcome(tensors, layout, misses, len(works) - misses, misses, tuple(buffers))
