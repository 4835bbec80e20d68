"""JSON as the wire carries it: key order kept, integers exact, duplicate keys and NaN refused."""

import json
from typing import Any

from patchloom_service.errors import InvalidMessage
from patchloom_service.types import Json


def parse_json(data: bytes, path: str) -> Json:
    """The value; InvalidMessage at `path` for anything that is not strict UTF-8 JSON."""
    try:
        value: Json = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(f"no strict JSON: {_reason(error)}", path) from error
    return value


def parse_object(data: bytes, path: str) -> dict[str, Json]:
    """The object in `data`, {} for no bytes."""
    value = parse_json(data or b"{}", path)
    if not isinstance(value, dict):
        raise InvalidMessage(f"must be a JSON object, got {type(value).__name__}", path)
    return value


class _Refused(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _Refused("an object has a key twice")
    return value


def _refuse(constant: str) -> None:
    raise _Refused(f"{constant} is not allowed")


def _reason(error: Exception) -> str:
    if isinstance(error, _Refused):
        return str(error)
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    if isinstance(error, UnicodeDecodeError):
        return f"no UTF-8 at byte {error.start}"
    return "nested too deeply" if isinstance(error, RecursionError) else "a number is out of range"
