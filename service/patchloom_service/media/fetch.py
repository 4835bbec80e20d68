"""Fetches an https URL from an allowed host at a public address; off unless hosts are allowed.

Each hop of a redirect is checked anew. A name is resolved once and the connection goes to an address that
was checked, so a second answer of the name server changes nothing. No address, path or header of the
other side appears in an error.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from patchloom_service.errors import (
    AddressRefused,
    DeadlineExceeded,
    FetchDisabled,
    LimitExceeded,
    MediaNotFound,
    PatchloomError,
    UnsupportedContent,
    UpstreamUnavailable,
)
from patchloom_service.media.addresses import HTTPS_PORT, is_allowed, is_public
from patchloom_service.media.http import Response, request

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
_REDIRECTS = {301, 302, 303, 307, 308}
_BUSY = {408, 425, 429}
_URL_LIMIT = 8192


async def resolve_name(host: str, port: int) -> Sequence[str]:
    """The addresses of a host, in the order to try them."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@dataclass(frozen=True, slots=True)
class _Target:
    host: str
    port: int
    path: str


class Fetcher:
    """Fetches URLs. `timeout` bounds a whole fetch in seconds, redirects and name resolution included.

    `allowed_hosts` has hosts (`example.com`), domains (`.example.com`) and, for ports other than 443,
    `host:port`; empty means that fetching is off. The other arguments exist for tests.
    """

    def __init__(
        self,
        allowed_hosts: Sequence[str],
        timeout: float,
        max_bytes: int,
        max_redirects: int,
        *,
        resolve: Resolve = resolve_name,
        accept_address: Callable[[str], bool] = is_public,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._allowed, self._timeout = tuple(allowed_hosts), timeout
        self._max_bytes, self._max_redirects = max_bytes, max_redirects
        self._resolve, self._accept_address = resolve, accept_address
        self._tls = tls or (ssl.create_default_context() if self._allowed else None)

    async def fetch(self, url: str) -> bytes:
        """The body at `url`.

        FetchDisabled or UnsupportedContent for an URL that is not to be fetched, AddressRefused where it
        leads to an address that is not public, before any connection; MediaNotFound for an answer
        4xx, UpstreamUnavailable for 5xx and for what fails on the way, LimitExceeded for a body that is
        too long, DeadlineExceeded.
        """
        target = self._target(url)
        try:
            async with asyncio.timeout(self._timeout):
                return await self._follow(url, target)
        except TimeoutError:
            raise DeadlineExceeded(f"the URL did not answer within {self._timeout:g} seconds") from None

    async def _follow(self, url: str, target: _Target) -> bytes:
        for _ in range(self._max_redirects + 1):
            response = await self._request(target)
            if response.status not in _REDIRECTS:
                return self._body(response)
            url = urljoin(url, response.location)
            target = self._target(url)
        raise UpstreamUnavailable(f"more than {self._max_redirects} redirects")

    def _target(self, url: str) -> _Target:
        if not self._allowed:
            raise FetchDisabled(
                "fetching URLs is off; send the bytes, or start the server with --allow-fetch HOST"
            )
        parts = _split(url)
        if parts.scheme != "https":
            raise UnsupportedContent("only https URLs are fetched; send https or the bytes")
        if parts.username is not None or parts.password is not None:
            raise UnsupportedContent("an URL with a user or password is not fetched; send one without")
        host, port = _host(parts), _port(parts)
        if not is_allowed(host, port, self._allowed):
            raise FetchDisabled("the host of the URL is not on the allow-list; send the bytes")
        path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
        query = quote(parts.query, safe="/%:@!$&'()*+,;=~-._?")
        return _Target(host, port, f"{path}?{query}" if query else path)

    async def _request(self, target: _Target) -> Response:
        addresses = await self._addresses(target)
        assert self._tls is not None
        failure: Exception = OSError("no address")
        for address in addresses:
            try:
                return await request(
                    address, target.port, target.host, target.path, self._max_bytes, self._tls
                )
            except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
                failure = error
        raise UpstreamUnavailable("the host of the URL cannot be reached or answers no HTTP") from failure

    async def _addresses(self, target: _Target) -> Sequence[str]:
        try:
            addresses = await self._resolve(target.host, target.port)
        except (OSError, UnicodeError) as error:
            raise UpstreamUnavailable("the host of the URL has no address") from error
        if not all(self._accept_address(address) for address in addresses):
            raise AddressRefused("the URL leads to an address that is not public; send the bytes")
        return addresses

    def _body(self, response: Response) -> bytes:
        if response.too_long:
            raise LimitExceeded(
                f"the file at the URL is too long; at most {self._max_bytes} bytes are allowed"
            )
        if response.status in (200, 203) and response.body:
            return response.body
        raise _failure(response.status)


def _failure(status: int) -> PatchloomError:
    if 200 <= status < 300:
        return MediaNotFound(f"the URL answers {status} without a file")
    if 400 <= status < 500 and status not in _BUSY:
        return MediaNotFound(f"the URL answers {status}")
    return UpstreamUnavailable(f"the URL answers {status}")


def _split(url: str) -> SplitResult:
    if len(url) > _URL_LIMIT:
        raise LimitExceeded(f"the URL has {len(url)} characters; at most {_URL_LIMIT} are allowed")
    try:
        return urlsplit(url)
    except ValueError:
        raise UnsupportedContent("the URL is malformed; send https://host/path") from None


def _host(parts: SplitResult) -> str:
    try:
        return (parts.hostname or "").encode("idna").decode("ascii").lower()
    except UnicodeError:
        raise UnsupportedContent("the host of the URL is malformed; send https://host/path") from None


def _port(parts: SplitResult) -> int:
    try:
        return parts.port or HTTPS_PORT
    except ValueError:
        raise UnsupportedContent("the port of the URL is malformed; send https://host/path") from None
