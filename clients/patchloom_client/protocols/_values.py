"""Reads values of a request body: a reader returns what it promises or raises InvalidMessage at its path."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.errors import InvalidMessage

Body: TypeAlias = Mapping[str, Any]

_SHOWN_CHARS = 40


def shown(value: object) -> str:
    """A value as an error may quote it: its first 40 characters, and never the inside of a container."""
    if isinstance(value, str):
        head = value[:_SHOWN_CHARS].encode("ascii", "backslashreplace").decode()
        return repr(head) + ("..." if len(value) > _SHOWN_CHARS else "")
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return {dict: "an object", list: "a list", int: "a number", float: "a number"}.get(
        type(value), f"a value of type {type(value).__name__[:_SHOWN_CHARS]}"
    )


def listed(names: Collection[str]) -> str:
    """Names as an error lists what is allowed."""
    return ", ".join(names)


def join(path: str, key: str) -> str:
    """The path of a key that may come from outside: long or odd keys are quoted."""
    name = key if key.isidentifier() and len(key) <= _SHOWN_CHARS else shown(key)
    return f"{path}.{name}" if path else name


def text(value: object, path: str) -> str:
    """A string that can be written as UTF-8."""
    if not isinstance(value, str):
        raise InvalidMessage(f"expected a string, got {shown(value)}", path)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage("text holds a lone surrogate; send valid Unicode", path) from error
    return value


def optional_text(value: object, path: str) -> str | None:
    """A string or null."""
    return None if value is None else text(value, path)


def required_text(body: Body, key: str, path: str) -> str:
    """The string at a key that must be there and not empty."""
    where = join(path, key)
    if body.get(key) is None:
        raise InvalidMessage(f"missing {key}; send a string", where)
    value = text(body[key], where)
    if not value:
        raise InvalidMessage(f"empty {key}; send a string", where)
    return value


def mapping(value: object, path: str) -> Body:
    """An object whose keys are strings."""
    if not isinstance(value, Mapping):
        raise InvalidMessage(f"expected an object, got {shown(value)}", path)
    for key in value:
        if not isinstance(key, str):
            raise InvalidMessage(f"an object key must be a string, got {shown(key)}", path)
    return value


def sequence(value: object, path: str) -> Sequence[Any]:
    """A list."""
    if not isinstance(value, list | tuple):
        raise InvalidMessage(f"expected a list, got {shown(value)}", path)
    return value


def items(value: object, path: str) -> Iterator[tuple[Any, str]]:
    """The entries of a list, each with its path."""
    for i, item in enumerate(sequence(value, path)):
        yield item, f"{path}[{i}]"


def boolean(value: object, path: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise InvalidMessage(f"expected true or false, got {shown(value)}", path)
    return value


def integer(value: object, path: str, least: int, most: int) -> int:
    """An integer between two bounds, both allowed."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidMessage(f"expected an integer, got {shown(value)}", path)
    if not least <= value <= most:
        raise InvalidMessage(f"expected an integer from {least} to {most}", path)
    return value


def word(value: object, path: str, allowed: Mapping[str, Any]) -> Any:
    """What one of the allowed words stands for."""
    if not isinstance(value, str) or value not in allowed:
        raise InvalidMessage(f"{shown(value)} is not known; one of {listed(allowed)}", path)
    return allowed[value]


def only_keys(body: Body, allowed: Collection[str], path: str) -> None:
    """Refuses a key that is not allowed."""
    for key in body:
        if key not in allowed:
            raise InvalidMessage(f"unknown field; known are {listed(allowed)}", join(path, key))


class Notes:
    """Collects the warnings of one conversion."""

    def __init__(self) -> None:
        self.warnings: list[pb.Warning] = []

    def add(self, reason: str, path: str, message: str) -> None:
        """Something that was left out or moved knowingly."""
        self.warnings.append(pb.Warning(reason=reason, field_path=path, message=message))

    def unknown_keys(self, body: Body, known: Collection[str], path: str) -> None:
        """A warning for each key with a value that no rule of the dialect covers."""
        for key, value in body.items():
            if key not in known and value is not None:
                self.add("UNKNOWN_FIELD", join(path, key), "this field is not known and was left out")
