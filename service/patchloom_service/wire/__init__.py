"""Protobuf to values and back: nothing behind this package sees a message of the contract."""

from patchloom_service.wire.carry import (
    Carry,
    carry_apart,
    carry_chunked,
    carry_handles,
    carry_inline,
)
from patchloom_service.wire.read import (
    LEASE_SECONDS_MAX,
    read_lease,
    read_lease_time,
    read_request,
    read_seconds,
)
from patchloom_service.wire.write import (
    serialize_chunked,
    serialize_response,
    write_message,
    write_model,
    write_response,
)

__all__ = [
    "LEASE_SECONDS_MAX",
    "Carry",
    "carry_apart",
    "carry_chunked",
    "carry_handles",
    "carry_inline",
    "read_lease",
    "read_lease_time",
    "read_request",
    "read_seconds",
    "serialize_chunked",
    "serialize_response",
    "write_message",
    "write_model",
    "write_response",
]
