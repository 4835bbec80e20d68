"""Calls the service: an asynchronous client, and a synchronous one that runs it on a thread of its own."""

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from patchloom_proto import preprocess_pb2 as pb
from patchloom_proto import preprocess_pb2_grpc as rpc

from patchloom_client import errors
from patchloom_client.tensors import Response, read_response

_T = TypeVar("_T")

MAX_MESSAGE_BYTES = 1 << 30
"""Default bound of one message, both ways; the server has its own."""


class AsyncClient:
    """A connection to one server. Every method raises the typed errors of `patchloom_client.errors`."""

    def __init__(
        self, address: str, *, timeout: float | None = None, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        self._timeout = timeout
        self._channel = grpc.aio.insecure_channel(
            address,
            options=[
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.max_send_message_length", max_message_bytes),
            ],
        )
        self._stub = rpc.PreprocessServiceStub(self._channel)

    async def preprocess(self, request: pb.PreprocessRequest, timeout: float | None = None) -> Response:
        """Token ids and tensors of a request."""
        return read_response(await self._call(self._stub.Preprocess, request, timeout))

    async def count_tokens(self, request: pb.PreprocessRequest, timeout: float | None = None) -> Response:
        """The same without tensors; nothing is decoded."""
        message = pb.CountTokensRequest(request=request)
        return read_response((await self._call(self._stub.CountTokens, message, timeout)).response)

    async def get_model(self, name: str = "") -> pb.Model:
        """One served model."""
        return (await self._call(self._stub.GetModel, pb.GetModelRequest(name=name), None)).model

    async def list_models(self) -> tuple[pb.Model, ...]:
        """All served models."""
        return tuple((await self._call(self._stub.ListModels, pb.ListModelsRequest(), None)).models)

    async def close(self) -> None:
        """Ends the connection."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(self, method: Any, message: Any, timeout: float | None) -> Any:
        try:
            return await method(message, timeout=self._timeout if timeout is None else timeout)
        except grpc.aio.AioRpcError as error:
            raise typed_error(error) from error


class Client:
    """AsyncClient for code without an event loop: the same methods, blocking. Safe to use from many threads."""

    def __init__(
        self, address: str, *, timeout: float | None = None, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
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

    def get_model(self, name: str = "") -> pb.Model:
        """See AsyncClient.get_model."""
        return self._run(self._client.get_model(name))

    def list_models(self) -> tuple[pb.Model, ...]:
        """See AsyncClient.list_models."""
        return self._run(self._client.list_models())

    def close(self) -> None:
        """Ends the connection and the thread; a second call does nothing."""
        if self._loop.is_closed():
            return
        self._run(self._client.close())
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
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _connect(address: str, timeout: float | None, max_message_bytes: int) -> AsyncClient:
    return AsyncClient(address, timeout=timeout, max_message_bytes=max_message_bytes)


def typed_error(error: grpc.aio.AioRpcError) -> errors.PatchloomError:
    """The typed error of a failed call."""
    status = rpc_status.from_call(error)
    name = error.code().name
    if status is None:
        return errors.error_class("", name)(error.details() or name)
    return error_from_status(status, name)


def error_from_status(status: Any, name: str) -> errors.PatchloomError:
    """The typed error of a google.rpc.Status; `name` is its code."""
    info = error_details_pb2.ErrorInfo()
    keys: list[str] = []
    for detail in status.details:
        resource = error_details_pb2.ResourceInfo()
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(resource.DESCRIPTOR):
            detail.Unpack(resource)
            keys.append(resource.resource_name)
    kind = errors.error_class(info.reason, name)
    message, path = info.metadata["message"] or status.message, info.metadata["field_path"]
    if issubclass(kind, errors.ContentKeyNotFound):
        return kind(message, path, tuple(keys))
    return kind(message, path)
