"""The stream: many requests in flight over one call, tokens first, tensors after; an error ends its own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from google.rpc import status_pb2
from patchloom_proto import preprocess_pb2 as pb

from patchloom_service import errors
from patchloom_service.answer import token_result
from patchloom_service.budget import ByteBudget
from patchloom_service.config import Config
from patchloom_service.preprocessor import Preprocessor
from patchloom_service.result import Result, Tensor
from patchloom_service.transport.leases import Owner
from patchloom_service.transport.transports import Delivery, Transports
from patchloom_service.types import Transport
from patchloom_service.wire import events, read_seconds
from patchloom_service.wire.translator import Translator, check_answer

_QUEUE = 4  # messages between the requests and the writer
_LARGE = 1 << 16  # bytes of a message whose copy counts
_MOST_ID = 256  # characters; every message of a request repeats it


@dataclass(frozen=True, slots=True)
class StreamTools:
    """What a stream shares with the rest of the server.

    `unsent` bounds the tensors of all answers until they are sent. `status` makes the google.rpc.Status of
    an error; `finished` is told each request's result, if it has one, and the number of its status code.
    `turn` is held while a large message is copied.
    """

    preprocessor: Preprocessor
    transports: Transports
    config: Config
    translator: Translator
    unsent: ByteBudget
    status: Callable[[BaseException], status_pb2.Status]
    finished: Callable[[Result | None, int], None]
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Stream:
    """One call of `remaining` seconds. `write` sends a serialized message once the transport takes it.

    Memory is bounded however slowly the client reads: unread tensors by `stream_bytes`, those of all
    streams together by `max_unsent_bytes`, requests by `stream_requests`; after `stream_stall` seconds
    without progress the call ends.
    """

    def __init__(
        self,
        tools: StreamTools,
        owner: Owner | None,
        write: Callable[[bytes], Awaitable[None]],
        remaining: float | None,
    ) -> None:
        self._tools = tools
        self._owner = owner
        self._write = write
        limit = tools.config.request_timeout
        self._timeout = limit if remaining is None else min(limit, remaining)
        self._budget = ByteBudget(tools.config.stream_bytes)
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(_QUEUE)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._scopes: dict[str, asyncio.Timeout] = {}
        self._cancelled: set[str] = set()
        self._closing = False
        self._draining = False
        self._idle = asyncio.Event()

    def drain(self) -> None:
        """Refuses new requests; the call ends when those in flight have."""
        self._draining = True
        self._end_if_idle()

    async def run(self, requests: AsyncIterator[bytes]) -> None:
        """Serves serialized messages until the client closes its side and every request has its answer."""
        async with asyncio.TaskGroup() as group:
            writer = group.create_task(self._send_all())
            reader = group.create_task(self._read_all(requests, group))
            await self._idle.wait()
            reader.cancel()
            await self._queue.put(None)
            await writer

    async def _read_all(self, requests: AsyncIterator[bytes], group: asyncio.TaskGroup) -> None:
        async for data in requests:
            key = ""
            try:
                message = await self._tools.translator.parse_action(data)
                key = message.request_id
                self._take(message, len(data), group)
            except errors.PatchloomError as error:
                await self._queue.put(events.failed(key, self._tools.status(error)))
        self._closing = True
        self._end_if_idle()

    def _take(self, message: pb.PreprocessStreamRequest, size: int, group: asyncio.TaskGroup) -> None:
        key = message.request_id
        if not key:
            raise errors.InvalidMessage("missing; every message names its request", "request_id")
        if len(key) > _MOST_ID:
            raise errors.InvalidMessage(
                f"{len(key)} characters; at most {_MOST_ID} are allowed", "request_id"
            )
        match message.WhichOneof("action"):
            case "cancel":
                self._cancel(key)
            case "start":
                self._check_room(key)
                self._running[key] = group.create_task(self._serve(key, message, size))
            case _:
                raise errors.InvalidMessage("missing action; set start or cancel", "action")

    def _check_room(self, key: str) -> None:
        if key in self._running:
            raise errors.DuplicateRequest(
                "this id is in flight; the request in flight goes on, send this one under another id",
                "request_id",
            )
        if self._draining:
            raise errors.Draining("the server is shutting down; try another")
        if len(self._running) >= self._tools.config.stream_requests:
            raise errors.QueueFull(
                f"{len(self._running)} requests are in flight on this stream", retry_after=0.1
            )

    def _cancel(self, key: str) -> None:
        """Ends the time of a request; one that ended already stays as it is."""
        if key in self._running:
            self._cancelled.add(key)
        if (scope := self._scopes.pop(key, None)) is not None:
            scope.reschedule(asyncio.get_running_loop().time())

    async def _serve(self, key: str, message: pb.PreprocessStreamRequest, size: int) -> None:
        status = status_pb2.Status()
        result: Result | None = None
        try:
            async with self._scope(key, message):
                with self._tools.preprocessor.admitted():
                    result = await self._answer(key, message.start, size)
        except Exception as error:  # noqa: BLE001 - every failure becomes the answer of its request
            over = isinstance(error, TimeoutError) and key in self._cancelled
            status = self._tools.status(errors.Cancelled("cancelled by the client") if over else error)
        self._tools.finished(result, status.code)
        if status.code:
            await self._queue.put(events.failed(key, status))
        del self._running[key]
        self._cancelled.discard(key)
        self._end_if_idle()

    @asynccontextmanager
    async def _scope(self, key: str, message: pb.PreprocessStreamRequest) -> AsyncIterator[None]:
        """The time of a request: TimeoutError where it is over or was ended by a cancel."""
        seconds = read_seconds(message, "timeout")
        if key in self._cancelled:
            raise TimeoutError
        try:
            async with asyncio.timeout(
                self._timeout if seconds is None else min(seconds, self._timeout)
            ) as self._scopes[key]:
                yield
        finally:
            self._scopes.pop(key, None)

    def _end_if_idle(self) -> None:
        if (self._closing or self._draining) and not self._running:
            self._idle.set()

    async def _answer(self, key: str, request: pb.PreprocessRequest, size: int) -> Result:
        pipeline, translator = self._tools.preprocessor, self._tools.translator
        parsed = await translator.read(request, size)
        delivery = self._tools.transports.delivery(parsed.output, parsed.namespace, self._owner)
        sent = False
        try:
            prepared = await pipeline.prepare(parsed)
            counted = await translator.serialize(token_result(prepared), delivery)
            await self._queue.put(self._fitting(events.tokens_ready(key, counted)))
            room = pipeline.pixel_bytes(prepared)
            async with AsyncExitStack() as held:
                if parsed.output.transport is Transport.INLINE:
                    await self._hold(room, held)
                result = await pipeline.pixels(prepared, delivery)
                delivery.commit()
                if delivery.fell_back:
                    await self._hold(room, held)
                await self._deliver(key, result, delivery)
            sent = True
        finally:
            delivery.close(sent)
        return result

    async def _hold(self, size: int, held: AsyncExitStack) -> None:
        """Waits for room in the stream and in the server; what is larger than all of it goes alone."""
        config = self._tools.config
        await held.enter_async_context(self._budget.hold(min(size, config.stream_bytes)))
        await held.enter_async_context(self._tools.unsent.hold(min(size, config.max_unsent_bytes)))

    async def _deliver(self, key: str, result: Result, delivery: Delivery) -> None:
        config = self._tools.config
        size = min(config.chunk_bytes, config.max_message_bytes // 2)
        chunked: Sequence[tuple[str, Tensor]]
        response, chunked = await self._tools.translator.serialize_chunked(result, delivery, size)
        await self._queue.put(self._fitting(events.tensors_ready(key, response)))
        for name, tensor in chunked:
            for chunk in events.chunks(key, name, tensor, size):
                await self._queue.put(chunk)

    def _fitting(self, message: bytes) -> bytes:
        """The message, which gRPC would end the whole stream for if it were too large."""
        check_answer(message, self._tools.config)
        return message

    async def _send_all(self) -> None:
        while (message := await self._queue.get()) is not None:
            try:
                async with asyncio.timeout(self._tools.config.stream_stall):
                    await self._send(message)
            except TimeoutError as error:
                raise errors.DeadlineExceeded(
                    f"the client read nothing for {self._tools.config.stream_stall:g} s"
                ) from error

    async def _send(self, message: bytes) -> None:
        """Writes a message. Of large ones, which gRPC copies at once, a round of the event loop takes one."""
        if len(message) < _LARGE:
            await self._write(message)
            return
        async with self._tools.turn:
            writing = asyncio.ensure_future(self._write(message))
            try:
                await asyncio.sleep(0)  # its first step is the copy
            except BaseException:
                writing.cancel()
                raise
        await writing
