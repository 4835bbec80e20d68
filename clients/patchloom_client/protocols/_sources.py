"""Media sources: base64, data URIs, URLs and content keys. It opens no file and no connection.

The policy is the service's own. Base64, alone or in a data URI: the standard alphabet only, whitespace is
refused, missing padding is supplied. In a data URI the scheme and the word base64 are read in any case,
base64 is the last parameter, other parameters are ignored, percent-escapes in the payload are undone.
"""

import binascii
import re
from urllib.parse import unquote_to_bytes

from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.errors import InvalidArgument, InvalidImage, UnsupportedContent
from patchloom_client.protocols._values import shown, text

SUPPORTED = "base64 bytes, a base64 data URI, an https URL or a content key"

_MAX_HEADER_CHARS = 1024
_WHITESPACE = (b" ", b"\n", b"\r", b"\t", b"\v", b"\f")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{1,15}):")


def decode_base64(value: object, path: str, error: type[InvalidArgument] = InvalidImage) -> bytes:
    """The bytes of a base64 text; at least one."""
    payload = text(value, path)
    if payload[:5].lower() == "data:":
        raise error("a data URI stands where base64 is expected; send its payload only", path)
    return _decoded(_ascii(payload, path, error), path, error)


def from_string(
    value: object, path: str, error: type[InvalidArgument] = InvalidImage
) -> tuple[pb.MediaSource, str]:
    """The source and the declared media type ("" if none) of a data URI or URL string.

    A data URI is decoded here, so that every dialect sends the same bytes.
    """
    address = text(value, path)
    match = _SCHEME.match(address)
    scheme = match.group(1).lower() if match else ""
    if scheme == "data":
        return _from_data_uri(address, path, error)
    if scheme in ("http", "https"):
        return pb.MediaSource(url=address), ""
    what = f"{scheme}: URIs are" if scheme else "this string is"
    raise UnsupportedContent(
        f"{what} not supported as a media source (no path is ever opened); send {SUPPORTED}", path
    )


def _from_data_uri(uri: str, path: str, error: type[InvalidArgument]) -> tuple[pb.MediaSource, str]:
    comma = uri.find(",", 0, _MAX_HEADER_CHARS)
    if comma < 0:
        what = f"the data URI has no comma in its first {_MAX_HEADER_CHARS} characters"
        raise error(f"{what}; send data:<type>;base64,<payload>", path)
    media_type, *parameters = (field.strip().lower() for field in uri[5:comma].split(";"))
    if not parameters or parameters[-1] != "base64":
        raise error("the data URI is not base64; send data:<type>;base64,<payload>", path)
    payload = _ascii(uri[comma + 1 :], path, error)
    if b"%" in payload:
        payload = unquote_to_bytes(payload)
    return pb.MediaSource(data=_decoded(payload, path, error)), media_type


def _ascii(payload: str, path: str, error: type[InvalidArgument]) -> bytes:
    try:
        return payload.encode("ascii")
    except UnicodeEncodeError:
        raise error("the payload is not ASCII; send base64", path) from None


def _decoded(payload: bytes, path: str, error: type[InvalidArgument]) -> bytes:
    if any(space in payload for space in _WHITESPACE):  # a regular expression is 30 times slower
        raise error("the payload holds whitespace; send base64 without any", path)
    digits = payload.rstrip(b"=")
    if len(payload) - len(digits) > 2 or len(digits) % 4 == 1:
        raise error("the payload has an impossible length; send base64", path)
    if not digits:
        raise error("the payload is empty; send the bytes of a file in base64", path)
    try:
        return binascii.a2b_base64(digits + b"=" * (-len(digits) % 4), strict_mode=True)
    except binascii.Error:
        raise error("malformed base64; send A-Z, a-z, 0-9, + and /", path) from None


def declared_type(value: object, path: str) -> str:
    """A declared media type, in lower case; only a hint, the bytes decide."""
    declared = "" if value is None else text(value, path).strip().lower()
    if len(declared) > _MAX_HEADER_CHARS:
        raise InvalidImage(f"{shown(declared)} is no media type; send image/png or the like", path)
    return declared
