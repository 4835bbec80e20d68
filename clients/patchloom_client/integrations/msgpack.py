"""Writes the part of MessagePack that engines read tensors in (https://github.com/msgpack/msgpack)."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Ext:
    """An extension value: a type 0..127 and its bytes."""

    code: int
    data: bytes | memoryview


def pack(value: Any) -> bytes:
    """None, booleans, integers of 64 bits, strings, bytes, lists, mappings with string keys, and Ext."""
    return b"".join(_pieces(value))


def _pieces(value: Any) -> Iterator[bytes | memoryview]:
    if value is None:
        yield b"\xc0"
    elif isinstance(value, bool):
        yield b"\xc3" if value else b"\xc2"
    elif isinstance(value, int):
        yield _integer(value)
    elif isinstance(value, str):
        text = value.encode("utf-8")
        yield _head(len(text), 0xA0, 32, (0xD9, 0xDA, 0xDB))
        yield text
    elif isinstance(value, bytes):
        yield _sized(len(value), (0xC4, 0xC5, 0xC6))
        yield value
    elif isinstance(value, Ext):
        yield _sized(len(value.data), (0xC7, 0xC8, 0xC9)) + struct.pack("b", value.code)
        yield value.data
    elif isinstance(value, Mapping):
        yield _head(len(value), 0x80, 16, (None, 0xDE, 0xDF))
        for key, item in value.items():
            yield from _pieces(key)
            yield from _pieces(item)
    elif isinstance(value, Sequence):
        yield _head(len(value), 0x90, 16, (None, 0xDC, 0xDD))
        for item in value:
            yield from _pieces(item)
    else:
        raise TypeError(f"cannot pack {type(value).__name__}")


def _integer(value: int) -> bytes:
    if 0 <= value < 128:
        return struct.pack("B", value)
    if -32 <= value < 0:
        return struct.pack("b", value)
    return struct.pack(">BQ", 0xCF, value) if value > 0 else struct.pack(">Bq", 0xD3, value)


def _head(size: int, short: int, limit: int, codes: tuple[int | None, int, int]) -> bytes:
    if size < limit:
        return struct.pack("B", short | size)
    return _sized(size, codes)


def _sized(size: int, codes: tuple[int | None, int, int]) -> bytes:
    if size < 1 << 8 and codes[0] is not None:
        return struct.pack(">BB", codes[0], size)
    if size < 1 << 16:
        return struct.pack(">BH", codes[1], size)
    return struct.pack(">BI", codes[2], size)
