"""One HTTP/1.1 GET over TLS to a given address: just enough to read a file, bounded in every direction."""

import asyncio
import ssl
from dataclasses import dataclass

_HEADER_LIMIT = 32 << 10
_BLOCK = 256 << 10


@dataclass(frozen=True, slots=True)
class Response:
    """`body` is empty where the status is not 200 or 203, or where it is `too_long`."""

    status: int
    location: str = ""
    body: bytes = b""
    too_long: bool = False


async def request(
    address: str, port: int, host: str, path: str, max_bytes: int, tls: ssl.SSLContext
) -> Response:
    """Ask `address` for `path`, as `host`: the certificate must be the host's.

    OSError, EOFError, ValueError or LimitOverrunError where the other side fails; no deadline of its own.
    """
    reader, writer = await asyncio.open_connection(
        address, port, ssl=tls, server_hostname=host, limit=_HEADER_LIMIT
    )
    try:
        authority = f"[{host}]" if ":" in host else host
        authority = authority if port == 443 else f"{authority}:{port}"
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: patchloom\r\n"
            "Accept: */*\r\nAccept-Encoding: identity\r\nConnection: close\r\n\r\n".encode("ascii")
        )
        await writer.drain()
        return await _read(reader, max_bytes)
    finally:
        # The answer is complete or of no use: no farewell that the other side could delay.
        writer.transport.abort()


async def _read(reader: asyncio.StreamReader, max_bytes: int) -> Response:
    status, headers = await _head(reader)
    while 100 <= status < 200:
        status, headers = await _head(reader)
    if status not in (200, 203):
        return Response(status, headers.get("location", ""))
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise ValueError("an encoded body")
    if "transfer-encoding" in headers:
        if headers["transfer-encoding"].lower() != "chunked":
            raise ValueError("an unknown transfer encoding")
        body = await _chunked(reader, max_bytes)
    elif "content-length" in headers:
        body = await _sized(reader, _number(headers["content-length"], 10), max_bytes)
    else:
        body = await _to_end(reader, max_bytes)
    return Response(status, too_long=True) if body is None else Response(status, body=body)


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        raise EOFError("the answer ends inside its header") from error
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError("no HTTP/1 answer")
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    return _number(rest[:3], 10), headers


async def _sized(reader: asyncio.StreamReader, size: int, max_bytes: int) -> bytes | None:
    if size > max_bytes:
        return None
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError as error:
        raise EOFError("the answer ends inside its body") from error


async def _to_end(reader: asyncio.StreamReader, max_bytes: int) -> bytes | None:
    body = bytearray()
    while block := await reader.read(_BLOCK):
        body += block
        if len(body) > max_bytes:
            return None
    return bytes(body)


async def _chunked(reader: asyncio.StreamReader, max_bytes: int) -> bytes | None:
    body = bytearray()
    while True:
        size = _number((await _line(reader)).split(b";")[0].strip().decode("ascii"), 16)
        if size == 0:
            return bytes(body)
        block = await _sized(reader, size, max_bytes - len(body))
        if block is None:
            return None
        body += block
        if await _line(reader):
            raise ValueError("a chunk without its end")


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return (await reader.readuntil(b"\r\n"))[:-2]
    except asyncio.IncompleteReadError as error:
        raise EOFError("the answer ends inside a chunk") from error


def _number(text: str, base: int) -> int:
    if not text.isalnum():
        raise ValueError("no number")
    return int(text, base)
