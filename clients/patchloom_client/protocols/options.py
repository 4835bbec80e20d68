"""Patchloom's own request options: the key "patchloom" of a body, and flags of the command line."""

import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.errors import InvalidMessage
from patchloom_client.protocols._json import json_object
from patchloom_client.protocols._parts import DETAILS, MAX_PIXELS
from patchloom_client.protocols._values import (
    boolean,
    integer,
    items,
    join,
    listed,
    mapping,
    shown,
    text,
    word,
)

_LITERALS = {
    "literal": pb.LITERAL_POLICY_LITERAL,
    "parse": pb.LITERAL_POLICY_PARSE,
    "reject": pb.LITERAL_POLICY_REJECT,
}
_TOOL_RESULTS = {
    "keep": pb.TOOL_RESULT_POLICY_KEEP,
    "hoist": pb.TOOL_RESULT_POLICY_HOIST,
    "reject": pb.TOOL_RESULT_POLICY_REJECT,
}
_PARITIES = {
    "aten_u8": pb.PARITY_ATEN_U8,
    "pillow12": pb.PARITY_PILLOW12,
    "pillow13": pb.PARITY_PILLOW13,
}
_DTYPES = {
    "float32": pb.DTYPE_FLOAT32,
    "bfloat16": pb.DTYPE_BFLOAT16,
    "float16": pb.DTYPE_FLOAT16,
    "fp32": pb.DTYPE_FLOAT32,
    "bf16": pb.DTYPE_BFLOAT16,
    "fp16": pb.DTYPE_FLOAT16,
}
_ENCODINGS = {"model": pb.ENCODING_MODEL, "uint8": pb.ENCODING_UINT8}
_TRANSPORTS = {
    "inline": pb.TRANSPORT_INLINE,
    "shared_memory": pb.TRANSPORT_SHARED_MEMORY,
    "cuda_ipc": pb.TRANSPORT_CUDA_IPC,
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_10000 = 253_402_300_800  # seconds; a Timestamp ends before it
_MAX_LEASE_SECONDS = 24 * 3600  # as the service

Setter = Callable[[pb.PreprocessRequest, object, str], None]


def apply_options(request: pb.PreprocessRequest, options: Mapping[str, Any], path: str = "patchloom") -> None:
    """Sets options on a request in place; null leaves an option as it is, template_kwargs are merged by key.

    The names are those of RenderOptions, ImageOptions, OutputOptions and expected_fingerprint. Raises
    InvalidMessage with the path of the option for an unknown name or a value that is not allowed.
    """
    for key, value in mapping(options, path).items():
        if key not in _SETTERS:
            raise InvalidMessage(f"unknown option; known are {listed(OPTIONS)}", join(path, key))
        if value is not None:
            _SETTERS[key](request, value, join(path, key))


def reasoning_effort(value: object, path: str) -> str:
    """A name, or a number in [0, 1] as text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 <= value <= 1:
            raise InvalidMessage("a reasoning effort is a name or a number from 0 to 1", path)
        return str(value)
    return text(value, path)


def _render_flag(name: str) -> Setter:
    return lambda request, value, path: setattr(request.render, name, boolean(value, path))


def _render_word(name: str, allowed: Mapping[str, Any]) -> Setter:
    return lambda request, value, path: setattr(request.render, name, word(value, path, allowed))


def _output_flag(name: str) -> Setter:
    return lambda request, value, path: setattr(request.output, name, boolean(value, path))


def _output_word(name: str, allowed: Mapping[str, Any]) -> Setter:
    return lambda request, value, path: setattr(request.output, name, word(value, path, allowed))


def _pixels(name: str) -> Setter:
    return lambda request, value, path: setattr(
        request.image_options, name, integer(value, path, 1, MAX_PIXELS)
    )


def _detail(request: pb.PreprocessRequest, value: object, path: str) -> None:
    request.image_options.detail = word(value, path, DETAILS)


def _template_kwargs(request: pb.PreprocessRequest, value: object, path: str) -> None:
    added = json.loads(json_object(value, path))
    merged = {**json.loads(request.render.template_kwargs or b"{}"), **added}
    request.render.template_kwargs = json_object(merged, path)


def _effort(request: pb.PreprocessRequest, value: object, path: str) -> None:
    request.render.reasoning_effort = reasoning_effort(value, path)


def _now(request: pb.PreprocessRequest, value: object, path: str) -> None:
    seconds = _epoch_seconds(value, path)
    whole = math.floor(seconds)
    nanos = min(round((seconds - whole) * 1e9), 999_999_999)
    request.render.now.CopyFrom(Timestamp(seconds=whole, nanos=nanos))


def _epoch_seconds(value: object, path: str) -> float:
    if isinstance(value, str):
        value = _parsed_time(value, path)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidMessage(f"expected a time or seconds since the epoch, got {shown(value)}", path)
    if not 0 <= value < _YEAR_10000:
        raise InvalidMessage("a time lies between the years 1970 and 9999", path)
    return value


def _parsed_time(value: str, path: str) -> float:
    try:
        when = datetime.fromisoformat(value)
    except ValueError as error:
        raise InvalidMessage(
            f"{shown(value)} is no time; send 2026-01-01T00:00:00Z or seconds since the epoch", path
        ) from error
    return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH).total_seconds()


def _known_content_keys(request: pb.PreprocessRequest, value: object, path: str) -> None:
    keys = [text(key, where) for key, where in items(value, path)]
    request.output.known_content_keys[:] = keys


def _shards(request: pb.PreprocessRequest, value: object, path: str) -> None:
    request.output.shards = integer(value, path, 0, 1024)


def _background(request: pb.PreprocessRequest, value: object, path: str) -> None:
    if isinstance(value, str):
        digits = value.removeprefix("#")
        if len(digits) != 6 or any(c not in "0123456789abcdefABCDEF" for c in digits):
            raise InvalidMessage(f"{shown(value)} is no colour; send #rrggbb", path)
        value = int(digits, 16)
    request.output.background = integer(value, path, 0, 0xFFFFFF)


def _lease_time(request: pb.PreprocessRequest, value: object, path: str) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidMessage(f"expected seconds, got {shown(value)}", path)
    if not 0 < value <= _MAX_LEASE_SECONDS:
        raise InvalidMessage(f"a lease lasts more than 0 and at most {_MAX_LEASE_SECONDS} seconds", path)
    whole = int(value)
    nanos = min(round((value - whole) * 1e9), 999_999_999)
    request.output.lease_time.CopyFrom(Duration(seconds=whole, nanos=nanos))


def _fingerprint(request: pb.PreprocessRequest, value: object, path: str) -> None:
    request.expected_fingerprint = text(value, path)


_SETTERS: dict[str, Setter] = {
    "add_generation_prompt": _render_flag("add_generation_prompt"),
    "continue_final_message": _render_flag("continue_final_message"),
    "template_kwargs": _template_kwargs,
    "reasoning_effort": _effort,
    "now": _now,
    "literals": _render_word("literals", _LITERALS),
    "tool_results": _render_word("tool_results", _TOOL_RESULTS),
    "detail": _detail,
    "min_pixels": _pixels("min_pixels"),
    "max_pixels": _pixels("max_pixels"),
    "parity": _output_word("parity", _PARITIES),
    "dtype": _output_word("dtype", _DTYPES),
    "encoding": _output_word("encoding", _ENCODINGS),
    "transport": _output_word("transport", _TRANSPORTS),
    "positions": _output_flag("positions"),
    "known_content_keys": _known_content_keys,
    "shards": _shards,
    "background": _background,
    "show_messages": _output_flag("show_messages"),
    "lease_time": _lease_time,
    "expected_fingerprint": _fingerprint,
}

OPTIONS: Mapping[str, str] = {
    "add_generation_prompt": "open the assistant's turn at the end (default)",
    "continue_final_message": "leave the last message open for the model to go on",
    "template_kwargs": 'extra template variables, a JSON object: {"enable_thinking": false}',
    "reasoning_effort": "a name that the template knows, or a number from 0 to 1",
    "now": "what the template sees as now: 2026-01-01T00:00:00Z, or seconds since the epoch",
    "literals": "control tokens in text: literal (text, default), parse or reject",
    "tool_results": "messages between the tool results of a turn: keep (default), hoist results, or reject",
    "detail": "auto, low, high or original, for families that know it",
    "min_pixels": "least pixels of an image after resizing",
    "max_pixels": "most pixels of an image after resizing",
    "parity": "whose pixels: aten_u8, pillow12 or pillow13",
    "dtype": "float32, bfloat16 or float16",
    "encoding": "model (values, default) or uint8 (levels, expanded by the receiver)",
    "transport": "inline (default), shared_memory or cuda_ipc",
    "positions": "add M-RoPE positions",
    "known_content_keys": "content keys whose pixels are not to be sent",
    "shards": "tensor-parallel ranks to balance the items over",
    "background": "what transparent pixels are laid on: #rrggbb",
    "show_messages": "add the normalized messages to the answer",
    "lease_time": "seconds that leased memory stays",
    "expected_fingerprint": "refuse the request where the server's settings differ",
}
"""The names that apply_options takes, and what they are for."""
