"""Calls the service: an asynchronous client, and a synchronous one that runs it on a thread of its own."""

import asyncio
import concurrent.futures
import itertools
import json
import os
import secrets
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from patchloom_proto import preprocess_pb2 as pb

from patchloom_client import errors
from patchloom_client.assembly import Assembly, Chunk, read_event, start_message
from patchloom_client.releases import Given, Releases
from patchloom_client.retry import ONCE, Retry
from patchloom_client.shm import owner
from patchloom_client.status import error_from_status, typed_error
from patchloom_client.stream import Stream, check_size, own_cancel, seconds_allowed
from patchloom_client.tensors import Response, read_response

_T = TypeVar("_T")

__all__ = ["MAX_MESSAGE_BYTES", "AsyncClient", "Client", "error_from_status", "typed_error"]

OWNER_KEY = "patchloom-owner"
"""Metadata that names this process, so that the server sees when it dies."""

CALL_KEY = "patchloom-call"
"""Metadata that names a call whose answer may have a lease, so that it can be given back unheard of."""

_FLUSH_SECONDS = 2.0
_MOST_BYTES = (1 << 31) - 1  # that gRPC can be told
_FRAME_BYTES = 4096  # around a chunk of as many bytes as a message may have
_END_SECONDS = 1.0  # that a server has to end a call that it answered
_MAX_METADATA_BYTES = 1 << 20  # an error that names hundreds of missing content keys; gRPC's default is 8 KiB

_INLINE = (pb.TRANSPORT_UNSPECIFIED, pb.TRANSPORT_INLINE)
_LEASED = (pb.TRANSPORT_SHARED_MEMORY, pb.TRANSPORT_CUDA_IPC)
_ELSEWHERE = ("url", "content_key")
_SMALL_BYTES = 16 << 10  # of a request whose media have small tensors, as far as one can tell
_SERVICE = pb.DESCRIPTOR.services_by_name["PreprocessService"].full_name
_ANSWERS: dict[str, Any] = {
    "Preprocess": pb.PreprocessResponse,
    "CountTokens": pb.CountTokensResponse,
    "ReleaseTensors": pb.ReleaseTensorsResponse,
    "RenewLeases": pb.RenewLeasesResponse,
    "GetModel": pb.GetModelResponse,
    "ListModels": pb.ListModelsResponse,
}

MAX_MESSAGE_BYTES = 1 << 30
"""Default bound of one message, both ways; the server has its own."""


class AsyncClient:
    """A connection to one server. Every method raises the typed errors of `patchloom_client.errors`.

    `address` is any target that gRPC resolves (host:port, dns:///name:port, ipv4:a:1,b:1);
    `load_balancing` is gRPC's policy over its addresses, pick_first or round_robin. Shared memory wants
    one server per client, since leases go back to the server that gave them: see `patchloom_client.fleet`.
    `retry` holds for unary calls; streams have their own. To be made on a running event loop.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        load_balancing: str = "pick_first",
        retry: Retry = ONCE,
    ) -> None:
        self.address = address
        self._max_message_bytes = max_message_bytes
        self._timeout = timeout
        self._retry = retry
        self._channel = grpc.aio.insecure_channel(
            address,
            options=[
                ("grpc.max_receive_message_length", min(max_message_bytes + _FRAME_BYTES, _MOST_BYTES)),
                ("grpc.max_send_message_length", max_message_bytes),
                ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
                ("grpc.service_config", json.dumps({"loadBalancingConfig": [{load_balancing: {}}]})),
            ],
        )
        method = f"/{_SERVICE}/PreprocessStream"
        # Answers as bytes: gRPC would pass on None for one that cannot be read.
        self._stream = self._channel.stream_stream(method)
        self._chunked = self._channel.unary_stream(method)  # a stream of one request
        # Requests as bytes: their size is to be known, and protobuf counts it by serializing them.
        self._unary = {
            name: self._channel.unary_unary(f"/{_SERVICE}/{name}", response_deserializer=answer.FromString)
            for name, answer in _ANSWERS.items()
        }
        holder = owner()
        self._metadata = grpc.aio.Metadata(*([(OWNER_KEY, holder)] if holder else []))
        self._releases = Releases(self._give_back)
        secret = secrets.token_hex(16)
        self._names = (f"{secret}.{number}" for number in itertools.count())
        self._closed = False
        self._ended = asyncio.Event()
        self._open: weakref.WeakSet[Any] = (
            weakref.WeakSet()
        )  # streams, which gRPC leaves open with its channel

    async def preprocess(self, request: pb.PreprocessRequest, timeout: float | None = None) -> Response:
        """Token ids and tensors of a request. The response owns its lease: close it after use."""
        if not isinstance(request, pb.PreprocessRequest):
            raise TypeError("expected a PreprocessRequest; patchloom_client.protocols reads what APIs take")
        self._releases.hurry()
        data = request.SerializeToString()
        check_size(len(data), self._max_message_bytes)
        if request.output.transport in _INLINE and _may_be_large(request, len(data)):
            return await self._tried(partial(self._in_chunks, data), timeout)
        name = next(self._names) if request.output.transport in _LEASED else ""
        try:
            message = await self._tried(partial(self._in_one, "Preprocess", data, name=name), timeout)
        except (asyncio.CancelledError, errors.DeadlineExceeded):
            if name:  # an answer may be on its way, with a lease that nobody will hear of
                self._releases.add(name)
            raise
        return read_response(message, release=self._releases.add)

    def stream(self, *, retry: Retry = Retry()) -> Stream:  # noqa: B008 - a frozen value
        """Many requests in flight over one call; an asynchronous context manager."""
        return Stream(
            lambda: self._kept(self._stream(metadata=self._metadata)),
            lambda message, chunks: read_response(message, chunks=chunks, release=self._releases.add),
            retry,
            self._timeout,
            self._max_message_bytes,
            self._releases.hurry,
        )

    async def release_leases(self, leases: Sequence[pb.Lease]) -> int:
        """Gives leases back and returns how many; StaleHandle where one ended before.

        Responses do it themselves when they are closed.
        """
        return await self._give_back(leases)

    async def renew_leases(self, leases: Sequence[pb.Lease], seconds: float | None = None) -> float:
        """Prolongs leases to `seconds` from now and returns when they end, in Unix time."""
        request = pb.RenewLeasesRequest(leases=leases)
        if seconds is not None:
            request.lease_time.FromNanoseconds(int(seconds * 1e9))
        answer = await self._call("RenewLeases", request, None)
        return float(answer.expires.ToNanoseconds() / 1e9)

    async def count_tokens(self, request: pb.PreprocessRequest, timeout: float | None = None) -> Response:
        """The same without tensors; nothing is decoded."""
        message = pb.CountTokensRequest(request=request)
        return read_response((await self._call("CountTokens", message, timeout)).response)

    async def get_model(self, name: str = "") -> pb.Model:
        """One served model."""
        answer: pb.GetModelResponse = await self._call("GetModel", pb.GetModelRequest(name=name), None)
        return answer.model

    async def list_models(self) -> tuple[pb.Model, ...]:
        """All served models."""
        return tuple((await self._call("ListModels", pb.ListModelsRequest(), None)).models)

    async def close(self) -> None:
        """Gives back the leases of closed responses and ends the connection; a second call does nothing.

        What is in flight raises Cancelled, and so does every later call.
        """
        if self._closed:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._releases.flush(), _FLUSH_SECONDS)
        self._closed = True
        self._ended.set()
        for call in list(self._open):
            call.cancel()
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(self, method: str, message: Any, timeout: float | None) -> Any:
        data = message.SerializeToString()
        check_size(len(data), self._max_message_bytes)
        return await self._tried(partial(self._in_one, method, data), timeout)

    async def _give_back(self, given: Sequence[Given]) -> int:
        request = pb.ReleaseTensorsRequest(
            leases=[own for own in given if isinstance(own, pb.Lease)],
            calls=[own for own in given if isinstance(own, str)],
        )
        return int((await self._call("ReleaseTensors", request, 10.0)).released)

    async def _in_one(self, method: str, data: bytes, limit: float | None, name: str = "") -> Any:
        metadata = grpc.aio.Metadata(*self._metadata, (CALL_KEY, name)) if name else self._metadata
        answer = await self._unary[method](data, timeout=limit, metadata=metadata)
        if answer is None:  # gRPC's word for a message that it cannot read
            raise errors.Internal("the server sent a message that cannot be read")
        return answer

    async def _in_chunks(self, data: bytes, limit: float | None) -> Response:
        """One request over a stream of its own: large tensors then come in pieces.

        In one message gRPC would hold each of them several times, on both sides.
        """
        assembly = Assembly()
        call = self._kept(self._chunked(start_message(data), timeout=limit, metadata=self._metadata))
        messages = aiter(call)
        try:
            async for message in messages:
                event = read_event(message)
                if isinstance(event, Chunk):
                    assembly.add(event)
                elif event.HasField("tensors_ready"):
                    assembly.announce(event.tensors_ready)
                elif event.HasField("error"):
                    raise error_from_status(event.error)
                if assembly.complete:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(call.code(), _END_SECONDS)
                    break
        finally:
            call.cancel()  # does nothing where it is over
            await messages.aclose()  # or call and generator would hold each other
        if assembly.announced is None or not assembly.complete:
            raise errors.Unavailable("the server ended the stream without an answer")
        return read_response(assembly.announced, chunks=assembly.content)

    def _kept(self, call: Any) -> Any:
        """The call of a stream, to be ended with the client."""
        self._open.add(call)
        return call

    async def _tried(self, call: Callable[[float | None], Awaitable[_T]], timeout: float | None) -> _T:
        """The result of a call that is told its seconds, made again as the client's `retry` says.

        All tries together take at most `timeout`, by default the client's.
        """
        limit = seconds_allowed(self._timeout if timeout is None else timeout)
        end = None if limit is None else time.monotonic() + limit
        left, tries = limit, 0
        while True:
            if self._closed:
                raise errors.Cancelled("the client was closed")
            try:
                return await call(left)
            except (grpc.aio.AioRpcError, errors.PatchloomError) as error:
                tries += 1
                failure = typed_error(error, limit) if isinstance(error, grpc.aio.AioRpcError) else error
                delay = self._retry.delay(failure, tries)
                left = None if end is None or delay is None else end - delay - time.monotonic()
                if delay is None or (left is not None and left <= 0):
                    raise failure from error
            except asyncio.CancelledError as error:
                if own_cancel() or not self._closed:
                    raise
                raise errors.Cancelled("the client was closed") from error
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), delay)


def _may_be_large(request: pb.PreprocessRequest, size: int) -> bool:
    """Whether the tensors may need chunks: media of many bytes, or that the server has or fetches itself."""
    messages = request.conversation.messages
    parts = chain(request.tokens.media, *(message.content for message in messages))
    media = [part for part in parts if part.HasField("image") or part.HasField("audio")]
    if size > _SMALL_BYTES:
        return bool(media)
    sources = [part.image.source if part.HasField("image") else part.audio.source for part in media]
    return any(source.WhichOneof("source") in _ELSEWHERE for source in sources)


class Client:
    """AsyncClient for code without an event loop: the same methods, blocking; safe from many threads.

    It belongs to the process that made it: FailedPrecondition in a child of it.
    """

    def __init__(
        self, address: str, *, timeout: float | None = None, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="patchloom-client", daemon=True)
        self._thread.start()
        self._client = self._run(_connect(address, timeout, max_message_bytes))

    def preprocess(self, request: pb.PreprocessRequest, timeout: float | None = None) -> Response:
        """See AsyncClient.preprocess."""
        return self._run(self._client.preprocess(request, timeout))

    def count_tokens(self, request: pb.PreprocessRequest, timeout: float | None = None) -> Response:
        """See AsyncClient.count_tokens."""
        return self._run(self._client.count_tokens(request, timeout))

    def release_leases(self, leases: Sequence[pb.Lease]) -> int:
        """See AsyncClient.release_leases."""
        return self._run(self._client.release_leases(leases))

    def renew_leases(self, leases: Sequence[pb.Lease], seconds: float | None = None) -> float:
        """See AsyncClient.renew_leases."""
        return self._run(self._client.renew_leases(leases, seconds))

    def get_model(self, name: str = "") -> pb.Model:
        """See AsyncClient.get_model."""
        return self._run(self._client.get_model(name))

    def list_models(self) -> tuple[pb.Model, ...]:
        """See AsyncClient.list_models."""
        return self._run(self._client.list_models())

    def close(self) -> None:
        """Ends the connection and the thread; a second call does nothing."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for work in (self._client.close(), _end_tasks()):
            asyncio.run_coroutine_threadsafe(work, self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        if os.getpid() != self._pid:  # the lock may be held by a thread that is not here
            work.close()
            raise errors.FailedPrecondition("the client is its parent process's; make one after the fork")
        with self._lock:
            if self._closed:
                work.close()
                raise errors.Cancelled("the client was closed")
            result = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return result.result()
        except concurrent.futures.CancelledError as error:
            raise errors.Cancelled("the client was closed") from error


async def _end_tasks() -> None:
    """Ends what gRPC has left on this loop, so that nothing is destroyed while it waits."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _connect(address: str, timeout: float | None, max_message_bytes: int) -> AsyncClient:
    return AsyncClient(address, timeout=timeout, max_message_bytes=max_message_bytes)
