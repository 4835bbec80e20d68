"""Whatever a status holds, a typed error comes of it."""

import pytest
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from patchloom_client import errors
from patchloom_client.status import error_from_status


@pytest.mark.parametrize("code", [99, -5, 17])
def test_a_code_that_grpc_does_not_have_is_internal(code):
    error = error_from_status(status_pb2.Status(code=code, message="what"))
    assert (type(error), error.message) == (errors.Internal, "what")


def test_details_that_cannot_be_read_are_passed_over():
    details = [
        any_pb2.Any(type_url=f"type.googleapis.com/google.rpc.{name}", value=b"\xff\xff")
        for name in ("ErrorInfo", "ResourceInfo", "RetryInfo", "BadRequest", "Unknown")
    ]
    status = status_pb2.Status(code=code_pb2.RESOURCE_EXHAUSTED, message="full", details=details)
    error = error_from_status(status)
    assert (type(error), error.message, error.retry_after) == (errors.ResourceExhausted, "full", None)


@pytest.mark.parametrize("seconds", [0, 3, -(2**63), 2**63 - 1])
def test_a_time_of_any_size_is_read(seconds):
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=seconds)))
    status = status_pb2.Status(code=code_pb2.RESOURCE_EXHAUSTED, details=[detail])
    assert error_from_status(status).retry_after == pytest.approx(seconds)
