"""JSON that travels as bytes: key order kept, integers exact, no duplicate keys, no NaN.

Numbers with a fraction or exponent are written as Python's json writes the parsed double: the shortest text
with the same value (1.00 becomes 1.0), because a dialect whose arguments are objects has no other text.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from patchloom_client.errors import InvalidMessage
from patchloom_client.protocols._values import shown, text

MAX_DEPTH = 128
"""Deepest nesting of lists and objects."""

_MAX_INTEGER_BITS = 13_000  # about 3,900 digits; Python does not print more than 4,300


def canonical(value: object, path: str) -> bytes:
    """Compact UTF-8 JSON of a JSON value; equal values in equal key order give equal bytes."""
    _check(value, path, 0)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain).encode()


def json_object(value: object, path: str) -> bytes:
    """Compact UTF-8 JSON of an object, given as a mapping, as JSON text, or as "" or null for {}."""
    if value is None or value == "":
        return b"{}"
    if isinstance(value, str):
        value = parse(value, path)
    if not isinstance(value, Mapping):
        raise InvalidMessage(f"expected a JSON object, got {shown(value)}", path)
    return canonical(value, path)


def parse(value: str, path: str) -> Any:
    """The value of JSON text."""
    try:
        return json.loads(text(value, path), object_pairs_hook=_unique, parse_constant=_no_constant)
    except _Refused as error:
        raise InvalidMessage(f"{error.args[0]}; send plain JSON", path) from error
    except RecursionError as error:
        raise InvalidMessage(f"JSON is nested deeper than {MAX_DEPTH} levels", path) from error
    except json.JSONDecodeError as error:
        raise InvalidMessage(f"not JSON: {error.msg} at character {error.pos}", path) from error
    except ValueError as error:  # an integer with more digits than Python reads
        raise InvalidMessage("an integer has more than 3,900 digits", path) from error


class _Refused(Exception):
    """What the JSON parser's hooks do not take."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise _Refused(f"the key {shown(key)} stands twice in one object")
        seen.add(key)
    raise AssertionError("pairs differ in number from their keys only if a key repeats")


def _no_constant(name: str) -> Any:
    raise _Refused(f"{name} is not JSON")


def _plain(value: object) -> object:
    """Mappings that are no dict, for json.dumps; everything else was checked before."""
    assert isinstance(value, Mapping)
    return dict(value)


def _check(value: object, path: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InvalidMessage(f"JSON is nested deeper than {MAX_DEPTH} levels", path)
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        text(value, path)
    elif isinstance(value, int):
        if value.bit_length() > _MAX_INTEGER_BITS:
            raise InvalidMessage("an integer has more than 3,900 digits", path)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidMessage("NaN and infinities are not JSON; send finite numbers", path)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidMessage(f"an object key must be a string, got {shown(key)}", path)
            text(key, path)
            _check(item, path, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            _check(item, path, depth + 1)
    else:
        raise InvalidMessage(f"{shown(value)} is not JSON", path)
