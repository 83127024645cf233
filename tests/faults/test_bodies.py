"""Bodies that no good client sends, and uploads that are large."""

import asyncio
import hashlib
import json
import random
import time

import pytest

from warmroute.app import Router

from ..integration.conftest import until
from ..integration.scripted import RawClient, Reply, Talk
from .backend import FaultyBackend, everywhere, homes, posts, raw, turn
from .conftest import LONG, StartRouter

REFUSAL = {"error": {"message": "not so", "type": "BadRequestError", "param": None, "code": 400}}


async def refuse(talk: Talk) -> None:
    talk.json(REFUSAL, "400 Bad Request")


MALFORMED = {
    "cut": b'{"model":',
    "empty": b"",
    "not UTF-8": b'{"model":"\xff\xfe"}',
    "byte order mark": b'\xef\xbb\xbf{"model":"m"}',
    "array": b"[1,2]",
    "string": b'"hi"',
    "null": b"null",
    "deep": b"[" * 200_000,
    "deep in a field": b'{"model":"m","messages":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "long number": b'{"model":"m","seed":' + b"9" * 5000 + b"}",
    "not a number": b'{"model":"m","temperature":NaN}',
    "duplicate keys": b'{"model":"m","model":"m","session_id":"a","session_id":"b"}',
    "lone surrogate": b'{"model":"m","session_id":"\\ud800"}',
    "wrong types": b'{"model":"m","session_id":{},"messages":7}',
}
"""Sent on unchanged, so that the engine says what is wrong with them."""


async def post(router: Router, body: bytes, kind: str = "application/json") -> Reply:
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return await raw(router.data_url, head.encode() + body)


class TestMalformedBodies:
    async def test_the_backend_gets_the_bytes_and_says_what_is_wrong(
        self, router: Router, backends: list[FaultyBackend], caplog: pytest.LogCaptureFixture
    ) -> None:
        everywhere(backends, refuse)
        for body in MALFORMED.values():
            reply = await post(router, body)
            assert (reply.status, reply.whole, reply.json()) == (400, True, REFUSAL)
        assert sorted(seen.body for seen in posts(backends)) == sorted(MALFORMED.values())
        assert all(b.failures == 0 for b in router.registry.backends.values())
        assert router.counters.internal_errors == {}
        everywhere(backends, FaultyBackend().script)
        assert (await turn(router.data_url, "good")).status == 200
        assert "Traceback" not in caplog.text

    @pytest.mark.parametrize(
        "kind", ["text/plain", "application/x-www-form-urlencoded", "", "application/json; charset=x"]
    )
    async def test_the_content_type_is_the_backends_affair(
        self, router: Router, backends: list[FaultyBackend], kind: str
    ) -> None:
        body = b'{"model":"m","session_id":"s"}'
        assert (await post(router, body, kind)).status == 200
        assert posts(backends)[0].body == body

    async def test_a_body_that_ends_early_reaches_nobody(self, router: Router, backends: list[FaultyBackend]) -> None:
        async with await RawClient.connect(router.data_url) as client:
            client.send(b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"model":"m"')
            await client.writer.drain()
        await until(lambda: router.counters.total == 1)
        assert posts(backends) == []
        assert router.counters.recent[0].aborted
        assert router.counters.internal_errors == {}

    @pytest.mark.parametrize("announced", [True, False], ids=["announced", "chunked"])
    async def test_a_body_over_the_limit_is_413(
        self, backends: list[FaultyBackend], start_router: StartRouter, announced: bool
    ) -> None:
        router = await start_router(backends, limits={"body": "64KiB"})
        head = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\n"
        body = b"Content-Length: 70000\r\n\r\n" if announced else b"Transfer-Encoding: chunked\r\n\r\n"
        parts = b"" if announced else (b"400\r\n" + b"x" * 1024 + b"\r\n") * 80
        reply = await raw(router.data_url, head + body + parts)
        assert (reply.status, reply.json()["type"]) == (413, "error")  # Anthropic's shape
        assert posts(backends) == []

    async def test_a_long_body_keeps_nobody_waiting_for_the_loop(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        """No single step of the event loop takes long, by its own clock, while 8 MiB of JSON pass."""
        text = json.dumps(
            {"model": "m", "messages": [{"role": "user", "content": "word " * 40} for _ in range(37_000)]}
        )
        assert len(text) > 8 << 20
        longest, over = 0.0, False

        async def tick() -> None:
            nonlocal longest
            while not over:
                before = time.thread_time()
                await asyncio.sleep(0)
                longest = max(longest, time.thread_time() - before)

        ticking = asyncio.ensure_future(tick())
        assert (await post(router, text.encode())).status == 200
        over = True
        await ticking
        assert longest < 0.5
        assert len(posts(backends)[0].body) == len(text)


def multipart(sound: bytes, boundary: str = "b-o-u-n-d") -> bytes:
    fields = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in (("model", "m"), ("response_format", "srt"))
    )
    file = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    return (fields + file).encode() + sound + f"\r\n--{boundary}--\r\n".encode()


def upload_head(length: int, boundary: str = "b-o-u-n-d") -> bytes:
    head = "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\nX-Session-ID: s1\r\n"
    return f"{head}Content-Type: multipart/form-data; boundary={boundary}\r\nContent-Length: {length}\r\n\r\n".encode()


class TestUploads:
    async def test_an_upload_arrives_unchanged_where_its_session_lives(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        hashes: list[str] = []

        async def transcribe(talk: Talk) -> None:
            hashes.append(hashlib.sha256(talk.seen.body).hexdigest())
            text = b"1\n00:00:00,000 --> 00:00:01,000\nhi\n"
            talk.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(text) + text)

        home = (await homes(router.data_url, ["s1"]))["s1"]
        everywhere(backends, transcribe)
        sent = []
        for size in (30_000_000, 1, 200_000, 0, 3_000_000):
            body = multipart(random.Random(size).randbytes(size))
            reply = await raw(router.data_url, upload_head(len(body)) + body)
            assert (reply.status, reply.header("content-type")) == (200, "text/plain")
            assert reply.body.startswith(b"1\n00:00:00,000 -->")
            assert reply.header("x-warmroute-backend") == home
            sent.append(hashlib.sha256(body).hexdigest())
        assert hashes == sent
        uploads = [seen for seen in posts(backends) if "audio" in seen.path]
        assert {seen.header("content-type") for seen in uploads} == {"multipart/form-data; boundary=b-o-u-n-d"}

    async def test_a_broken_upload_is_refused_by_the_backend(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        everywhere(backends, refuse)
        body = multipart(b"sound", boundary="another")
        reply = await raw(router.data_url, upload_head(len(body)) + body)
        assert (reply.status, reply.json()) == (400, REFUSAL)
        assert posts(backends)[0].body == body

    async def test_an_upload_over_the_limit_is_told_so(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        router = await start_router(backends, limits={"body": "1MiB"})
        reply = await raw(router.data_url, upload_head(30_000_000))
        assert reply.status == 413
        assert "limits.body" in json.dumps(reply.json())

    async def test_an_upload_is_streamed(self, router: Router, backends: list[FaultyBackend]) -> None:
        """Where the headers say all that routing needs, the first bytes reach the backend before the last are sent."""
        body = multipart(bytes(3_000_000))
        async with await RawClient.connect(router.data_url) as client:
            client.send(upload_head(len(body)) + body[:2_000_000])
            await until(lambda: any(s.line.startswith("POST") for b in backends for s in b.begun), within=0.5 * LONG)
            client.send(body[2_000_000:])
            assert (await client.reply()).status == 200
