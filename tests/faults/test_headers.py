"""Headers in both directions: framing, hop by hop, repeated ones, content coding, and the request's own line."""

import gzip
import json

import pytest

from warmroute.app import Router

from ..integration.scripted import RawClient, Reply, Talk
from .backend import FaultyBackend, everywhere, posts, raw, raw_answer
from .conftest import StartRouter

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


def chat(*lines: str) -> bytes:
    head = "".join(f"{line}\r\n" for line in ("POST /v1/chat/completions HTTP/1.1", "Host: x", *lines))
    return head.encode() + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(CHAT) + CHAT


def values(reply: Reply, name: str) -> list[str]:
    return [value for key, value in reply.headers if key == name]


@pytest.mark.parametrize("connection", ["close, X-Hop", "keep-alive, x-hop"])
async def test_header_framing(router: Router, backends: list[FaultyBackend], connection: str) -> None:
    everywhere(
        backends,
        raw_answer(
            b"HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Internal\r\nKeep-Alive: timeout=5\r\nX-Internal: 1\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        ),
    )
    hop = ("X-Hop: secret", "TE: trailers", "Proxy-Authorization: Basic AAAA", "Keep-Alive: 9", "Upgrade: h2c")
    reply = await raw(router.data_url, chat(f"Connection: {connection}", *hop))
    (seen,) = posts(backends)
    for name in ("x-hop", "te", "keep-alive", "proxy-authorization", "upgrade", "transfer-encoding"):
        assert seen.header(name) is None, name
    assert seen.header("connection") in (None, "keep-alive")
    assert (reply.status, reply.body, reply.whole) == (200, b"{}", True)
    assert (values(reply, "keep-alive"), values(reply, "x-internal")) == ([], [])
    assert len(values(reply, "content-length") + values(reply, "transfer-encoding")) == 1
    assert len(values(reply, "connection")) <= 1


async def test_a_header_named_by_connection_does_not_silence_what_the_router_says_itself(
    router: Router, backends: list[FaultyBackend]
) -> None:
    """Who names x-request-id or host in Connection takes neither from the backend's request."""
    reply = await raw(router.data_url, chat("Connection: x-request-id, host, content-length", "X-Request-Id: r1"))
    (seen,) = posts(backends)
    assert (reply.status, seen.header("x-request-id"), seen.body) == (200, "r1", CHAT)
    assert seen.header("host") in {b.name for b in backends}


@pytest.mark.parametrize("asked", [False, True], ids=["by default", "asked for"])
async def test_repeated_headers_and_cookies(
    backends: list[FaultyBackend], start_router: StartRouter, asked: bool
) -> None:
    router = await start_router(backends, forward={"pass_headers": ["Cookie"] if asked else []})
    cookies = ["a=1; Path=/", "b=2; Expires=Wed, 21 Oct 2026 07:28:00 GMT"]
    lines = "".join(f"Set-Cookie: {cookie}\r\n" for cookie in cookies)
    everywhere(
        backends,
        raw_answer(
            f"HTTP/1.1 200 OK\r\n{lines}Warning: 199 x\r\nWarning: 199 y\r\nX-Request-Id: q\r\n".encode()
            + b"Content-Length: 2\r\n\r\n{}"
        ),
    )
    reply = await raw(router.data_url, chat("Cookie: p=1", "Cookie: q=2; r=3", "X-Tag: one", "X-Tag: two"))
    assert values(reply, "set-cookie") == (cookies if asked else [])
    assert values(reply, "warning") == ["199 x", "199 y"]
    assert len(values(reply, "x-request-id")) == 1
    (seen,) = posts(backends)
    sent = [line.decode().partition(": ") for line in seen.head.lower().split(b"\r\n")]
    assert [value for name, _, value in sent if name == "x-tag"] == ["one", "two"]
    assert "; ".join(value for name, _, value in sent if name == "cookie") == ("p=1; q=2; r=3" if asked else "")


BODY = json.dumps({"choices": [{"message": {"content": "x" * 100}}]}).encode()
EVENTS = b"".join(b'data: {"n":%d}\n\n' % n for n in range(5))


def packed(status: str, body: bytes, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Encoding: gzip\r\n"
    zipped = gzip.compress(body)
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(zipped) + zipped


@pytest.mark.parametrize("kind", ["answer", "error", "stream"])
async def test_content_coding(router: Router, backends: list[FaultyBackend], kind: str) -> None:
    error = b'{"error":{"message":"context length 4096 exceeded"}}'
    plain = {"answer": BODY, "error": error, "stream": EVENTS}[kind]

    async def script(talk: Talk) -> None:
        if kind != "stream":
            talk.send(packed("400 Bad Request" if kind == "error" else "200 OK", plain))
            return
        talk.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\n")
        talk.send(b"Transfer-Encoding: chunked\r\n\r\n")
        zipped = gzip.compress(plain)
        for i in range(0, len(zipped), 7):
            talk.chunk(zipped[i : i + 7])
        talk.end()

    everywhere(backends, script)
    reply = await raw(router.data_url, chat("Accept-Encoding: gzip"))
    assert (reply.status, reply.whole) == (400 if kind == "error" else 200, True)
    got = gzip.decompress(reply.body) if reply.header("content-encoding") == "gzip" else reply.body
    assert got == plain
    assert posts(backends)[0].header("accept-encoding") == "gzip"


async def test_a_body_that_is_packed_by_the_client_is_sent_as_it_is(
    router: Router, backends: list[FaultyBackend]
) -> None:
    """The router unpacks nothing: 32 MiB of zeros stay the 32 KiB that they are."""
    bomb = gzip.compress(bytes(32 << 20))
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    assert (await raw(router.data_url, head % len(bomb) + bomb)).status == 200
    (seen,) = posts(backends)
    assert (seen.body, seen.header("content-encoding")) == (bomb, "gzip")


class TestUrlFidelity:
    QUERY = "q=a%2Bb&q=c%20d&e=&x=%E4%BD%A0&flag"

    async def targets(self, router: Router, *lines: str) -> None:
        for line in lines:
            method = line.partition(" ")[0]
            length = len(CHAT) if method == "POST" else 0
            head = f"{line} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()
            assert (await raw(router.data_url, head + CHAT[:length])).status == 200

    async def test_posts_and_gets_keep_their_target(self, router: Router, backends: list[FaultyBackend]) -> None:
        lines = [f"GET /v1/responses/resp_1?{self.QUERY}", "POST /v1/chat/completions?timeout=5;v=1"]
        lines += [f"POST /v1/completions?{self.QUERY}", "POST /v1/embeddings?a=//b/../c&d=%2e%00"]
        await self.targets(router, *lines)
        seen = {s.line for b in backends for s in b.requests if s.path not in ("/health", "/v1/models", "/metrics")}
        assert seen == {f"{line} HTTP/1.1" for line in lines}

    async def test_a_models_name_keeps_its_slash_where_the_backend_is_asked(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        """Model lists that want a key cannot be read, so the client's own request is passed on."""

        async def keyed(talk: Talk) -> None:
            talk.json({"error": "no key"}, "401 Unauthorized")

        for backend in backends:
            backend.models_script = keyed
        router = await start_router(backends, wait=False)
        line = f"GET /v1/models/org%2Fname%20x?{self.QUERY}"
        await self.targets(router, line)
        assert f"{line} HTTP/1.1" in {s.line for b in backends for s in b.requests}


async def test_head_keeps_the_length_that_a_backend_states(router: Router, backends: list[FaultyBackend]) -> None:
    for backend in backends:
        backend.script = raw_answer(b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n")
    async with await RawClient.connect(router.data_url) as client:
        for _ in range(2):  # twice on the same connection: it is in step
            client.send(b"HEAD /version HTTP/1.1\r\nHost: x\r\n\r\n")
            reply = await client.reply("HEAD")
            assert (reply.status, reply.header("content-length"), reply.body) == (200, "1234", b"")
