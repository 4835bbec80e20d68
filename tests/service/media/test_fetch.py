import asyncio
import ssl
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from patchloom_service.errors import (
    AddressRefused,
    DeadlineExceeded,
    FetchDisabled,
    LimitExceeded,
    MediaNotFound,
    UnsupportedContent,
    UpstreamUnavailable,
)
from patchloom_service.media.fetch import Fetcher

# A certificate for images.test and other.test and its key, for this test only.
TLS = Path(__file__).with_name("loopback_tls.pem")
BODY = bytes(range(256)) * 40


def answer(status: int, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Upstream:
    """A TLS server on a loopback port that gives scripted answers and remembers what it was asked."""

    def __init__(self, *answers: bytes, pause: float = 0.0) -> None:
        self.answers, self.pause = list(answers), pause
        self.connections, self.requests, self.port = 0, [], 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            self.requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
            reply = self.answers.pop(0).replace(b"PORT", str(self.port).encode())
            if self.pause:
                for byte in reply:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(self.pause)
            writer.write(reply)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    @asynccontextmanager
    async def running(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(TLS)
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0, ssl=context)
        self.port = server.sockets[0].getsockname()[1]
        yield self
        server.close()

    def fetcher(self, **changes) -> Fetcher:
        async def resolve(host, port):
            return ["127.0.0.1"]

        settings = {
            "allowed_hosts": [f"images.test:{self.port}"],
            "timeout": 5.0,
            "max_bytes": 1 << 20,
            "max_redirects": 2,
            "resolve": resolve,
            "accept_address": lambda address: address == "127.0.0.1",
            "tls": ssl.create_default_context(cafile=str(TLS)),
        }
        return Fetcher(**{**settings, **changes})

    def url(self, path: str = "/x.png", host: str = "images.test") -> str:
        return f"https://{host}:{self.port}{path}"


async def test_a_file_is_fetched_from_the_checked_address_under_its_own_name():
    async with Upstream(answer(200, BODY)).running() as upstream:
        assert await upstream.fetcher().fetch(upstream.url("/a b/ü.png?q=1&r=%20#part")) == BODY
    lines = upstream.requests[0].split("\r\n")
    assert lines[0] == "GET /a%20b/%C3%BC.png?q=1&r=%20 HTTP/1.1"
    assert lines[1] == f"Host: images.test:{upstream.port}"


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nabcde",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabcdeignored",
    ],
)
async def test_every_framing_of_a_body_is_read(reply):
    async with Upstream(reply).running() as upstream:
        assert await upstream.fetcher().fetch(upstream.url()) == b"abcde"


async def test_fetching_is_off_without_allowed_hosts_and_connects_to_nobody():
    async with Upstream().running() as upstream:
        with pytest.raises(FetchDisabled, match="off"):
            await upstream.fetcher(allowed_hosts=()).fetch(upstream.url())
    assert upstream.connections == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "images.test"])
async def test_the_default_refuses_loopback_before_it_connects(host):
    async def loopback(host, port):
        return ["127.0.0.1"]

    async with Upstream().running() as upstream:
        fetcher = Fetcher([f"{host}:{upstream.port}"], 5.0, 1 << 20, 2, resolve=loopback)
        with pytest.raises(AddressRefused) as refused:
            await fetcher.fetch(upstream.url(host=host))
    assert upstream.connections == 0
    assert "127.0" not in str(refused.value)


async def test_one_private_address_among_public_ones_is_enough_to_refuse():
    async def both(host, port):
        return ["93.184.216.34", "10.0.0.1"]

    with pytest.raises(AddressRefused):
        await Fetcher(["images.test"], 5.0, 1 << 20, 2, resolve=both).fetch("https://images.test/")


async def test_a_metadata_address_is_refused_even_where_it_is_allowed():
    fetcher = Fetcher(["169.254.169.254"], 5.0, 1 << 20, 2)
    with pytest.raises(AddressRefused):
        await fetcher.fetch("https://169.254.169.254/latest/")


@pytest.mark.parametrize(
    "url",
    [
        "http://images.test/x.png",
        "/etc/hostname",
        "/tmp/secret.png",
        "file:///tmp/secret.png",
        "ftp://images.test/x.png",
        "https://user:word@images.test/x.png",
        "https://images.test:99999/x.png",
        "https://[::1/x.png",
        "",
    ],
)
async def test_anything_but_a_plain_https_url_is_refused(url):
    with pytest.raises(UnsupportedContent):
        await Fetcher(["images.test"], 5.0, 1 << 20, 2).fetch(url)


@pytest.mark.parametrize(
    "url", ["https://evil.test/", "https://images.test:8443/", "https://images.test.evil/"]
)
async def test_hosts_and_ports_that_are_not_allowed_are_refused(url):
    with pytest.raises(FetchDisabled, match="allow-list"):
        await Fetcher(["images.test", ".cdn.test"], 5.0, 1 << 20, 2).fetch(url)


async def test_redirects_are_followed_and_each_hop_is_checked():
    moved = answer(302, b"", "Location: /y.png")
    away = answer(301, b"", "Location: https://other.test:PORT/z.png")
    async with Upstream(moved, away, answer(200, BODY)).running() as upstream:
        allowed = [f"images.test:{upstream.port}", f"other.test:{upstream.port}"]
        assert await upstream.fetcher(allowed_hosts=allowed).fetch(upstream.url()) == BODY
    assert [r.split(" ")[1] for r in upstream.requests] == ["/x.png", "/y.png", "/z.png"]


async def test_a_redirect_to_a_host_that_is_not_allowed_is_refused():
    away = answer(302, b"", "Location: https://other.test:PORT/z.png")
    async with Upstream(away).running() as upstream:
        with pytest.raises(FetchDisabled):
            await upstream.fetcher().fetch(upstream.url())
    assert upstream.connections == 1


async def test_a_redirect_to_plain_http_is_refused():
    async with Upstream(answer(302, b"", "Location: http://images.test:PORT/")).running() as upstream:
        with pytest.raises(UnsupportedContent):
            await upstream.fetcher().fetch(upstream.url())


async def test_endless_redirects_end():
    async with Upstream(*[answer(307, b"", "Location: /x.png")] * 9).running() as upstream:
        with pytest.raises(UpstreamUnavailable, match="more than 2 redirects"):
            await upstream.fetcher().fetch(upstream.url())
    assert upstream.connections == 3


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (answer(404, b"no"), MediaNotFound),
        (answer(410), MediaNotFound),
        (answer(403), MediaNotFound),
        (answer(204), MediaNotFound),
        (answer(200), MediaNotFound),
        (answer(429), UpstreamUnavailable),
        (answer(500, b"oops"), UpstreamUnavailable),
        (answer(503), UpstreamUnavailable),
        (b"", UpstreamUnavailable),
        (b"SSH-2.0-x\r\n\r\n", UpstreamUnavailable),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", UpstreamUnavailable),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -9\r\n\r\nabc", UpstreamUnavailable),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", UpstreamUnavailable),
        (answer(200, b"abc", "Content-Encoding: gzip"), UpstreamUnavailable),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000, UpstreamUnavailable),
    ],
)
async def test_an_answer_without_a_file_is_a_typed_error(reply, error):
    async with Upstream(reply).running() as upstream:
        with pytest.raises(error):
            await upstream.fetcher().fetch(upstream.url())


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * 5000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"200\r\n" + b"a" * 512 + b"\r\n400\r\n",
    ],
)
async def test_a_body_over_the_limit_is_refused_while_it_streams(reply):
    async with Upstream(reply).running() as upstream:
        with pytest.raises(LimitExceeded, match="at most 1000 bytes"):
            await upstream.fetcher(max_bytes=1000).fetch(upstream.url())


async def test_a_slow_answer_ends_at_the_deadline_of_the_whole_fetch():
    async with Upstream(answer(200, BODY), pause=0.02).running() as upstream:
        with pytest.raises(DeadlineExceeded, match=r"within 0\.2 seconds"):
            await upstream.fetcher(timeout=0.2).fetch(upstream.url())


async def test_a_certificate_of_another_name_is_refused():
    async with Upstream(answer(200, BODY)).running() as upstream:
        fetcher = upstream.fetcher(allowed_hosts=[f"wrong.test:{upstream.port}"])
        with pytest.raises(UpstreamUnavailable):
            await fetcher.fetch(upstream.url(host="wrong.test"))
    assert upstream.requests == []


async def test_a_closed_port_and_an_unknown_name_are_unavailable():
    async with Upstream().running() as upstream:
        fetcher = upstream.fetcher()
        url = upstream.url()
    with pytest.raises(UpstreamUnavailable):
        await fetcher.fetch(url)

    async def unknown(host, port):
        raise OSError("no such host")

    with pytest.raises(UpstreamUnavailable, match="no address"):
        await upstream.fetcher(resolve=unknown).fetch(url)
