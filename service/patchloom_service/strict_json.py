"""JSON as the wire carries it: key order kept, integers exact, what is no portable JSON refused.

Refused are duplicate keys, NaN, numbers beyond float64, halves of surrogate pairs, and deep nesting, which
templates and tokenizers could not take.
"""

import json
import math
import re
from typing import Any

from patchloom_service.errors import InvalidMessage
from patchloom_service.types import Json

DEPTH_MAX = 256
"""How many objects and lists may stand inside each other."""

_TOO_DEEP = f"nested too deeply; at most {DEPTH_MAX} levels are allowed"
_OUT_OF_RANGE = "a number is out of range"


def parse_json(data: bytes, path: str) -> Json:
    """The value; InvalidMessage at `path` for anything that is not strict UTF-8 JSON."""
    try:
        value: Json = json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite
        )
        _check_depth(data, value)
        _check_text(data, value)
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


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise _Refused(_OUT_OF_RANGE)
    return value


def _check_depth(data: bytes, value: Json) -> None:
    if data.count(b"[") + data.count(b"{") <= DEPTH_MAX:
        return
    level = [value]
    for _ in range(DEPTH_MAX):
        level = [child for item in level for child in _containers(item)]
    if level:
        raise _Refused(_TOO_DEEP)


def _containers(value: Json) -> list[Json]:
    """The objects and lists directly inside a value."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [child for child in children if isinstance(child, dict | list)]


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def _check_text(data: bytes, value: Json) -> None:
    if _SURROGATE.search(data) is None:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise _Refused("half of a surrogate pair") from None


def _reason(error: Exception) -> str:
    if isinstance(error, _Refused):
        return str(error)
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    if isinstance(error, UnicodeDecodeError):
        return f"no UTF-8 at byte {error.start}"
    return _TOO_DEEP if isinstance(error, RecursionError) else _OUT_OF_RANGE
