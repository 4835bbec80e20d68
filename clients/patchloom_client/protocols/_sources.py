"""Media sources: base64, data URIs, URLs and content keys. It opens no file and no connection.

Base64, on its own or in a data URI: the standard alphabet; ASCII whitespace anywhere is ignored; missing
padding is completed; anything else is refused. In a data URI the scheme, the media type and the base64 marker
are case-insensitive, the marker is the last parameter, and other parameters are ignored.
"""

import base64
import binascii
import re

from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.errors import InvalidArgument, InvalidImage, UnsupportedContent
from patchloom_client.protocols._values import shown, text

SUPPORTED = "base64 bytes, a base64 data URI, an https URL or a content key"

_WHITESPACE = b" \t\r\n\v\f"
_MAX_HEADER_CHARS = 256
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]{1,15}):")


def decode_base64(value: object, path: str, error: type[InvalidArgument] = InvalidImage) -> bytes:
    """The bytes of a base64 text; at least one."""
    payload = text(value, path)
    if payload[:5].lower() == "data:":
        raise error("a data URI stands where base64 is expected; send its payload only", path)
    try:
        packed = payload.encode("ascii").translate(None, _WHITESPACE)
        decoded = base64.b64decode(packed + b"=" * (-len(packed) % 4), validate=True)
    except (binascii.Error, UnicodeEncodeError) as cause:
        raise error("malformed base64; send the standard alphabet", path) from cause
    if not decoded:
        raise error("empty media; send the bytes of a file in base64", path)
    return decoded


def from_string(
    value: object, path: str, error: type[InvalidArgument] = InvalidImage
) -> tuple[pb.MediaSource, str]:
    """The source and the declared media type ("" if none) of a data URI or URL string.

    A data URI is decoded here, so that every dialect sends the same bytes.
    """
    address = text(value, path)
    scheme = _SCHEME.match(address)
    name = scheme.group(1).lower() if scheme else ""
    if name == "data" and address[:1] not in _WHITESPACE.decode():
        return _from_data_uri(address, path, error)
    if name in ("http", "https") and address[:1] not in _WHITESPACE.decode():
        return pb.MediaSource(url=address), ""
    what = f"{name}: URIs are" if name and name not in ("data", "http", "https") else "this string is"
    raise UnsupportedContent(
        f"{what} not supported as a media source (no path is ever opened); send {SUPPORTED}", path
    )


def _from_data_uri(uri: str, path: str, error: type[InvalidArgument]) -> tuple[pb.MediaSource, str]:
    header, comma, payload = uri[len("data:") :].partition(",")
    if not comma or len(header) > _MAX_HEADER_CHARS:
        raise error("a data URI without a comma behind its header; send data:<type>;base64,<data>", path)
    media_type, *parameters = (field.strip().lower() for field in header.split(";"))
    if not parameters or parameters[-1] != "base64":
        raise error("a data URI that is not base64; send data:<type>;base64,<data>", path)
    return pb.MediaSource(data=decode_base64(payload, path, error)), media_type


def declared_type(value: object, path: str) -> str:
    """A declared media type, in lower case; only a hint, the bytes decide."""
    declared = "" if value is None else text(value, path).strip().lower()
    if len(declared) > _MAX_HEADER_CHARS:
        raise InvalidImage(f"{shown(declared)} is no media type; send image/png or the like", path)
    return declared
