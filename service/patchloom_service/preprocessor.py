"""The pipeline of a request: normalize, harvest, probe, plan, render, expand, and only then pixels."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from patchloom_kernels.backend import Backend
from patchloom_kernels.normalize import Dtype

from patchloom_service.answer import Prepared, Stopwatch, pixel_result, token_result
from patchloom_service.batching import PixelEngine
from patchloom_service.buffers import Allocator, BufferPool
from patchloom_service.chat.expand import expand
from patchloom_service.chat.normalize import harvest, harvest_tokens, normalize
from patchloom_service.chat.tokens import parse_token_prompt
from patchloom_service.clips import ClipEngine, feature_bytes
from patchloom_service.config import Config, parse_colour
from patchloom_service.errors import (
    FingerprintMismatch,
    InvalidMessage,
    ModelNotFound,
    QueueFull,
    UnsupportedContent,
)
from patchloom_service.intake import Intake, MediaWork
from patchloom_service.media import keys
from patchloom_service.media.cache import Cache
from patchloom_service.pictures import PictureCache
from patchloom_service.result import Result
from patchloom_service.served import Fingerprints, PixelSettings, ServedModel
from patchloom_service.types import (
    Conversation,
    Encoding,
    ImagePart,
    MediaItem,
    OutputOptions,
    Prompt,
    Request,
    TextPart,
    TokenPrompt,
)
from patchloom_service.workers import Workers, new_request

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Begun:
    """A request some of whose items are still to be fetched."""

    conversation: Conversation | None
    items: tuple[MediaItem, ...]
    watch: Stopwatch


class Preprocessor:
    """Turns requests into results. One instance serves many requests at a time; `close` ends it."""

    def __init__(self, config: Config, models: Mapping[str, ServedModel], backend: Backend) -> None:
        self._config = config
        self.models = dict(models)
        self._workers = Workers(config)
        self._cache: PictureCache = Cache(config.pixel_cache_bytes, lambda pictures: pictures.nbytes)
        self._intake = Intake(config, self._cache)
        self._engine = PixelEngine(config, backend, self._workers, self._cache)
        self._clips = ClipEngine(config, self._workers, self._cache)
        self._defaults = PixelSettings(
            config.parity, config.dtype, parse_colour(config.background), Encoding.MODEL
        )
        self._active = 0

    async def count(self, request: Request) -> Result:
        """Everything but the pixels; decodes nothing."""
        with self.admitted():
            return token_result(await self.prepare(request))

    async def preprocess(self, request: Request, allocator: Allocator | None = None) -> Result:
        """The whole answer, its pixels in memory of `allocator`."""
        with self.admitted():
            prepared, result = await self.begin(request, allocator, lambda result: result)
            return await self.pixels(prepared, allocator) if result is None else result

    @property
    def buffers(self) -> BufferPool:
        """The pool that pixels are written to where there is no allocator."""
        return self._engine.buffers

    def pixel_bytes(self, prepared: Prepared) -> int:
        """Bytes of the pixel and audio tensors that `pixels` will make, at most."""
        settings = prepared.settings
        width = 1 if settings.encoding is Encoding.UINT8 else Dtype(settings.dtype).numpy.itemsize
        pieces = [placed.piece for work in prepared.works for placed in work.plan.pieces]
        pixels = sum(piece.rows * piece.layout.row_size() * width for piece in pieces)
        return pixels + feature_bytes(prepared.works, prepared.model.spec)

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Counts a request for the time of the block; QueueFull where too many are there already."""
        if self._active >= self._config.queue_length:
            raise QueueFull(
                f"{self._active} requests are waiting or running; try again later", retry_after=1.0
            )
        self._active += 1
        new_request()
        try:
            yield
        finally:
            self._active -= 1

    async def prepare(self, request: Request) -> Prepared:
        """Ids, ranges and planned work of a request."""
        begin, finish = self._steps(request)
        return await self._completed(await self._workers.render(begin), finish)

    async def begin(
        self, request: Request, allocator: Allocator | None, then: Callable[[Result], _T]
    ) -> tuple[Prepared, _T | None]:
        """As `prepare`, and for a short request of one image all the rest on the same thread: see `then`.

        Short requests of images are prepared by the threads that decode, so that the images of one are
        decoded before all the others are rendered. `then` gets the result as `pixels` gives it, on the
        worker's thread; what it returns is returned. None where `pixels` is still to be called.
        """
        images = _short_images(request)
        begin, finish = self._steps(request)
        if images != 1:
            prepare = self._workers.lead if images else self._workers.render
            return await self._completed(await prepare(begin), finish), None

        def whole() -> tuple[Prepared | _Begun, _T | None]:
            begun = begin()
            result = self._pixels_here(begun, allocator) if isinstance(begun, Prepared) else None
            return begun, None if result is None else then(result)

        begun, done = await self._workers.decode(whole)
        return await self._completed(begun, finish), done

    def _steps(self, request: Request) -> "tuple[Callable[[], Prepared | _Begun], Callable[..., Prepared]]":
        """The text work of a request: up to what has to be fetched, and from there."""
        model = self.model(request.model)
        settings = model.pixel_settings(request.output, self._defaults)
        fingerprints = model.fingerprints(settings)
        _check_fingerprint(request, fingerprints.whole)
        _check_output(request, model)
        watch = Stopwatch()
        finish = partial(self._prepare, request, model, settings, fingerprints, watch)

        def begin() -> Prepared | _Begun:
            with watch.stage("normalize"):
                conversation, items = self._normalize(request)
            if self._intake.remote(items):
                return _Begun(conversation, items, watch)
            return finish(conversation, items, {})

        return begin, finish

    async def _completed(self, begun: "Prepared | _Begun", finish: Callable[..., Prepared]) -> Prepared:
        if isinstance(begun, Prepared):
            return begun
        with begun.watch.stage("fetch"):
            fetched = await self._intake.fetch(begun.items)
        return await self._workers.render(finish, begun.conversation, begun.items, fetched)

    def model(self, name: str) -> ServedModel:
        """The served model of a name; "" means the only one."""
        if not name and len(self.models) == 1:
            return next(iter(self.models.values()))
        if name not in self.models:
            served = ", ".join(self.models) or "none"
            raise ModelNotFound(f"no model {name!r} is served; served are: {served}", "model")
        return self.models[name]

    def fingerprint(self, model: ServedModel) -> str:
        """The fingerprint under the server's defaults."""
        return model.fingerprints(model.pixel_settings(OutputOptions(), self._defaults)).whole

    def _normalize(self, request: Request) -> tuple[Conversation | None, tuple[MediaItem, ...]]:
        if isinstance(request.prompt, TokenPrompt):
            return None, harvest_tokens(request.prompt)
        conversation = normalize(request.prompt, self._config.max_tool_results)
        return conversation, harvest(conversation)

    def _prepare(
        self,
        request: Request,
        model: ServedModel,
        settings: PixelSettings,
        fingerprints: Fingerprints,
        watch: Stopwatch,
        conversation: Conversation | None,
        items: tuple[MediaItem, ...],
        fetched: Mapping[int, bytes],
    ) -> Prepared:
        with watch.stage("probe"):
            works = self._intake.plan(request, model, settings, fingerprints.pixels, items, fetched)
        with watch.stage("render"):
            prompt = _render(request, model, conversation, works)
        with watch.stage("expand"):
            segments = [0, 0]

            def encode(texts: Sequence[str]) -> Sequence[Sequence[int]]:
                encoded = model.tokenizer.encode_counted(texts)
                segments[:] = encoded.hits, encoded.misses
                return encoded.ids

            plans = [work.plan for work in works]
            expanded = expand(prompt, items, plans, encode, self._config.max_prompt_tokens)
        ordered = tuple(works[index] for index in expanded.order)
        return Prepared(
            request,
            model,
            settings,
            fingerprints,
            conversation,
            prompt,
            expanded,
            ordered,
            (segments[0], segments[1]),
            watch,
        )

    async def pixels(self, prepared: Prepared, allocator: Allocator | None = None) -> Result:
        """The whole result of a prepared request, its pixels in memory of `allocator`."""
        known = prepared.request.output.known_content_keys
        sent = [work for work in prepared.works if work.key not in known]
        fingerprint = prepared.fingerprints.pixels
        with prepared.watch.stage("pixels"):
            spec, namespace = prepared.model.spec, prepared.request.namespace
            clips = await self._clips.compute(sent, spec, fingerprint, namespace)
            pictures = await self._engine.compute(
                sent, spec, prepared.settings, fingerprint, namespace, allocator
            )
            outcome = clips.join(pictures, sent)
        return pixel_result(prepared, outcome)

    def _pixels_here(self, prepared: Prepared, allocator: Allocator | None) -> Result | None:
        """As `pixels` on this thread, for a single image that is to be sent; None for anything else."""
        if len(prepared.works) != 1 or prepared.works[0].key in prepared.request.output.known_content_keys:
            return None
        with prepared.watch.stage("pixels"):
            outcome = self._engine.compute_here(
                prepared.works[0],
                prepared.model.spec,
                prepared.settings,
                prepared.fingerprints.pixels,
                prepared.request.namespace,
                allocator,
            )
        return None if outcome is None else pixel_result(prepared, outcome)

    def cache_gauges(self) -> Mapping[str, float]:
        """What the pixel cache holds and has done, by metric name."""
        cache = self._cache.counters()
        return {
            "patchloom_pixel_cache_bytes": cache.bytes,
            "patchloom_pixel_cache_entries": cache.entries,
            "patchloom_pixel_cache_joins_total": cache.joins,
            "patchloom_pixel_cache_evictions_total": cache.evictions,
        }

    def recycle(self, result: Result) -> None:
        """Takes the memory of a result's tensors back; nothing may use them any more."""
        for buffer in result.buffers:
            self._engine.buffers.give(buffer)

    def warm(self) -> None:
        """Compiles what the first request would otherwise wait for."""
        self._engine.warm()
        keys.warm_up()

    def gauges(self) -> Mapping[str, float]:
        """Present counts of the device, none on a CPU."""
        return self._engine.gauges()

    def close(self) -> None:
        """Ends the worker pools."""
        self._engine.close()
        self._workers.close()


_SHORT_MESSAGES = 32
_SHORT_TEXT = 1 << 16  # characters, or token ids


def _short_images(request: Request) -> int:
    """The images of a request with so little text that a thread for images may do it too, else 0."""
    if isinstance(request.prompt, TokenPrompt):
        return len(request.prompt.media) if len(request.prompt.ids) <= _SHORT_TEXT else 0
    messages = request.prompt.messages
    if request.prompt.tools or len(messages) > _SHORT_MESSAGES:
        return 0
    images = length = 0
    for message in messages:
        if message.tool_calls or len(message.content) > _SHORT_MESSAGES:
            return 0
        length += len(message.reasoning)
        for part in message.content:
            if isinstance(part, TextPart):
                length += len(part.text)
            elif isinstance(part, ImagePart):
                images += 1
            else:
                return 0
    return images if length <= _SHORT_TEXT else 0


def _check_fingerprint(request: Request, actual: str) -> None:
    expected = request.expected_fingerprint
    if expected and expected != actual:
        raise FingerprintMismatch(
            f"expected {expected[:64]}, this server has {actual}", "expected_fingerprint"
        )


def _check_output(request: Request, model: ServedModel) -> None:
    """UnsupportedContent for what the family cannot give, before anything is decoded."""
    if request.output.positions and model.spec.positions is None:
        raise UnsupportedContent(f"{model.spec.family} has no M-RoPE positions", "output.positions")
    if request.output.encoding is Encoding.UINT8 and model.spec.reference is not None:
        raise UnsupportedContent("a reference row has no uint8 encoding; ask for model", "output.encoding")


def _render(
    request: Request, model: ServedModel, conversation: Conversation | None, works: Sequence[MediaWork]
) -> Prompt:
    if conversation is not None:
        return model.renderer.render(conversation, [work.item for work in works])
    assert isinstance(request.prompt, TokenPrompt)
    items, plans = [work.item for work in works], [work.plan for work in works]
    if (highest := max(request.prompt.ids, default=0)) >= model.vocabulary:
        raise InvalidMessage(
            f"token {highest} is none of the model; ids below {model.vocabulary} are allowed",
            "tokens.token_ids",
        )
    return parse_token_prompt(request.prompt.ids, items, plans, model.placeholder_ids)
