"""The gRPC methods: requests in, responses or typed errors out. Nothing behind this file knows gRPC."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status
from patchloom_proto import preprocess_pb2 as pb
from patchloom_proto import preprocess_pb2_grpc as rpc

from patchloom_service import errors
from patchloom_service.answer import token_result
from patchloom_service.budget import ByteBudget
from patchloom_service.config import Config
from patchloom_service.metrics import Metrics
from patchloom_service.preprocessor import Preprocessor
from patchloom_service.result import Result
from patchloom_service.stream import Stream, StreamTools
from patchloom_service.transport.leases import LeaseKey, Owner
from patchloom_service.transport.transports import Delivery, Transports
from patchloom_service.types import Request, Transport
from patchloom_service.wire import (
    read_lease,
    read_lease_time,
    read_request,
    serialize_response,
    write_model,
    write_response,
)
from patchloom_service.wire.translator import Translator, check_answer

log = logging.getLogger("patchloom")
_T = TypeVar("_T")

STATUS: dict[type[errors.PatchloomError], grpc.StatusCode] = {
    errors.InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Cancelled: grpc.StatusCode.CANCELLED,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.Unimplemented: grpc.StatusCode.UNIMPLEMENTED,
    errors.Internal: grpc.StatusCode.INTERNAL,
}
DOMAIN = "patchloom"
LIMIT_KEY = "patchloom-max-message-bytes"
"""Metadata at the beginning of a stream: for a larger message gRPC ends the stream with all its requests."""
CALL_KEY = "patchloom-call"
"""Metadata by which a caller names a Preprocess call, to give back a lease that it was not told of."""
OWNER_KEY = "patchloom-owner"
"""Metadata by which a caller of this host names its process: <pid>.<start time>.<pid namespace>."""

# A status travels as trailing metadata, three times with its text, escaped and in base64; gRPC's C core
# refuses more than 8 KiB unless it is told otherwise.
_TEXT_BYTES = 700
_PATH_BYTES = 200

_MOST_LEASES = 1 << 14  # of one call, which the event loop reads at once

_INTERNAL_TEXT = "internal error; the server's log has the details"


def status_code(error: errors.PatchloomError) -> grpc.StatusCode:
    """The status of an error: that of its class, else of the nearest base."""
    return next(STATUS[base] for base in type(error).__mro__ if base in STATUS)


def rich_status(error: errors.PatchloomError) -> status_pb2.Status:
    """The error as google.rpc.Status with ErrorInfo, BadRequest and RetryInfo details."""
    path, text = _cut(error.field_path, _PATH_BYTES), _cut(error.message, _TEXT_BYTES)
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    info.metadata["field_path"] = path
    info.metadata["message"] = text
    details: list[Any] = [info]
    if path:
        violation = error_details_pb2.BadRequest.FieldViolation(field=path, description=text)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, errors.ContentKeyNotFound):
        details.extend(
            error_details_pb2.ResourceInfo(resource_type="content_key", resource_name=key)
            for key in error.keys
        )
    if isinstance(error, errors.ResourceExhausted) and error.retry_after is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    packed = []
    for detail in details:
        message = any_pb2.Any()
        message.Pack(detail)
        packed.append(message)
    code = getattr(code_pb2, status_code(error).name)
    whole = _cut(f"{path}: {text}" if path else text, _TEXT_BYTES)
    return status_pb2.Status(code=code, message=whole, details=packed)


def _cut(text: str, size: int) -> str:
    """The text, or its beginning in at most `size` bytes of UTF-8."""
    if len(text) <= size and len(encoded := text.encode("utf-8", "replace")) <= size:
        return encoded.decode("utf-8")
    return text[:size].encode("utf-8", "replace")[: size - 3].decode("utf-8", "ignore") + "..."


class _Handlers:
    """Takes the method handlers that generated code would give to a server."""

    def __init__(self) -> None:
        self.by_method: dict[str, grpc.RpcMethodHandler] = {}

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """The same handlers, for servers that know no others."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """By name of the method."""
        self.by_method.update(handlers)


def add_to_server(servicer: "PreprocessServicer", server: grpc.aio.Server) -> None:
    """Registers all methods; those of Preprocess and PreprocessStream take and answer bytes.

    Parsing or serializing hundreds of megabytes on the event loop would stop it; workers do it.
    """
    handlers = _Handlers()
    rpc.add_PreprocessServiceServicer_to_server(servicer, handlers)
    handlers.by_method["Preprocess"] = grpc.unary_unary_rpc_method_handler(servicer.Preprocess)
    handlers.by_method["PreprocessStream"] = grpc.stream_stream_rpc_method_handler(servicer.PreprocessStream)
    service = pb.DESCRIPTOR.services_by_name["PreprocessService"].full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers.by_method),))
    server.add_registered_method_handlers(service, handlers.by_method)


class PreprocessServicer(rpc.PreprocessServiceServicer):
    """Serves one preprocessor. After `drain` new requests are refused as UNAVAILABLE."""

    def __init__(
        self, preprocessor: Preprocessor, transports: Transports, metrics: Metrics, config: Config
    ) -> None:
        self._preprocessor = preprocessor
        self._transports = transports
        self._metrics = metrics
        self._config = config
        self._timeout = config.request_timeout
        self._most_unsent = config.max_unsent_bytes
        self._unsent = ByteBudget(self._most_unsent)
        self._draining = False
        self._streams: set[Stream] = set()
        self._translator = Translator(config)
        self._stream_tools = StreamTools(
            preprocessor,
            transports,
            config,
            self._translator,
            self._unsent,
            lambda error: rich_status(typed(error, "PreprocessStream")),
            self._count_streamed,
        )

    def drain(self) -> None:
        """Refuses what comes from now on; streams end with the requests that they have in flight."""
        self._draining = True
        for stream in self._streams:
            stream.drain()

    async def Preprocess(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """The serialized pb.PreprocessResponse to a serialized pb.PreprocessRequest."""
        return await self._answer("Preprocess", context, lambda: self._preprocess(request, context))

    async def CountTokens(
        self, request: pb.CountTokensRequest, context: grpc.aio.ServicerContext
    ) -> pb.CountTokensResponse:
        return await self._answer("CountTokens", context, lambda: self._count(request))

    async def PreprocessStream(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> None:
        try:
            if self._draining:
                raise errors.Draining("the server is shutting down; try another")
            await _begin(context, self._config.max_message_bytes)
            write = partial(_write, context)
            stream = Stream(self._stream_tools, _caller(context)[0], write, context.time_remaining())
            self._streams.add(stream)
            try:
                await stream.run(requests)
            finally:
                self._streams.discard(stream)
        except Exception as error:  # noqa: BLE001
            failure = typed(error, "PreprocessStream")
            if context.done() or isinstance(failure, errors.Cancelled):
                return  # the client is gone: nobody is left to tell
        else:
            return
        await self._abort("PreprocessStream", context, failure)

    async def GetModel(
        self, request: pb.GetModelRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetModelResponse:
        async def get() -> pb.GetModelResponse:
            model = self._preprocessor.model(request.name)
            return pb.GetModelResponse(model=write_model(model, self._preprocessor.fingerprint(model)))

        return await self._answer("GetModel", context, get)

    async def ListModels(
        self, request: pb.ListModelsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListModelsResponse:
        async def list_models() -> pb.ListModelsResponse:
            served = self._preprocessor.models.values()
            models = [write_model(model, self._preprocessor.fingerprint(model)) for model in served]
            return pb.ListModelsResponse(models=models)

        return await self._answer("ListModels", context, list_models)

    async def ReleaseTensors(
        self, request: pb.ReleaseTensorsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ReleaseTensorsResponse:
        async def release() -> pb.ReleaseTensorsResponse:
            _check_count(request.calls, "calls")
            released = self._transports.release_calls(request.calls)
            released += self._transports.release(_lease_keys(request.leases))
            return pb.ReleaseTensorsResponse(released=released)

        return await self._answer("ReleaseTensors", context, release)

    async def RenewLeases(
        self, request: pb.RenewLeasesRequest, context: grpc.aio.ServicerContext
    ) -> pb.RenewLeasesResponse:
        async def renew() -> pb.RenewLeasesResponse:
            response = pb.RenewLeasesResponse()
            seconds = read_lease_time(request, "lease_time")
            expires = self._transports.renew(_lease_keys(request.leases), seconds)
            response.expires.FromNanoseconds(int(expires * 1e9))
            return response

        return await self._answer("RenewLeases", context, renew)

    async def _preprocess(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        with self._preprocessor.admitted():
            parsed = await self._translator.parse(request)
            return await self._respond(parsed, context)

    async def _respond(self, parsed: Request, context: grpc.aio.ServicerContext) -> bytes:
        owner, call = _caller(context)
        delivery = self._transports.delivery(parsed.output, parsed.namespace, owner, call)
        shared = parsed.output.transport is Transport.SHARED_MEMORY
        sent = False
        try:
            if shared:
                written = partial(_written, delivery)
                prepared, done = await self._preprocessor.begin(parsed, delivery, written)
            else:
                prepared, done = await self._preprocessor.prepare(parsed), None
            if parsed.output.transport is Transport.INLINE:
                await self._hold_until_sent(self._preprocessor.pixel_bytes(prepared), context)
            result, response = done or (await self._preprocessor.pixels(prepared, delivery), None)
            self._count_stages(result)
            if response is None:
                delivery.commit()
                if delivery.fell_back:
                    await self._hold_until_sent(self._preprocessor.pixel_bytes(prepared), context)
                response = await self._translator.serialize(result, delivery)
            check_answer(response, self._config)
            sent = True
        finally:
            delivery.close(sent)
        return response

    async def _hold_until_sent(self, size: int, context: grpc.aio.ServicerContext) -> None:
        """Waits until unsent responses leave room for one more, in gRPC's memory and in ours.

        The room is given back when the response was sent or the time of its request is over.
        """
        held = min(2 * size, self._most_unsent)
        await self._unsent.take(held)

        def give(_: object = None) -> None:
            if not timer.cancelled():
                timer.cancel()
                self._unsent.give(held)

        timer = asyncio.get_running_loop().call_later(self._seconds(context), give)
        context.add_done_callback(give)

    def _seconds(self, context: grpc.aio.ServicerContext) -> float:
        """What a call has left of its time."""
        remaining = context.time_remaining()
        return self._timeout if remaining is None else min(remaining, self._timeout)

    async def _count(self, request: pb.CountTokensRequest) -> pb.CountTokensResponse:
        with self._preprocessor.admitted():
            parsed = await asyncio.to_thread(read_request, request.request, limits=self._config)
            result = token_result(await self._preprocessor.prepare(parsed))
        self._count_stages(result)
        return pb.CountTokensResponse(response=await asyncio.to_thread(write_response, result))

    def _count_streamed(self, result: Result | None, status: int) -> None:
        if result is not None:
            self._count_stages(result)
        code = code_pb2.Code.Name(status)
        self._metrics.add("patchloom_requests_total", method="PreprocessStream", code=code)

    def _count_stages(self, result: Result) -> None:
        for stage, ms in result.timings_ms.items():
            self._metrics.add("patchloom_stage_seconds_total", ms / 1000, stage=stage)
        for name in ("decodes", "renders", "cache_hits", "cache_misses"):
            self._metrics.add(f"patchloom_{name}_total", getattr(result.counters, name))

    async def _answer(
        self, method: str, context: grpc.aio.ServicerContext, work: Callable[[], Awaitable[_T]]
    ) -> _T:
        """The one place where errors become statuses."""
        try:
            if self._draining:
                raise errors.Draining("the server is shutting down; try another")
            async with asyncio.timeout(self._seconds(context)):
                answer = await work()
        except Exception as error:  # noqa: BLE001
            failure = typed(error, method)
        else:
            self._metrics.add("patchloom_requests_total", method=method, code="OK")
            return answer
        await self._abort(method, context, failure)

    async def _abort(
        self, method: str, context: grpc.aio.ServicerContext, error: errors.PatchloomError
    ) -> NoReturn:
        self._metrics.add("patchloom_requests_total", method=method, code=status_code(error).name)
        await context.abort_with_status(rpc_status.to_status(rich_status(error)))
        raise AssertionError("abort never returns")


def _written(delivery: Delivery, result: Result) -> tuple[Result, bytes | None]:
    """The result with its response; without one where tensors fell back to it and have to wait for room."""
    if delivery.fell_back:
        return result, None
    delivery.commit()
    return result, serialize_response(result, delivery.handle)


@contextmanager
def _to_client() -> Iterator[None]:
    try:
        yield
    except grpc.aio.BaseError as error:
        raise errors.Cancelled("the client went away") from error


async def _begin(context: grpc.aio.ServicerContext, max_message_bytes: int) -> None:
    with _to_client():
        await context.send_initial_metadata(((LIMIT_KEY, str(max_message_bytes)),))


async def _write(context: grpc.aio.ServicerContext, message: bytes) -> None:
    with _to_client():
        await context.write(message)


def typed(error: BaseException, method: str) -> errors.PatchloomError:
    """The typed error that a caller sees; what is not typed is our own fault and goes to the log."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, errors.PatchloomError):
        return error
    if isinstance(error, TimeoutError):
        return errors.DeadlineExceeded("the time for the request is over")
    log.error("%s failed", method, exc_info=error)
    return errors.Internal(_INTERNAL_TEXT)


def _check_count(given: Sequence[object], path: str) -> None:
    if len(given) > _MOST_LEASES:
        raise errors.LimitExceeded(f"{len(given)} in one call; at most {_MOST_LEASES} are allowed", path)


def _lease_keys(leases: Sequence[pb.Lease]) -> list[LeaseKey]:
    _check_count(leases, "leases")
    return [read_lease(lease) for lease in leases]


def _caller(context: grpc.aio.ServicerContext) -> tuple[Owner | None, str]:
    """Who will hold the leases of this call, and the call's name, where the caller says so."""
    owner, call = None, ""
    for key, value in context.invocation_metadata() or ():
        if key == OWNER_KEY:
            owner = Owner.parse(value)
        elif key == CALL_KEY:
            call = str(value)
    return owner, call
