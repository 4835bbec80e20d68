"""Media items to planned work: bytes, header, plan and content key of each; nothing is decoded here."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from patchloom_service.config import Config
from patchloom_service.errors import (
    ContentKeyNotFound,
    InvalidAudio,
    InvalidImage,
    LimitExceeded,
    UnsupportedContent,
    errors_at,
)
from patchloom_service.media.audio import probe_audio
from patchloom_service.media.fetch import Fetcher
from patchloom_service.media.header import ImageHeader
from patchloom_service.media.keys import Keyed, content_keys
from patchloom_service.media.probe import probe
from patchloom_service.media.source import resolve
from patchloom_service.models.base import MediaPlan, ModelSpec
from patchloom_service.pictures import PictureCache, Pictures
from patchloom_service.served import DECODE_POLICY, PixelSettings, ServedModel
from patchloom_service.types import (
    AudioPart,
    ImageOptions,
    ImagePart,
    MediaItem,
    Modality,
    Request,
    SourceKind,
)


@dataclass(frozen=True, slots=True)
class MediaWork:
    """An item with everything that its pixels will need.

    `data` and `header` are None where the request held only a content key; `pictures` then holds what
    the cache had, so that it cannot be evicted before it is used.
    """

    item: MediaItem
    plan: MediaPlan
    key: str
    data: bytes | None = None
    header: ImageHeader | None = None
    pictures: Pictures | None = None


_FETCHES = 16  # URLs of a request that are fetched at a time


class Intake:
    """Takes media in, within the limits of `config`."""

    def __init__(self, config: Config, cache: PictureCache) -> None:
        self._config = config
        self._cache = cache
        self._fetcher = Fetcher(
            allowed_hosts=config.allow_fetch,
            timeout=config.fetch_timeout,
            max_bytes=config.max_encoded_bytes,
            max_redirects=config.fetch_redirects,
        )

    def remote(self, items: Sequence[MediaItem]) -> list[MediaItem]:
        """The items that `fetch` would fetch."""
        return [item for item in items if item.part.source.kind is SourceKind.URL]

    async def fetch(self, items: Sequence[MediaItem]) -> dict[int, bytes]:
        """The bytes of the items whose source is an URL, by item index; all at once or the first error."""
        remote = self.remote(items)
        fetched: dict[int, bytes] = {}
        slots = asyncio.Semaphore(_FETCHES)

        async def fetch(item: MediaItem) -> None:
            async with slots:
                fetched[item.index] = await self._fetch(item)
            self._check_totals(sum(map(len, fetched.values())), 0, item.path)

        async with asyncio.TaskGroup() as group:
            for item in remote:
                group.create_task(fetch(item))
        return fetched

    async def _fetch(self, item: MediaItem) -> bytes:
        with errors_at(item.path):
            return await self._fetcher.fetch(item.part.source.text)

    def plan(
        self,
        request: Request,
        model: ServedModel,
        settings: PixelSettings,
        fingerprint: str,
        items: Sequence[MediaItem],
        fetched: Mapping[int, bytes],
    ) -> tuple[MediaWork, ...]:
        """The work of every item, in the order of `items`; `fingerprint` is that of their pixels.

        Raises LimitExceeded before anything is decoded, ContentKeyNotFound with all missing keys, and
        what probing and the family's rule refuse, each with the item's path.
        """
        images = sum(item.modality is Modality.IMAGE for item in items)
        known = self._check_keys(request, items, fingerprint, model.spec, images)
        works: list[MediaWork] = []
        keyed: list[Keyed] = []
        encoded = pixels = 0
        for item in items:
            if item.index in known:
                pictures = known[item.index]
                work = MediaWork(item, pictures.plan, item.part.source.text, pictures=pictures)
            else:
                with errors_at(item.path):
                    work, own = self._open(
                        request, model, settings, fingerprint, item, fetched.get(item.index), images
                    )
                keyed.append(own)
            encoded += len(work.data or b"")
            pixels += work.plan.size[0] * work.plan.size[1] if work.plan.size else 0
            self._check_totals(encoded, pixels, item.path)
            works.append(work)
        keys = iter(content_keys(keyed))
        return tuple(
            work
            if work.key
            else MediaWork(work.item, work.plan, next(keys), work.data, work.header, work.pictures)
            for work in works
        )

    def _check_totals(self, encoded: int, pixels: int, path: str) -> None:
        if encoded > self._config.max_request_encoded_bytes:
            most = self._config.max_request_encoded_bytes
            raise LimitExceeded(f"the request has {encoded} encoded bytes; at most {most} are allowed", path)
        if pixels > self._config.max_request_pixels:
            most = self._config.max_request_pixels
            raise LimitExceeded(f"the request has {pixels} pixels; at most {most} are allowed", path)

    def _known(
        self, request: Request, item: MediaItem, fingerprint: str, spec: ModelSpec, images: int
    ) -> Pictures | None:
        """What the cache has of an item that is a key, if it was made with the settings of this request.

        A key stands for the size that it was made with, unless the request asks for another.
        """
        pictures = self._cache.peek(request.namespace, item.part.source.text)
        if (
            pictures is None
            or pictures.fingerprint != fingerprint
            or pictures.plan.modality is not item.modality
        ):
            return None
        own = item.part.options if isinstance(item.part, ImagePart) else None
        with errors_at(item.path):
            holds = _holds(pictures.plan, spec, _merged(own, request.image_options), images)
        return pictures if holds else None

    def _check_keys(
        self, request: Request, items: Sequence[MediaItem], fingerprint: str, spec: ModelSpec, images: int
    ) -> dict[int, Pictures]:
        """What the cache has of every item that is a key, by the item's index."""
        found: dict[int, Pictures] = {}
        missing = []
        for item in items:
            if item.part.source.kind is SourceKind.CONTENT_KEY:
                pictures = self._known(request, item, fingerprint, spec, images)
                if pictures is None:
                    missing.append(item)
                else:
                    found[item.index] = pictures
        if missing:
            keys = tuple(dict.fromkeys(item.part.source.text for item in missing))
            raise ContentKeyNotFound(
                f"{len(keys)} content keys are not in the cache; send the bytes", missing[0].path, keys
            )
        return found

    def _open(
        self,
        request: Request,
        model: ServedModel,
        settings: PixelSettings,
        fingerprint: str,
        item: MediaItem,
        fetched: bytes | None,
        images: int,
    ) -> tuple[MediaWork, Keyed]:
        """The work of an item that has bytes, and what its key is to be made of."""
        source = item.part.source
        if isinstance(item.part, AudioPart):
            try:
                data = fetched or resolve(source, self._config.max_encoded_bytes)
            except InvalidImage as error:
                raise InvalidAudio(error.message, item.path) from error
            return self._open_audio(request, model, fingerprint, item, item.part, data)
        data = fetched or resolve(source, self._config.max_encoded_bytes)
        return self._open_image(request, model, settings, fingerprint, item, item.part, data, images)

    def _open_image(
        self,
        request: Request,
        model: ServedModel,
        settings: PixelSettings,
        fingerprint: str,
        item: MediaItem,
        part: ImagePart,
        data: bytes,
        images: int,
    ) -> tuple[MediaWork, Keyed]:
        header = probe(data, self._config.max_image_pixels)
        options = _merged(part.options, request.image_options)
        plan = model.spec.plan_image(header.size, options, images)
        shape = (*plan.grid.shape, *(plan.resized or ()))
        keyed = Keyed(request.namespace, data, DECODE_POLICY, fingerprint, (options, shape), settings.dtype)
        return MediaWork(item, plan, "", data, header), keyed

    def _open_audio(
        self,
        request: Request,
        model: ServedModel,
        fingerprint: str,
        item: MediaItem,
        part: AudioPart,
        data: bytes,
    ) -> tuple[MediaWork, Keyed]:
        if model.spec.plan_audio is None:
            raise UnsupportedContent(f"{model.spec.family} takes no audio; send text and images", item.path)
        plan = model.spec.plan_audio(probe_audio(data, part))
        form = (part.format, part.sample_rate, part.channels)
        keyed = Keyed(request.namespace, data, "audio v1", fingerprint, form, "")
        return MediaWork(item, plan, "", data), keyed


def _holds(plan: MediaPlan, spec: ModelSpec, options: ImageOptions, images: int) -> bool:
    """Whether a cached plan is that of a request with these options and so many images.

    To most families the number of images is all one.
    """
    if plan.size is None:
        return True
    here = spec.plan_image(plan.size, options, images)
    if options.min_pixels is not None or options.max_pixels is not None:
        return (plan.grid, plan.resized) == (here.grid, here.resized)
    return plan.grid == here.grid or here.grid == spec.plan_image(plan.size, options, 1).grid


def _merged(own: ImageOptions | None, default: ImageOptions) -> ImageOptions:
    """The image's own options; what it leaves open comes from the request."""
    if own is None:
        return default
    return ImageOptions(
        detail=own.detail or default.detail,
        min_pixels=default.min_pixels if own.min_pixels is None else own.min_pixels,
        max_pixels=default.max_pixels if own.max_pixels is None else own.max_pixels,
    )
