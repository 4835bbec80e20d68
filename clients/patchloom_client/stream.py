"""Many requests in flight over one call: tokens first, tensors after; a broken call is opened again."""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import grpc
from patchloom_proto import preprocess_pb2 as pb

from patchloom_client import errors
from patchloom_client.assembly import Assembly, Bytes, Chunk, Event, read_event
from patchloom_client.retry import Retry
from patchloom_client.status import error_from_status, typed_error
from patchloom_client.tensors import Response, read_response

_GRACE = 1.0  # seconds that the server has to say itself that a request's time is over, or what it takes
_LONGEST = 1e8  # seconds, within what gRPC's clock holds
_SURE_BYTES = 64 << 10  # of a message that every server takes
LIMIT_KEY = "patchloom-max-message-bytes"
"""Metadata at the beginning of a stream that says the server's bound of a message."""

Read = Callable[[pb.PreprocessResponse, Mapping[str, Bytes]], Response]


def check_size(size: int, most: int) -> None:
    """MessageTooLarge, with both numbers, where a message does not fit the limit of the connection."""
    if size > most:
        raise errors.MessageTooLarge(
            f"the request has {size} bytes; at most {most} are allowed, raise max_message_bytes on both sides"
        )


def seconds_allowed(timeout: float | None) -> float | None:
    """The timeout of a call, None for one of years; InvalidMessage where no call can end within it."""
    if timeout is not None and not timeout > 0:
        raise errors.InvalidMessage(f"a call takes more than {timeout} seconds", "timeout")
    return None if timeout is None or timeout > _LONGEST else timeout


def own_cancel() -> bool:
    """Whether the CancelledError at hand is of the current task, not of a call that gRPC cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Call:
    """One request of a stream. Ids of `tokens` are provisional until `response` is there."""

    def __init__(self, stream: "Stream", request_id: str, request: pb.PreprocessRequest) -> None:
        loop = asyncio.get_running_loop()
        self.request_id = request_id
        self.request = request
        self.deadline: float | None = None
        self.tries = 0
        self.sends = 0
        self._stream = stream
        self._tokens: asyncio.Future[Response] = loop.create_future()
        self._response: asyncio.Future[Response] = loop.create_future()
        self._assembly = Assembly()

    @property
    def done(self) -> bool:
        """Whether the response or an error is there."""
        return self._response.done()

    def at_end(self, then: Callable[[], object]) -> None:
        """Calls `then` once the response or an error is there."""
        self._response.add_done_callback(lambda _: then())

    async def tokens(self) -> Response:
        """Ids and items without tensors, before any pixel is computed."""
        return await asyncio.shield(self._tokens)

    async def response(self) -> Response:
        """The whole response, which owns its lease. Cancelling the wait does not cancel the request."""
        return await asyncio.shield(self._response)

    def cancel(self) -> None:
        """Takes the request back; `response` raises Cancelled unless it is there already."""
        self._stream.cancel(self)

    def succeed_tokens(self, message: pb.PreprocessResponse) -> None:
        """Tokens are ready."""
        if not self._tokens.done():
            self._tokens.set_result(read_response(message))

    def announce(self, message: pb.PreprocessResponse) -> None:
        """Tensors are ready, or follow in chunks."""
        self._assembly.announce(message)

    def add(self, chunk: Chunk) -> None:
        """A piece of a chunked tensor."""
        self._assembly.add(chunk)

    def complete(self, read: Read) -> bool:
        """Sets the response if its last byte is there."""
        message = self._assembly.announced
        if message is None or not self._assembly.complete:
            return False
        try:
            response = read(message, self._assembly.content)
        except errors.PatchloomError as error:
            self.fail(error)
            return True
        if self._response.done():
            response.close()
        else:
            if not self._tokens.done():
                self.succeed_tokens(_without_tensors(message))
            self._response.set_result(response)
        return True

    def fail(self, error: errors.PatchloomError) -> None:
        """Ends the request with an error."""
        for future in (self._tokens, self._response):
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever waits gets it; nobody has to

    def reset(self) -> None:
        """Forgets what a broken call had sent."""
        self._assembly = Assembly()


class Stream:
    """The requests in flight to one server.

    Requests that a broken call leaves without an answer are sent again, since they change nothing on the
    server; those that a full server refuses are sent again after the time that it names. `retry` bounds
    both.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        read: Read,
        retry: Retry,
        timeout: float | None,
        max_message_bytes: int,
        hurry: Callable[[], None],
    ) -> None:
        """`hurry` is called before every request: it may need memory that waits to be given back."""
        self._connect = connect
        self._hurry = hurry
        self._read = read
        self._retry = retry
        self._timeout = timeout
        self._max_message_bytes = max_message_bytes
        self._ids = map(str, itertools.count(1))
        self._calls: dict[str, Call] = {}
        self._outbox: asyncio.Queue[pb.PreprocessStreamRequest] = asyncio.Queue()
        self._runner: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self, request: pb.PreprocessRequest, *, timeout: float | None = None) -> Call:
        """Sends a request, whose time runs from now. The request must not be changed before its answer."""
        if self._closed:
            raise errors.Cancelled("the stream was closed")
        seconds = seconds_allowed(self._timeout if timeout is None else timeout)
        call = Call(self, next(self._ids), request)
        check_size(request.ByteSize(), self._max_message_bytes)
        self._hurry()
        if seconds is not None:
            loop = asyncio.get_running_loop()
            call.deadline = loop.time() + seconds
            timer = loop.call_at(call.deadline + _GRACE, self._expire, call)
            call.at_end(timer.cancel)  # or the timer would hold the response
        self._calls[call.request_id] = call
        self._send(call)
        return call

    async def preprocess(self, request: pb.PreprocessRequest, *, timeout: float | None = None) -> Response:
        """The whole response of one request; cancelling the wait cancels the request."""
        call = await self.start(request, timeout=timeout)
        try:
            return await call.response()
        except asyncio.CancelledError:
            call.cancel()
            raise

    def cancel(self, call: Call) -> None:
        """See Call.cancel."""
        if self._calls.pop(call.request_id, None) is None:
            return
        call.fail(errors.Cancelled("cancelled"))
        message = pb.PreprocessStreamRequest(request_id=call.request_id)
        message.cancel.SetInParent()
        self._outbox.put_nowait(message)

    async def close(self) -> None:
        """Cancels what is in flight and ends the call; nothing can be started any more."""
        self._closed = True
        for call in list(self._calls.values()):
            call.fail(errors.Cancelled("the stream was closed"))
        self._calls.clear()
        tasks = [task for task in (self._runner, *self._tasks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._runner = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _send(self, call: Call) -> None:
        message = pb.PreprocessStreamRequest(request_id=call.request_id, start=call.request)
        if call.deadline is not None:
            left = max(call.deadline - asyncio.get_running_loop().time(), 0.001)
            message.timeout.FromNanoseconds(int(left * 1e9))
        call.sends += 1
        self._outbox.put_nowait(message)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())

    def _expire(self, call: Call) -> None:
        if self._calls.pop(call.request_id, None) is not None:
            call.fail(errors.DeadlineExceeded("the server did not answer in time"))

    async def _run(self) -> None:
        """Keeps a call open while requests are in flight; whatever ends it, none of them waits for ever."""
        try:
            while self._calls:
                await self._recover(await self._read_all())
        except BaseException as error:
            self._fail_all(errors.Internal(f"the client failed: {error!r}"))
            raise

    async def _read_all(self) -> errors.PatchloomError:
        """Serves one call and returns what ended it."""
        try:
            connection = self._connect()
        except grpc.aio.UsageError:
            return errors.Cancelled("the client was closed")
        writer = asyncio.create_task(self._write_all(connection))
        try:
            async for message in connection:
                self._take(read_event(message))
        except grpc.aio.AioRpcError as error:
            return typed_error(error)
        except errors.PatchloomError as error:  # what came cannot be read
            return error
        except asyncio.CancelledError:
            if own_cancel():
                raise
            return errors.Cancelled("the client was closed")
        finally:
            writer.cancel()
            connection.cancel()
        return errors.Unavailable("the server closed the stream")

    def _fail_all(self, error: errors.PatchloomError) -> None:
        for call in self._calls.values():
            call.fail(error)
        self._calls.clear()

    async def _write_all(self, connection: Any) -> None:
        most: int | None = None
        while True:
            message = await self._outbox.get()
            data = message.SerializeToString()
            try:
                if len(data) > _SURE_BYTES:
                    most = await self._most_bytes(connection) if most is None else most
                    check_size(len(data), most)
                await connection.write(data)
            except errors.MessageTooLarge as error:
                if (call := self._calls.pop(message.request_id, None)) is not None:
                    call.fail(error)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return  # the reader sees the same failure and sends everything again

    async def _most_bytes(self, connection: Any) -> int:
        """The server's bound of a message; for a larger one gRPC would end the call with all its requests."""
        try:
            metadata = await asyncio.wait_for(connection.initial_metadata(), _GRACE)
        except TimeoutError:
            return self._max_message_bytes
        said = dict(metadata).get(LIMIT_KEY, "")
        return int(said) if said.isdecimal() else self._max_message_bytes

    async def _recover(self, failure: errors.PatchloomError) -> None:
        """Prepares the next call, or fails what has no tries left."""
        delays = [0.0]
        for call in list(self._calls.values()):
            call.tries += 1
            delay = self._retry.delay(failure, call.tries)
            if delay is None:
                del self._calls[call.request_id]
                call.fail(failure)
            else:
                delays.append(delay)
        await asyncio.sleep(max(delays))
        while not self._outbox.empty():
            self._outbox.get_nowait()
        for call in self._calls.values():
            call.reset()
            self._send(call)

    def _take(self, message: Event) -> None:
        if not message.request_id and not isinstance(message, Chunk) and message.HasField("error"):
            raise error_from_status(message.error)  # a message of ours that the server could not read
        call = self._calls.get(message.request_id)
        if call is None:
            self._discard(message)
            return
        try:
            ended = self._hand(call, message)
        except errors.PatchloomError as error:
            call.fail(error)
            ended = True
        if ended:
            self._calls.pop(call.request_id, None)

    def _hand(self, call: Call, message: Event) -> bool:
        """Hands an event to its call and returns whether that ended the call."""
        if isinstance(message, Chunk):
            call.add(message)
        else:
            match message.WhichOneof("event"):
                case "tokens_ready":
                    call.succeed_tokens(message.tokens_ready)
                    return False
                case "tensors_ready":
                    call.announce(message.tensors_ready)
                case "error":
                    return self._failed(call, error_from_status(message.error))
        return call.complete(self._read)

    def _discard(self, message: Event) -> None:
        """Gives back the lease of a response that nobody waits for any more."""
        if not isinstance(message, Chunk) and message.WhichOneof("event") == "tensors_ready":
            response = message.tensors_ready
            for name in [n for n, d in response.tensors.items() if d.WhichOneof("payload") == "chunked"]:
                del response.tensors[name]
            try:
                self._read(response, {}).close()
            except errors.PatchloomError:
                return  # reading gave the lease back

    def _failed(self, call: Call, error: errors.PatchloomError) -> bool:
        """Tries the call again where that may help, and returns whether it ended."""
        if isinstance(error, errors.DuplicateRequest):
            return False  # of a second message; the request in flight goes on
        call.tries += 1
        delay = self._retry.delay(error, call.tries)
        if delay is None:
            call.fail(error)
            return True
        task = asyncio.create_task(self._send_later(call, call.sends, delay))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return False

    async def _send_later(self, call: Call, sends: int, delay: float) -> None:
        await asyncio.sleep(delay)
        if call.request_id in self._calls and call.sends == sends:  # a broken call sends everything again
            call.reset()
            self._send(call)


def _without_tensors(response: pb.PreprocessResponse) -> pb.PreprocessResponse:
    message = pb.PreprocessResponse()
    message.CopyFrom(response)
    message.ClearField("tensors")
    return message
