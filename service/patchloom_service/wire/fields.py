"""Pieces of serialized messages, for content that protobuf would copy once more than it has to be.

protobuf.dev/programming-guides/encoding.
"""


def length_delimited(number: int, size: int) -> bytes:
    """What precedes the `size` bytes of a field that is bytes, text, a message or packed."""
    return varint(number << 3 | 2) + varint(size)


def varint(value: int) -> bytes:
    """An unsigned number, seven bits a byte, the lowest first."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
