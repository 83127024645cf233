"""A backend that dies at any place of its answer, and answers whose status must not be touched."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import pytest

from warmroute.app import Router

from ..integration.conftest import until
from ..integration.scripted import RawClient, Script, Talk, answer, role
from .backend import (
    FaultyBackend,
    by_name,
    cut_stream,
    everywhere,
    hang_up,
    homes,
    posts,
    raw_answer,
    reset,
    stream,
    turn,
)
from .conftest import LONG

Ending = Callable[[Talk], Awaitable[None]]
ENDINGS = pytest.mark.parametrize("ending", [reset, hang_up], ids=["reset", "closed"])


def after_head(ending: Ending) -> Script:
    async def script(talk: Talk) -> None:
        talk.stream_head()
        await talk.drain()
        await ending(talk)

    return script


def after_preamble(ending: Ending) -> Script:
    async def script(talk: Talk) -> None:
        talk.stream_head()
        talk.chunk(b": keep-alive\n\n")
        talk.event(role())
        await talk.drain()
        await asyncio.sleep(0.02)
        await ending(talk)

    return script


def half_a_body(head: bytes, ending: Ending) -> Script:
    async def script(talk: Talk) -> None:
        talk.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + head)
        await talk.drain()
        await asyncio.sleep(0.02)
        await ending(talk)

    return script


class TestBackendDeath:
    @ENDINGS
    async def test_before_content_the_next_backend_answers_and_the_client_sees_nothing(
        self, router: Router, backends: list[FaultyBackend], ending: Ending
    ) -> None:
        for fault in (ending, after_head(ending), after_preamble(ending)):
            session = f"{fault}"
            home = by_name(backends, (await homes(router.data_url, [session]))[session])
            everywhere(backends, stream)
            home.script = fault
            reply = await turn(router.data_url, session, stream=True)
            assert (reply.status, reply.whole) == (200, True)
            assert reply.body.endswith(b"data: [DONE]\n\n")
            assert b"keep-alive" not in reply.body
            assert reply.header("x-warmroute-backend") != home.name
            assert router.registry.backends[home.name].failures >= 1
            home.script = stream
        assert router.counters.moves == {"pin_lost": 3}

    @ENDINGS
    async def test_after_content_the_end_is_no_false_one(
        self, router: Router, backends: list[FaultyBackend], ending: Ending
    ) -> None:
        everywhere(backends, cut_stream(ending))
        async with await RawClient.connect(router.data_url) as client:
            client.post({"model": "m", "stream": True}, {"x-session-id": "s"})
            assert (await client.head())[0] == 200
            body = await client.chunk()
            assert body == b'data: {"i": 1}\n\n'  # at once, before the break
            died_at = time.monotonic()
            while part := await client.chunk():
                body += part
            assert time.monotonic() - died_at < 1 * LONG
        whole, broken, error, rest = body.split(b"\n\n")
        assert (whole, broken, rest) == (b'data: {"i": 1}', b'data: {"i":', b"")
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "backend_failed"
        assert b"[DONE]" not in body
        assert b"finish_reason" not in body
        assert len(posts(backends)) == 1  # nothing was sent again
        assert sum(b.failures for b in router.registry.backends.values()) == 1
        everywhere(backends, answer)
        began = time.monotonic()
        assert (await turn(router.data_url, "s")).status == 200
        assert time.monotonic() - began < 1.5 * LONG

    @ENDINGS
    async def test_half_a_body_is_half_a_body_for_the_client_too(
        self, router: Router, backends: list[FaultyBackend], ending: Ending
    ) -> None:
        heads = {
            "a length": b'Content-Length: 100\r\n\r\n{"half":',
            "chunks": b'Transfer-Encoding: chunked\r\n\r\n8\r\n{"half":\r\n',
        }
        for what, head in heads.items():
            everywhere(backends, half_a_body(head, ending))
            before = len(posts(backends))
            reply = await turn(router.data_url, "s")
            assert (what, reply.status, reply.whole, reply.body) == (what, 200, False, b'{"half":')
            assert len(posts(backends)) == before + 1

    async def test_a_packed_stream_is_broken_off_with_nothing_added(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: br\r\n"

        async def packed(talk: Talk) -> None:
            talk.send(head + b"Transfer-Encoding: chunked\r\n\r\n")
            talk.chunk(b"\x01\x02\x03")
            await talk.drain()
            await asyncio.sleep(0.05)
            talk.reset()

        everywhere(backends, packed)
        reply = await turn(router.data_url, "s", stream=True)
        assert (reply.body, reply.whole) == (b"\x01\x02\x03", False)

    async def test_a_request_that_breaks_backends_is_given_to_two_at_most(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        everywhere(backends, reset)
        reply = await turn(router.data_url, "poison")
        assert (reply.status, reply.header("retry-after")) == (502, "1")
        assert len(posts(backends)) == 2
        assert all(name in str(reply.json()) for name in {b.name for b in backends if b.posts})
        everywhere(backends, answer)
        replies = [await turn(router.data_url, f"s{i}") for i in range(6)]
        assert [reply.status for reply in replies] == [200] * 6

    async def test_a_killed_backend_under_running_streams(self, router: Router, backends: list[FaultyBackend]) -> None:
        """Its own streams end with an error event, all others whole."""
        go_on = asyncio.Event()

        async def long(talk: Talk) -> None:
            talk.stream_head()
            talk.event({"i": 1})
            await talk.drain()
            await go_on.wait()
            talk.event(b"[DONE]")
            talk.end()

        everywhere(backends, long)
        running = [asyncio.ensure_future(turn(router.data_url, f"s{i}", stream=True)) for i in range(12)]
        await until(lambda: sum(b.running for b in backends) == 12)
        dead = backends[0]
        lost = dead.sessions()
        await dead.stop()
        await until(lambda: sum(task.done() for task in running) == len(lost))
        go_on.set()
        replies = await asyncio.gather(*running)
        for i, reply in enumerate(replies):
            assert (b"[DONE]" in reply.body, b'"error"' in reply.body) == (f"s{i}" not in lost, f"s{i}" in lost)


STATUSES = {
    "400 Bad Request": b'{"error":{"message":"context length 4096 exceeded","code":400}}',
    "404 Not Found": b'{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","code":404}}',
    "409 Conflict": b"{}",
    "413 Payload Too Large": b'{"error":{"message":"too large"}}',
    "422 Unprocessable Entity": b'{"detail":[]}',
    "429 Too Many Requests": b'{"error":{"message":"slow down"}}',
    "500 Internal Server Error": b"boom",
    "501 Not Implemented": b"no",
    "502 Bad Gateway": b"no",
    "504 Gateway Timeout": b"late",
    "503 Service Unavailable": b"busy",
    "200 OK": b'{"choices":[]}',
}


class TestStatusFidelity:
    @pytest.mark.parametrize("streamed", [True, False], ids=["stream", "no stream"])
    async def test_status_type_and_body_pass_unchanged(
        self, router: Router, backends: list[FaultyBackend], streamed: bool
    ) -> None:
        for status, body in STATUSES.items():
            kind = "application/json" if body.startswith(b"{") else "text/plain"
            head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nRetry-After: 7\r\nContent-Length: {len(body)}\r\n\r\n"
            everywhere(backends, raw_answer(head.encode() + body))
            before = len(posts(backends))
            reply = await turn(router.data_url, "s", stream=streamed)
            assert (reply.status, reply.body) == (int(status[:3]), body)
            assert (reply.header("content-type"), reply.header("retry-after")) == (kind, "7")
            tries = 2 if reply.status in (500, 502, 504) else 1  # a fault of the server's may be none of another's
            assert len(posts(backends)) == before + tries
        assert router.counters.retries == {"status": 3}
        assert {b.state for b in router.registry.backends.values()} == {"up"}

    async def test_a_refusal_binds_no_session(self, router: Router, backends: list[FaultyBackend]) -> None:
        everywhere(backends, raw_answer(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}"))
        await turn(router.data_url, "s")
        assert len(router.pins) == 0
