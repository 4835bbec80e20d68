"""The stream: many requests in flight over one call, tokens first, tensors after; an error ends its own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass

from google.rpc import status_pb2
from patchloom_proto import preprocess_pb2 as pb

from patchloom_service import errors
from patchloom_service.budget import ByteBudget
from patchloom_service.config import Config
from patchloom_service.preprocessor import Preprocessor
from patchloom_service.result import Result, Tensor
from patchloom_service.transport.leases import Owner
from patchloom_service.transport.transports import Delivery, Transports
from patchloom_service.types import Transport
from patchloom_service.wire import (
    carry_chunked,
    carry_handles,
    chunks_of,
    read_request,
    read_seconds,
    write_response,
)

_QUEUE = 8  # messages between the requests and the writer


@dataclass(frozen=True, slots=True)
class StreamTools:
    """What a stream shares with the rest of the server.

    `status` makes the google.rpc.Status of an error; `finished` is told each request's result, if it has
    one, and the number of its status code.
    """

    preprocessor: Preprocessor
    transports: Transports
    config: Config
    status: Callable[[BaseException], status_pb2.Status]
    finished: Callable[[Result | None, int], None]


class Stream:
    """One call. `write` sends a message once the transport takes it; `remaining` is the call's time.

    Memory is bounded however slowly the client reads: unread tensors by `stream_bytes`, requests by
    `stream_requests`; after `stream_stall` seconds without progress the call ends.
    """

    def __init__(
        self,
        tools: StreamTools,
        owner: Owner | None,
        write: Callable[[pb.PreprocessStreamResponse], Awaitable[None]],
        remaining: float | None,
    ) -> None:
        self._tools = tools
        self._owner = owner
        self._write = write
        limit = tools.config.request_timeout
        self._timeout = limit if remaining is None else min(limit, remaining)
        self._budget = ByteBudget(tools.config.stream_bytes)
        self._queue: asyncio.Queue[pb.PreprocessStreamResponse | None] = asyncio.Queue(_QUEUE)
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

    async def run(self, requests: AsyncIterator[pb.PreprocessStreamRequest]) -> None:
        """Serves until the client closes its side and every request has its answer."""
        async with asyncio.TaskGroup() as group:
            writer = group.create_task(self._send_all())
            reader = group.create_task(self._read_all(requests, group))
            await self._idle.wait()
            reader.cancel()
            await self._queue.put(None)
            await writer

    async def _read_all(
        self, requests: AsyncIterator[pb.PreprocessStreamRequest], group: asyncio.TaskGroup
    ) -> None:
        async for message in requests:
            try:
                self._take(message, group)
            except errors.PatchloomError as error:
                status = self._tools.status(error)
                await self._queue.put(
                    pb.PreprocessStreamResponse(request_id=message.request_id, error=status)
                )
        self._closing = True
        self._end_if_idle()

    def _take(self, message: pb.PreprocessStreamRequest, group: asyncio.TaskGroup) -> None:
        key = message.request_id
        if not key:
            raise errors.InvalidMessage("missing; every message names its request", "request_id")
        match message.WhichOneof("action"):
            case "cancel":
                self._cancel(key)
            case "start":
                self._check_room(key)
                self._running[key] = group.create_task(self._serve(key, message))
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

    async def _serve(self, key: str, message: pb.PreprocessStreamRequest) -> None:
        status = status_pb2.Status()
        result: Result | None = None
        try:
            async with self._scope(key, message):
                with self._tools.preprocessor.admitted():
                    result = await self._answer(key, message.start)
        except Exception as error:  # noqa: BLE001 - every failure becomes the answer of its request
            over = isinstance(error, TimeoutError) and key in self._cancelled
            status = self._tools.status(errors.Cancelled("cancelled by the client") if over else error)
        self._tools.finished(result, status.code)
        if status.code:
            await self._queue.put(pb.PreprocessStreamResponse(request_id=key, error=status))
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

    async def _answer(self, key: str, request: pb.PreprocessRequest) -> Result:
        pipeline = self._tools.preprocessor
        parsed = await asyncio.to_thread(read_request, request, limits=self._tools.config)
        delivery = self._tools.transports.delivery(parsed.output, parsed.namespace, self._owner)
        sent = False
        try:
            prepared = await pipeline.prepare(parsed)
            counted = await asyncio.to_thread(write_response, pipeline.tokens(prepared))
            await self._queue.put(pb.PreprocessStreamResponse(request_id=key, tokens_ready=counted))
            size = 0 if parsed.output.transport is not Transport.INLINE else pipeline.pixel_bytes(prepared)
            async with self._hold(size):
                result = await pipeline.pixels(prepared, delivery)
                delivery.commit()
                await self._deliver(key, result, delivery)
            sent = True
        finally:
            delivery.close(sent)
        return result

    def _hold(self, size: int) -> AbstractAsyncContextManager[None]:
        """A request larger than all that a stream may leave unread still goes, alone."""
        return self._budget.hold(min(size, self._tools.config.stream_bytes)) if size else nullcontext()

    async def _deliver(self, key: str, result: Result, delivery: Delivery) -> None:
        size = self._tools.config.chunk_bytes
        chunked: list[tuple[str, Tensor]] = []
        carry = carry_handles(delivery.handle, carry_chunked(chunked, size))
        response = await asyncio.to_thread(write_response, result, carry, delivery.fell_back)
        await self._queue.put(pb.PreprocessStreamResponse(request_id=key, tensors_ready=response))
        for name, tensor in chunked:
            for chunk in chunks_of(name, tensor, size):
                await self._queue.put(pb.PreprocessStreamResponse(request_id=key, chunk=chunk))

    async def _send_all(self) -> None:
        while (message := await self._queue.get()) is not None:
            try:
                async with asyncio.timeout(self._tools.config.stream_stall):
                    await self._write(message)
            except TimeoutError as error:
                raise errors.DeadlineExceeded(
                    f"the client read nothing for {self._tools.config.stream_stall:g} s"
                ) from error
            except Exception as error:
                raise errors.Cancelled("the client went away") from error
