"""Encoded images of many requests to patches on one device: decoded, resized and laid out together.

JPEG bitstreams and inflated PNG rows are decoded there; what only the host can decode is uploaded as
pixels into the same buffer. All launches read from and write to that one buffer, behind one upload.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from patchloom_kernels.image_batch import Description, SourcePlace
from patchloom_kernels.jpeg import decode as jpeg
from patchloom_kernels.jpeg.parse import Jpeg
from patchloom_kernels.layout import Job, Parity, PatchLayout, Piece
from patchloom_kernels.normalize import Dtype, NormalizeTable
from patchloom_kernels.packing import Packing, aligned, array_at
from patchloom_kernels.patchify import entries_of, launch_patches
from patchloom_kernels.png import decode as png
from patchloom_kernels.png.plan import FilteredPng

from patchloom_service.batch_former import BatchFormer
from patchloom_service.config import Config
from patchloom_service.errors import PatchloomError
from patchloom_service.transfers import CudaTransfers, HostTransfers, Transfers

Colour: TypeAlias = tuple[int, int, int]
Pixels: TypeAlias = npt.NDArray[np.uint8]
Source: TypeAlias = Jpeg | FilteredPng | Pixels | torch.Tensor
"""A JPEG or PNG for the device's decoders, pixels [H, W, 3 or 4] on the host, or [H, W, 3] on the device."""

Allocate: TypeAlias = Callable[[int, torch.dtype], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Drawn:
    """What became of an image: the values of each piece, flat and contiguous, as `dtype.numpy`.

    `decoded` is the image on the device, uint8 [H, W, 3], None where it was not asked for or not made.
    """

    patches: tuple[npt.NDArray[Any], ...]
    decoded: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DeviceImage:
    """One image of one request, and the pieces that it becomes.

    Images of the same `identity` are decoded once per batch. `read_again` decodes on the host, where
    the device finds that the file is not its own to decode.
    """

    identity: tuple[str, str]
    source: Source
    read_again: Callable[[], Pixels]
    background: Colour
    pieces: tuple[Piece, ...]
    table: NormalizeTable | None
    dtype: Dtype
    parity: Parity
    result: "Future[Drawn]" = field(default_factory=Future)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the source."""
        match self.source:
            case Jpeg():
                return self.source.height, self.source.width
            case FilteredPng():
                return self.source.png.height, self.source.png.width
        return int(self.source.shape[0]), int(self.source.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of the decoded image."""
        return self.size[0] * self.size[1] * 3

    @property
    def device_bytes(self) -> int:
        """About the device memory that its decoding and drawing take, at most."""
        patches = sum(piece.rows * piece.layout.row_size() for piece in self.pieces)
        steps = sum(3 * step.canvas[0] * step.canvas[1] for piece in self.pieces for step in piece.via)
        # JPEG 4:4:4: six bytes of coefficients, three of samples, three of pixels and their copy
        return 5 * self.nbytes + steps + patches * self.dtype.numpy.itemsize


class DevicePipeline:
    """One device's images. Up to two batches are in work: one uploads while the other computes.

    Device memory of the batches in work is bounded by `config.device_pool_bytes`. Where the device has
    less, a batch is halved, and what does not fit alone is computed on the CPU; `gauges` counts it.
    """

    def __init__(self, config: Config, interpreter: bool, allocate: Allocate | None = None) -> None:
        at_a_time = 1 if interpreter else 2  # Triton's interpreter keeps its state in globals
        self._transfers: Transfers = HostTransfers() if interpreter else CudaTransfers(_present_device())
        self._allocate = allocate or self._empty
        self._split = jpeg.INTERPRETED if interpreter else jpeg.Split()
        self._max_batch = config.device_pool_bytes // at_a_time
        self._keep = config.pixel_cache_bytes > 0
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._lock = threading.Lock()
        self._former = BatchFormer[DeviceImage](self.run, config.batch_bytes, config.batch_wait, at_a_time)

    def submit(self, images: Sequence[DeviceImage]) -> None:
        """Enqueues the images of a request; each one's `result` becomes its Drawn or its error."""
        self._former.submit(images)

    def close(self) -> None:
        """Waits for the batches that run."""
        self._former.close()

    def gauges(self) -> Mapping[str, float]:
        """Batches and images so far, and how often the device could not do what it should."""
        with self._lock:
            return {f"patchloom_device_{name}_total": float(n) for name, n in self._counts.items()}

    def run(self, batch: Sequence[DeviceImage]) -> None:
        """Sets the result of every image, in as many sets of launches as the pool's bound asks for."""
        part: list[DeviceImage] = []
        size = 0
        for image in batch:
            if image.device_bytes > self._max_batch:
                self._on_cpu(image)
                continue
            if size + image.device_bytes > self._max_batch:
                self._run_part(part)
                part, size = [], 0
            part.append(image)
            size += image.device_bytes
        self._run_part(part)

    def _run_part(self, batch: Sequence[DeviceImage]) -> None:
        if not batch:
            return
        drawn: Sequence[Drawn | None] = ()
        with suppress(torch.OutOfMemoryError):  # what a failed try holds is free only behind this block
            drawn = self._collect(batch, self.enqueue(batch))
        if drawn:
            self._count(batches=1, images=len(batch))
            self._settle(batch, drawn)
        elif len(batch) > 1:
            self._count(halved=1)
            self._run_part(batch[: len(batch) // 2])
            self._run_part(batch[len(batch) // 2 :])
        else:
            self._on_cpu(batch[0])

    def _settle(self, batch: Sequence[DeviceImage], drawn: Sequence[Drawn | None]) -> None:
        """Sets results; images that the device flagged are decoded on the host and drawn once more."""
        again = []
        for image, found in zip(batch, drawn, strict=True):
            if found is not None:
                image.result.set_result(found)
                continue
            self._count(flagged=1)
            try:
                again.append(replace(image, source=image.read_again()))
            except PatchloomError as error:
                image.result.set_exception(error)
        self._run_part(again)

    def _on_cpu(self, image: DeviceImage) -> None:
        from patchloom_service.pictures import cpu_patches  # compiled code that only this needs

        self._count(on_cpu=1)
        try:
            pixels = self._on_host(image)
        except PatchloomError as error:
            image.result.set_exception(error)
            return
        patches = (cpu_patches(pixels, p, image.table, image.dtype, image.parity) for p in image.pieces)
        image.result.set_result(Drawn(tuple(patches)))

    def _on_host(self, image: DeviceImage) -> Pixels:
        if isinstance(image.source, Jpeg | FilteredPng):
            return image.read_again()
        if isinstance(image.source, torch.Tensor):
            pixels: Pixels = self._transfers.fetch([image.source])[0]
            return pixels
        return image.source

    def enqueue(self, batch: Sequence[DeviceImage]) -> "Enqueued":
        """The device's part of a batch, launched and not waited for."""
        with self._transfers.computing():
            plan = _BatchPlan(batch, self._split)
            buffer = self._transfers.send(plan.packing)
            flags = [stage.launch(buffer) for stage in plan.decoders]
            for source, place in plan.copies:
                _view(buffer, place).copy_(source)
            for drawing in plan.steps:
                drawing.launch(buffer, buffer)
            outs = []
            for drawing in plan.drawings:
                out = self._allocate(drawing.elements, _WORDS[drawing.dtype.numpy.itemsize])
                drawing.launch(buffer, out)
                outs.append(out)
            kept = {name: _kept(buffer, place) for name, place in plan.fresh.items() if self._keep}
        return Enqueued(plan, flags, outs, kept)

    def _collect(self, batch: Sequence[DeviceImage], enqueued: "Enqueued") -> list[Drawn | None]:
        """What each image became, None where its file has to be decoded on the host. Waits."""
        plan, flags = enqueued.plan, enqueued.flags
        found = self._transfers.fetch([*flags, *enqueued.patches])
        flagged = plan.flagged(found[: len(flags)])
        pairs = zip(found[len(flags) :], plan.drawings, strict=True)
        values = [host.view(drawing.dtype.numpy) for host, drawing in pairs]
        drawn: list[Drawn | None] = []
        for image, parts in zip(batch, plan.parts, strict=True):
            patches = tuple(values[number][start : start + size] for number, start, size in parts)
            made = Drawn(patches, enqueued.kept.get(image.identity))
            drawn.append(None if image.identity in flagged else made)
        return drawn

    def _empty(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(elements, dtype=dtype, device=self._transfers.device)

    def _count(self, **counts: int) -> None:
        with self._lock:
            for name, number in counts.items():
                self._counts[name] += number


@dataclass(frozen=True, slots=True, eq=False)
class Enqueued:
    """A batch that is under way. Nothing here may be read before the computing stream has come so far."""

    plan: "_BatchPlan"
    flags: list[torch.Tensor]  # int32 [images] of each decoder
    patches: list[torch.Tensor]  # flat, of each drawing, as integers of its dtype's size
    kept: Mapping[tuple[str, str], torch.Tensor]  # uint8 [H, W, 3]


_COUNTS = ("batches", "images", "flagged", "halved", "on_cpu")
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def _present_device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def _view(buffer: torch.Tensor, place: SourcePlace) -> torch.Tensor:
    height, width = place.size
    return buffer[place.offset : place.offset + height * place.pitch].view(height, width, place.step)


def _kept(buffer: torch.Tensor, place: SourcePlace) -> torch.Tensor:
    """A copy that outlives the buffer."""
    return _view(buffer, place)[..., :3].clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True, slots=True)
class _Stage:
    """A decoder's launches for some images of a batch, and where its arrays stand in the buffer."""

    decoder: Any  # jpeg or png
    prepared: Any
    offsets: tuple[int, ...]
    names: tuple[tuple[str, str], ...]

    def launch(self, buffer: torch.Tensor) -> torch.Tensor:
        arrays = zip(self.offsets, self.prepared.arrays, strict=True)
        views = [array_at(buffer, offset, array) for offset, array in arrays]
        flags: torch.Tensor = self.decoder.launch(self.prepared, views, buffer)
        return flags


@dataclass(frozen=True, slots=True)
class _Drawing:
    """One launch of the resize kernel, and where its arrays stand in the buffer."""

    description: Description
    arrays: tuple[npt.NDArray[Any], ...]
    offsets: tuple[int, ...]
    dtype: Dtype
    elements: int

    def launch(self, buffer: torch.Tensor, out: torch.Tensor) -> None:
        pairs = zip(self.offsets, self.arrays, strict=True)
        descriptors, tables, entries = (array_at(buffer, offset, array) for offset, array in pairs)
        launch_patches(self.description.on(buffer, descriptors, tables), entries, out)


class _BatchPlan:
    """Everything about a batch that is known before its bytes are on the device.

    The buffer begins with the pictures that the device makes, decoded images and steps on the way of a
    piece; the upload follows: pixels from the host, the decoders' arrays, the tables of the drawings.
    `fresh` are the places of the images that are not kept on the device yet, `copies` those that are.
    `parts` says for each image which (drawing, first element, elements) its pieces are.
    """

    def __init__(self, batch: Sequence[DeviceImage], split: jpeg.Split) -> None:
        sources = {image.identity: image for image in reversed(batch)}
        self.places: list[SourcePlace] = []
        self._made: dict[tuple[str, str], int] = {}
        self._room = 0
        for name, image in sources.items():
            if not isinstance(image.source, np.ndarray):
                self._made[name] = self._make(image.size)
        levels = self._steps(batch)
        self.packing = Packing(self._room)
        self._found = dict(self._made)
        for name, image in sources.items():
            if isinstance(image.source, np.ndarray):
                self._found[name] = self._pack(image.source)
        self.fresh = {
            name: self.places[self._found[name]]
            for name, image in sources.items()
            if not isinstance(image.source, torch.Tensor)
        }
        self.copies = [
            (image.source, self.places[self._made[name]])
            for name, image in sources.items()
            if isinstance(image.source, torch.Tensor)
        ]
        self.decoders = list(self._decoders(sources.values(), split))
        self.steps = [self._draw_steps(level) for level in levels]
        self.parts: list[list[tuple[int, int, int]]] = [[] for _ in batch]
        self.drawings = [
            self._draw(number, group, batch) for number, group in enumerate(_by_output(batch).values())
        ]

    def flagged(self, flags: Sequence[npt.NDArray[Any]]) -> set[tuple[str, str]]:
        """The identities of the images that their decoder flagged."""
        pairs = zip(self.decoders, flags, strict=True)
        return {name for stage, own in pairs for name, flag in zip(stage.names, own, strict=True) if flag}

    def _make(self, size: tuple[int, int]) -> int:
        """Room for a picture that the device makes; its index in `places`."""
        self.places.append(SourcePlace(self._room, size, size[1] * 3, 3))
        self._room += aligned(size[0] * size[1] * 3)
        return len(self.places) - 1

    def _pack(self, pixels: Pixels) -> int:
        height, width, step = pixels.shape
        self.places.append(SourcePlace(self.packing.add(pixels), (height, width), width * step, step))
        return len(self.places) - 1

    def _steps(self, batch: Sequence[DeviceImage]) -> "list[list[_Step]]":
        """The pictures on the way of pieces, each once, those of a depth together."""
        self._last: dict[tuple[Any, ...], int] = {}
        levels: list[list[_Step]] = []
        for image in batch:
            for piece in image.pieces:
                for depth in range(len(piece.via)):
                    key = image.identity, image.parity, piece.via[: depth + 1]
                    if key in self._last:
                        continue
                    self._last[key] = self._make(piece.via[depth].canvas)
                    if depth == len(levels):
                        levels.append([])
                    levels[depth].append(_Step(image, piece.via[: depth + 1], self._last[key]))
        return levels

    def _source(self, image: DeviceImage, via: tuple[Piece, ...]) -> int:
        """The place of the picture that a piece with this way reads."""
        return self._last[image.identity, image.parity, via] if via else self._found[image.identity]

    def _decoders(self, sources: Collection[DeviceImage], split: jpeg.Split) -> Iterator[_Stage]:
        jpegs = [image for image in sources if isinstance(image.source, Jpeg)]
        pngs: dict[Colour, list[DeviceImage]] = {}
        for image in sources:
            if isinstance(image.source, FilteredPng):
                pngs.setdefault(image.background, []).append(image)
        if jpegs:
            yield self._stage(jpeg, jpegs, 3, split)
        for background, images in pngs.items():
            yield self._stage(png, images, background)

    def _stage(self, decoder: Any, images: Sequence[DeviceImage], *settings: Any) -> _Stage:
        offsets = [self.places[self._made[image.identity]].offset for image in images]
        prepared = decoder.prepare([image.source for image in images], offsets, self.packing.room, *settings)
        names = tuple(image.identity for image in images)
        return _Stage(decoder, prepared, tuple(map(self.packing.add, prepared.arrays)), names)

    def _draw_steps(self, steps: "Sequence[_Step]") -> _Drawing:
        jobs = []
        for step in steps:
            piece = step.via[-1]
            whole = replace(piece, layout=PatchLayout(piece.canvas, columns="tyxc"), via=())
            start = self.places[step.place].offset
            jobs.append(Job.contiguous(self._source(step.image, step.via[:-1]), whole, start))
        return self._drawing(jobs, steps[0].image.parity, None, Dtype.UINT8, 0)

    def _draw(self, number: int, group: Sequence[int], batch: Sequence[DeviceImage]) -> _Drawing:
        jobs, elements = [], 0
        for index in group:
            for piece in batch[index].pieces:
                size = piece.rows * piece.layout.row_size()
                source = self._source(batch[index], piece.via)
                jobs.append(Job.contiguous(source, replace(piece, via=()), elements))
                self.parts[index].append((number, elements, size))
                elements += aligned(size)
        image = batch[group[0]]
        return self._drawing(jobs, image.parity, image.table, image.dtype, elements)

    def _drawing(
        self, jobs: Sequence[Job], parity: Parity, table: NormalizeTable | None, dtype: Dtype, elements: int
    ) -> _Drawing:
        description = Description.of(self.places, jobs, parity)
        arrays = (*description.arrays, entries_of(table, dtype))
        return _Drawing(description, arrays, tuple(map(self.packing.add, arrays)), dtype, elements)


@dataclass(frozen=True, slots=True)
class _Step:
    """A picture on the way of a piece: the last of `via`, made at `place`."""

    image: DeviceImage
    via: tuple[Piece, ...]
    place: int


def _by_output(batch: Sequence[DeviceImage]) -> dict[tuple[Any, ...], list[int]]:
    """Indices of the images that one launch can write: of one table, dtype and parity."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, image in enumerate(batch):
        table = None if image.table is None else image.table.values.tobytes()
        groups.setdefault((table, image.dtype, image.parity), []).append(index)
    return groups
