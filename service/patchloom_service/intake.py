"""Media items to planned work: bytes, header, plan and content key of each; nothing is decoded here."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from patchloom_service.config import Config
from patchloom_service.errors import ContentKeyNotFound, LimitExceeded, PatchloomError, UnsupportedContent
from patchloom_service.media.audio import probe_audio
from patchloom_service.media.fetch import Fetcher
from patchloom_service.media.header import ImageHeader
from patchloom_service.media.keys import content_key
from patchloom_service.media.probe import probe
from patchloom_service.media.source import resolve
from patchloom_service.models.base import MediaPlan
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

    async def fetch(self, items: Sequence[MediaItem]) -> dict[int, bytes]:
        """The bytes of the items whose source is an URL, by item index; all at once or the first error."""
        remote = [item for item in items if item.part.source.kind is SourceKind.URL]
        async with asyncio.TaskGroup() as group:
            tasks = {item.index: group.create_task(self._fetch(item)) for item in remote}
        return {index: task.result() for index, task in tasks.items()}

    async def _fetch(self, item: MediaItem) -> bytes:
        try:
            return await self._fetcher.fetch(item.part.source.text)
        except PatchloomError as error:
            raise error.at(item.path) from error

    def plan(
        self,
        request: Request,
        model: ServedModel,
        settings: PixelSettings,
        items: Sequence[MediaItem],
        fetched: Mapping[int, bytes],
    ) -> tuple[MediaWork, ...]:
        """The work of every item, in the order of `items`.

        Raises LimitExceeded before anything is decoded, ContentKeyNotFound with all missing keys, and
        what probing and the family's rule refuse, each with the item's path.
        """
        if len(items) > self._config.max_items:
            raise LimitExceeded(
                f"{len(items)} media items; at most {self._config.max_items} are allowed", "messages"
            )
        self._check_keys(items, request.namespace)
        images = sum(item.modality is Modality.IMAGE for item in items)
        fingerprint = model.pixel_fingerprint(settings)
        works = []
        encoded = pixels = 0
        for item in items:
            try:
                work = self._open(
                    request, model, settings, fingerprint, item, fetched.get(item.index), images
                )
            except PatchloomError as error:
                raise (error if error.field_path else error.at(item.path)) from error
            encoded += len(work.data or b"")
            pixels += work.plan.size[0] * work.plan.size[1] if work.plan.size else 0
            self._check_totals(encoded, pixels, item.path)
            works.append(work)
        return tuple(works)

    def _check_totals(self, encoded: int, pixels: int, path: str) -> None:
        if encoded > self._config.max_request_encoded_bytes:
            most = self._config.max_request_encoded_bytes
            raise LimitExceeded(f"the request has {encoded} encoded bytes; at most {most} are allowed", path)
        if pixels > self._config.max_request_pixels:
            most = self._config.max_request_pixels
            raise LimitExceeded(f"the request has {pixels} pixels; at most {most} are allowed", path)

    def _check_keys(self, items: Sequence[MediaItem], namespace: str) -> None:
        missing = [
            item
            for item in items
            if item.part.source.kind is SourceKind.CONTENT_KEY
            and self._cache.peek(namespace, item.part.source.text) is None
        ]
        if missing:
            keys = tuple(dict.fromkeys(item.part.source.text for item in missing))
            raise ContentKeyNotFound(
                f"{len(keys)} content keys are not in the cache; send the bytes", missing[0].path, keys
            )

    def _open(
        self,
        request: Request,
        model: ServedModel,
        settings: PixelSettings,
        fingerprint: str,
        item: MediaItem,
        fetched: bytes | None,
        images: int,
    ) -> MediaWork:
        source = item.part.source
        if source.kind is SourceKind.CONTENT_KEY:
            pictures = self._cache.peek(request.namespace, source.text)
            if pictures is None or pictures.fingerprint != fingerprint:
                raise ContentKeyNotFound(
                    "the content key is not in the cache; send the bytes", item.path, (source.text,)
                )
            return MediaWork(item, pictures.plan, source.text, pictures=pictures)
        data = fetched if fetched is not None else resolve(source, self._config.max_encoded_bytes)
        if isinstance(item.part, AudioPart):
            return self._open_audio(request, model, item, item.part, data)
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
    ) -> MediaWork:
        header = probe(data, self._config.max_image_pixels)
        options = _merged(part.options, request.image_options)
        plan = model.spec.plan_image(header.size, options, images)
        shape = (*plan.grid.shape, *(plan.resized or ()))
        key = content_key(
            request.namespace, data, DECODE_POLICY, fingerprint, (options, shape), settings.dtype
        )
        return MediaWork(item, plan, key, data, header)

    def _open_audio(
        self, request: Request, model: ServedModel, item: MediaItem, part: AudioPart, data: bytes
    ) -> MediaWork:
        if model.spec.plan_audio is None:
            raise UnsupportedContent(f"{model.spec.family} takes no audio; send text and images", item.path)
        plan = model.spec.plan_audio(probe_audio(data, part))
        form = (part.format, part.sample_rate, part.channels)
        key = content_key(request.namespace, data, "audio v1", model.spec.family, form, "")
        return MediaWork(item, plan, key, data)


def _merged(own: ImageOptions | None, default: ImageOptions) -> ImageOptions:
    """The image's own options; what it leaves open comes from the request."""
    if own is None:
        return default
    return ImageOptions(
        detail=own.detail or default.detail,
        min_pixels=default.min_pixels if own.min_pixels is None else own.min_pixels,
        max_pixels=default.max_pixels if own.max_pixels is None else own.max_pixels,
    )
