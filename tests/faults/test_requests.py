"""How a request may be framed and which methods it may use."""

import asyncio
import json

from warmroute.app import Router

from ..integration.scripted import RawClient, Talk, answer
from .backend import FaultyBackend, everywhere, posts, raw, raw_answer
from .conftest import LONG, StartRouter

POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CHAT = json.dumps({"model": "m", "session_id": "s", "messages": [{"role": "user", "content": "hi"}]}).encode()


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


DOUBTFUL = {
    "length, then chunked": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
    "chunked, then length": b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    "coded": b"Transfer-Encoding: gzip, chunked\r\nContent-Length: 4\r\n",
    "two lengths": b"Content-Length: 4\r\nContent-Length: 5\r\n",
    "two codings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    "unknown coding": b"Transfer-Encoding: xchunked\r\n",
    "signed length": b"Content-Length: +4\r\n",
    "space before the colon": b"Content-Length : 4\r\n",
    "folded": b"Content-Length: 4\r\n X: folded\r\n",
}
"""Framings that two parsers may read in two ways, each before a chunked body and a request behind it."""


class TestRequestFraming:
    async def test_a_chunked_body_arrives_once_and_whole(self, router: Router, backends: list[FaultyBackend]) -> None:
        async with await RawClient.connect(router.data_url) as client:
            client.send(POST + b"Transfer-Encoding: chunked\r\n\r\n")
            for part in (CHAT[:5], CHAT[5:8], CHAT[8:]):
                client.send(b"%x\r\n%b\r\n" % (len(part), part))
                await client.writer.drain()
                await asyncio.sleep(0.01)
            client.send(b"0\r\n\r\n")
            cut = await client.reply()
            client.send(POST + b"Content-Length: %d\r\n\r\n" % len(CHAT) + CHAT)
            whole = await client.reply()
        assert (cut.status, whole.status) == (200, 200)
        assert cut.header("x-warmroute-backend") == whole.header("x-warmroute-backend")
        assert whole.header("x-warmroute-decision") == "pin_hit"
        assert [seen.body for seen in posts(backends)] == [CHAT, CHAT]
        assert all(seen.header("transfer-encoding") is None for seen in posts(backends))

    async def test_expect_is_answered_here_and_goes_no_further(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        async def strict(talk: Talk) -> None:
            if talk.seen.header("expect"):
                talk.json({}, "417 Expectation Failed")
            else:
                await answer(talk)

        everywhere(backends, strict)
        async with await RawClient.connect(router.data_url) as client:
            client.send(POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(CHAT))
            async with asyncio.timeout(1 * LONG):
                assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(CHAT)
            assert (await client.reply()).status == 200

    async def test_a_body_over_the_limit_is_refused_before_it_is_asked_for(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        router = await start_router(backends, limits={"body": "64KiB"})
        async with await RawClient.connect(router.data_url) as client:
            client.send(POST + b"Expect: 100-continue\r\nContent-Length: 70000\r\n\r\n")
            reply = await client.reply()
            assert (reply.status, reply.header("connection")) == (413, "close")
            assert await client.reader.read() == b""
        assert posts(backends) == []

    async def test_no_request_is_smuggled(self, router: Router, backends: list[FaultyBackend]) -> None:
        for what, framing in DOUBTFUL.items():
            before = len(posts(backends))
            async with await RawClient.connect(router.data_url) as client:
                client.send(POST + framing + b"\r\n2\r\n{}\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
                reply = await client.reply()
                if reply.status == 400:
                    assert await client.reader.read() == b"", what
            assert reply.status in (200, 400), what
            new = posts(backends)[before:]
            assert [seen.body for seen in new] == ([b"{}"] if reply.status == 200 else []), what
        for seen in (seen for backend in backends for seen in backend.begun):
            assert b"smuggled" not in seen.head + seen.body
            assert not (seen.header("content-length") and seen.header("transfer-encoding"))


class TestMethods:
    async def test_head_of_the_models_is_as_get_without_a_body(self, router: Router) -> None:
        async with await RawClient.connect(router.data_url) as client:
            client.send(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
            got = await client.reply("GET")
            client.send(b"HEAD /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await client.reply("HEAD")
            assert (head.status, head.headers, head.body) == (200, got.headers, b"")
            assert (await client.chat("s")).status == 200  # the connection is in step

    async def test_an_answer_without_a_body_ends(self, router: Router, backends: list[FaultyBackend]) -> None:
        async with asyncio.timeout(1 * LONG), await RawClient.connect(router.data_url) as client:
            for status in (b"204 No Content", b"304 Not Modified", b"204 No Content"):
                everywhere(backends, raw_answer(b"HTTP/1.1 " + status + b"\r\n\r\n"))
                reply = await client.chat("s")
                assert (reply.status, reply.body) == (int(status[:3]), b"")

    async def test_a_preflight_is_the_backends_to_answer(self, router: Router, backends: list[FaultyBackend]) -> None:
        """As vLLM does by its own settings; what the router says itself a page may read."""
        names = (
            "Access-Control-Allow-Headers: authorization,x-session-id\r\nAccess-Control-Allow-Origin: http://ui.example"
        )
        everywhere(backends, raw_answer(f"HTTP/1.1 200 OK\r\n{names}\r\nContent-Length: 2\r\n\r\nOK".encode()))
        asked = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization,x-session-id"
        origin = "Origin: http://ui.example"
        for path in ("/v1/chat/completions", "/v1/messages"):
            reply = await raw(
                router.data_url, f"OPTIONS {path} HTTP/1.1\r\nHost: x\r\n{origin}\r\n{asked}\r\n\r\n".encode()
            )
            assert (reply.status, reply.body) == (200, b"OK")
            assert reply.header("access-control-allow-headers") == "authorization,x-session-id"
            assert [v for k, v in reply.headers if k == "access-control-allow-origin"] == ["http://ui.example"]
        sent = [seen for b in backends for seen in b.begun if seen.line.startswith("OPTIONS")]
        assert [seen.header("origin") for seen in sent] == ["http://ui.example"] * 2
        refused = await raw(
            router.data_url, f"OPTIONS /sleep HTTP/1.1\r\nHost: x\r\n{origin}\r\n{asked}\r\n\r\n".encode()
        )
        assert (refused.status, refused.header("access-control-allow-origin")) == (404, "*")
        assert len([seen for b in backends for seen in b.begun if seen.line.startswith("OPTIONS")]) == 2

    async def test_other_methods_are_told_the_right_one(self, router: Router, backends: list[FaultyBackend]) -> None:
        for method in ("GET", "PUT", "DELETE", "PATCH", "PROPFIND", "TRACE"):
            reply = await raw(router.data_url, f"{method} /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert (method, reply.status, reply.header("allow")) == (method, 405, "POST")
        for line in ("CONNECT example:443", "FOO1 /v1/models", "hello"):
            reply = await raw(router.data_url, f"{line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert (line, 400 <= reply.status < 500) == (line, True)
        assert posts(backends) == []
