"""Audio features of a request's clips: each clip is decoded and computed once, however many ask for it."""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from patchloom_service.batching import PixelOutcome
from patchloom_service.budget import ByteBudget
from patchloom_service.config import Config
from patchloom_service.errors import errors_at
from patchloom_service.intake import MediaWork
from patchloom_service.media.audio import decode_audio
from patchloom_service.media.cache import arrival
from patchloom_service.models.base import AudioFeatures, ModelSpec, TensorSlice
from patchloom_service.pictures import PictureCache, Pictures
from patchloom_service.result import Tensor
from patchloom_service.types import AudioPart, Modality
from patchloom_service.workers import Workers

_DECODING = 16  # bytes for each byte of the file: 8-bit samples as float64, and their mean


@dataclass(frozen=True, slots=True)
class Clips:
    """The tensors of a request's audio items, none without items; `decodes` of them were computed."""

    tensors: Mapping[str, npt.NDArray[Any]]
    decodes: int

    def join(self, outcome: PixelOutcome, works: Sequence[MediaWork]) -> PixelOutcome:
        """The outcome of the images of `works` with the tensors and slices of their clips."""
        if not self.tensors:
            return outcome
        named = {name: Tensor(array.dtype.name, array) for name, array in self.tensors.items()}
        return replace(
            outcome,
            tensors={**outcome.tensors, **named},
            layout=replace(outcome.layout, slices=_slices(works, outcome.layout.slices, tuple(named))),
            decodes=outcome.decodes + self.decodes,
            hits=outcome.hits - self.decodes,
            misses=outcome.misses + self.decodes,
        )


class ClipEngine:
    """Computes features in worker threads and keeps them beside the pictures."""

    def __init__(self, config: Config, workers: Workers, cache: PictureCache) -> None:
        self._workers = workers
        self._cache = cache
        self._budget = ByteBudget(config.max_inflight_bytes)

    async def compute(
        self, works: Sequence[MediaWork], spec: ModelSpec, fingerprint: str, namespace: str
    ) -> Clips:
        """The features of the audio items of `works`; an error carries its item's path."""
        own = [work for work in works if work.item.modality is Modality.AUDIO]
        audio = spec.audio
        if not own or audio is None:
            return Clips({}, 0)
        cost = sum(_cost(work, audio) for work in own) + feature_bytes(own, spec)
        async with self._budget.hold(cost):
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._features(work, audio, fingerprint, namespace)) for work in own
                ]
            found = [task.result() for task in tasks]
            tensors = await self._workers.kernel(audio.stack, [features for features, _ in found])
        return Clips(tensors, sum(computed for _, computed in found))

    async def _features(
        self, work: MediaWork, audio: AudioFeatures, fingerprint: str, namespace: str
    ) -> tuple[npt.NDArray[Any], bool]:
        kept = work.pictures or self._cache.peek(namespace, work.key)
        if kept is not None:
            return _kept(kept), False
        made, computed = await self._workers.decode(self._compute_once, work, audio, fingerprint, namespace)
        with errors_at(work.item.path):
            return _kept(await arrival(made)), computed

    def _compute_once(
        self, work: MediaWork, audio: AudioFeatures, fingerprint: str, namespace: str
    ) -> tuple[Future[Pictures], bool]:
        """The features, to come where another thread computes them, and whether this one did."""
        computed = False

        def compute() -> Pictures:
            nonlocal computed
            computed = True
            return Pictures(work.plan, fingerprint, {}, features=_computed(work, audio))

        with errors_at(work.item.path):
            return self._cache.get_or_lead(namespace, work.key, compute), computed


def feature_bytes(works: Sequence[MediaWork], spec: ModelSpec) -> int:
    """Bytes of the tensors of the clips of `works`."""
    frames = [work.plan.token_count for work in works if work.item.modality is Modality.AUDIO]
    if not frames or spec.audio is None:
        return 0
    return len(frames) * max(frames) * spec.audio.frame_bytes


def _computed(work: MediaWork, audio: AudioFeatures) -> npt.NDArray[Any]:
    assert work.data is not None
    assert isinstance(work.item.part, AudioPart)
    features = audio.compute(*decode_audio(work.data, work.item.part))
    assert len(features) == work.plan.token_count, (len(features), work.plan.token_count)
    features.flags.writeable = False
    return features


def _kept(pictures: Pictures) -> npt.NDArray[Any]:
    assert pictures.features is not None
    return pictures.features


def _slices(
    works: Sequence[MediaWork], slices: Sequence[tuple[TensorSlice, ...]], names: Sequence[str]
) -> tuple[tuple[TensorSlice, ...], ...]:
    """The slices of all items: a clip has one row of each tensor of `names`."""
    rows = itertools.count()
    made = []
    for work, own in zip(works, slices, strict=True):
        if work.item.modality is Modality.AUDIO:
            row = next(rows)
            own = tuple(TensorSlice(name, 0, row, 1) for name in names)
        made.append(own)
    return tuple(made)


def _cost(work: MediaWork, audio: AudioFeatures) -> int:
    """About the bytes that a clip takes while it is computed, at most."""
    return 0 if work.data is None else len(work.data) * _DECODING + audio.cost(work.plan.token_count)
