"""What a failed call or a stream's error says, as the client's typed errors."""

from typing import Any

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from patchloom_client import errors


def typed_error(error: grpc.aio.AioRpcError, limit: float | None = None) -> errors.PatchloomError:
    """The typed error of a failed call that had `limit` seconds."""
    try:
        status = rpc_status.from_call(error)
    except (DecodeError, ValueError):  # gRPC itself gave another code, and its own text counts
        status = None
    name = error.code().name
    if status is None:
        text = error.details() or name
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            text = f"no answer from the server; is it running at this address? ({text})"
        elif error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and limit is not None:
            text = f"no answer within {limit:g} s"
        return errors.error_class("", name)(text)
    return error_from_status(status, name)


def error_from_status(status: status_pb2.Status, name: str = "") -> errors.PatchloomError:
    """The typed error of a google.rpc.Status; `name` is its code's, by default the one in it.

    Internal for a code that gRPC does not have; details that cannot be read are passed over.
    """
    name = name or (code_pb2.Code.Name(status.code) if status.code in code_pb2.Code.values() else "INTERNAL")
    info = error_details_pb2.ErrorInfo()
    keys: list[str] = []
    retry_after: float | None = None
    for detail in status.details:
        if (found := _unpacked(detail, error_details_pb2.ErrorInfo)) is not None:
            info = found
        elif (resource := _unpacked(detail, error_details_pb2.ResourceInfo)) is not None:
            keys.append(resource.resource_name)
        elif (retry := _unpacked(detail, error_details_pb2.RetryInfo)) is not None:
            retry_after = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    kind = errors.error_class(info.reason, name)
    message, path = info.metadata["message"] or status.message, info.metadata["field_path"]
    if issubclass(kind, errors.ContentKeyNotFound):
        return kind(message, path, tuple(keys))
    if issubclass(kind, errors.ResourceExhausted):
        return kind(message, path, retry_after)
    return kind(message, path)


def _unpacked(detail: any_pb2.Any, kind: Any) -> Any:
    message = kind()
    try:
        return message if detail.Unpack(message) else None
    except DecodeError:
        return None
