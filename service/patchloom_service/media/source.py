"""Turns a media source that carries its bytes into those bytes.

A data URI is `data:[type][;parameter...];base64,<payload>`. The policy, pinned by tests: the scheme and
the word base64 are read in any case; parameters are allowed and ignored, and so is the declared type;
percent-escapes in the payload are undone; whitespace in the payload is refused; missing padding is
supplied; the standard alphabet only. The payload never appears in an error.
"""

import binascii
from urllib.parse import unquote_to_bytes

from patchloom_service.errors import InvalidArgument, InvalidImage, LimitExceeded
from patchloom_service.types import MediaSource, SourceKind

_HEADER_LIMIT = 1024
_SPACE = (b"\t", b"\n", b"\r", b"\f", b"\v", b" ")


def resolve(source: MediaSource, max_bytes: int) -> bytes:
    """The encoded file of a DATA or DATA_URI source.

    InvalidImage for a malformed or empty one, LimitExceeded for more than `max_bytes` bytes.
    """
    if source.kind is SourceKind.DATA:
        return _bounded(source.data, max_bytes)
    if source.kind is SourceKind.DATA_URI:
        return _bounded(parse_data_uri(source.text, max_bytes), max_bytes)
    raise InvalidArgument(f"a source of kind {source.kind} carries no bytes")


def parse_data_uri(uri: str, max_bytes: int) -> bytes:
    """The payload of a base64 data URI."""
    comma = uri.find(",", 0, _HEADER_LIMIT)
    if uri[:5].lower() != "data:":
        raise InvalidImage("the data URI does not begin with data:; send data:image/png;base64,...")
    if comma < 0:
        raise InvalidImage(
            f"the data URI has no comma in its first {_HEADER_LIMIT} characters; "
            "send data:image/png;base64,..."
        )
    _, semicolon, encoding = uri[5:comma].rpartition(";")
    if not semicolon or encoding.strip().lower() != "base64":
        raise InvalidImage("the data URI is not base64; send data:image/png;base64,...")
    payload = _payload(uri, comma + 1)
    digits = payload.rstrip(b"=")
    if len(payload) - len(digits) > 2 or len(digits) % 4 == 1:
        raise InvalidImage("the payload of the data URI has an impossible length; send base64")
    _check_size(len(digits) * 3 // 4, max_bytes)
    return _decode(digits + b"=" * (-len(digits) % 4))


def _payload(uri: str, start: int) -> bytes:
    try:
        payload = uri[start:].encode("ascii")
    except UnicodeEncodeError:
        raise InvalidImage("the payload of the data URI is not ASCII; send base64") from None
    if b"%" in payload:
        payload = unquote_to_bytes(payload)
    if any(space in payload for space in _SPACE):  # a regular expression takes 50 times as long
        raise InvalidImage("whitespace in the payload of the data URI; send base64 without any")
    return payload


def _decode(payload: bytes) -> bytes:
    try:
        return binascii.a2b_base64(payload, strict_mode=True)
    except binascii.Error:
        raise InvalidImage(
            "the payload of the data URI has characters that are no base64; send A-Z, a-z, 0-9, + and /"
        ) from None


def _bounded(data: bytes, max_bytes: int) -> bytes:
    if not data:
        raise InvalidImage("the file is empty")
    _check_size(len(data), max_bytes)
    return data


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise LimitExceeded(f"the file has {size} bytes; at most {max_bytes} are allowed")
