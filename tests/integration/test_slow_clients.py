"""Clients that are slow, silent, too many, or no clients at all, over raw sockets; short deadlines, real time."""

import asyncio
import socket
from typing import Any

import httpx
import pytest

from warmroute.app import Router

from .conftest import StartRouter, until
from .scripted import CHAT_PATH, RawClient, Reply, Scripted, Talk

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
BODY = b'{"model":"m"}'
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
SHORT = 0.3
"""Seconds: the deadline that a test is about; all others stay long."""
PATIENCE = 15.0
"""Seconds that a test waits for what must come, on a machine that others use too."""


async def ended(client: RawClient) -> bytes:
    """All that comes until the router ends the connection, with or without a word: who sends on is reset."""
    async with asyncio.timeout(PATIENCE):
        try:
            return await client.reader.read()
        except ConnectionResetError:
            return b""


async def refusal(client: RawClient) -> Reply:
    """The one answer after which the router ends the connection."""
    async with asyncio.timeout(PATIENCE):
        reply = await client.reply()
        assert await client.reader.read() == b""
    assert reply.header("connection") == "close"
    assert reply.header("content-type") == "application/json"
    return reply


def code(reply: Reply) -> object:
    error: Any = reply.json()["error"]
    return error["code"]


def posts(backends: list[Scripted]) -> int:
    return sum(len(b.posts) for b in backends)


def everywhere(backends: list[Scripted], script: Any) -> None:
    for backend in backends:
        backend.script = script


class TestSlowHeads:
    @pytest.fixture
    async def router(self, backends: list[Scripted], start_router: StartRouter) -> Router:
        return await start_router(backends, limits={"head_timeout": SHORT})

    @pytest.mark.parametrize("part", [b"P", HEAD[:20], HEAD, HEAD + b"x-a: "], ids=["byte", "line", "host", "name"])
    async def test_a_part_of_a_head_is_answered_408(self, router: Router, part: bytes) -> None:
        async with await RawClient.connect(router.data_url) as client:
            client.send(part)
            reply = await refusal(client)
        assert (reply.status, code(reply)) == (408, "head_timeout")
        assert router.counters.client_timeouts == {"head": 1}

    async def test_anthropics_path_gets_anthropics_error(self, router: Router) -> None:
        async with await RawClient.connect(router.data_url) as client:
            client.send(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\n")
            reply = await refusal(client)
        assert (reply.status, reply.json()["type"]) == (408, "error")

    async def test_silence_is_ended_without_an_answer(self, router: Router) -> None:
        async with await RawClient.connect(router.data_url) as client:
            assert await ended(client) == b""
        assert router.counters.client_timeouts == {"head": 1}

    async def test_bytes_that_keep_coming_do_not_stretch_it(self, router: Router) -> None:
        async with await RawClient.connect(router.data_url) as client, asyncio.TaskGroup() as tasks:

            async def drip() -> None:
                client.send(HEAD + b"x-a: ")
                while True:
                    client.send(b"y")
                    await asyncio.sleep(0.02)

            dripping = tasks.create_task(drip())
            assert (await refusal(client)).status == 408
            dripping.cancel()

    async def test_it_counts_for_every_request_of_a_connection(self, router: Router) -> None:
        async with await RawClient.connect(router.data_url) as client:
            assert (await client.chat("s")).status == 200
            # The second request's head begins in the same bytes as the first request's end.
            client.send(HEAD + b"content-length: 13\r\n\r\n" + BODY + HEAD)
            assert (await client.reply()).status == 200
            assert (await refusal(client)).status == 408

    async def test_it_does_not_end_a_long_answer_or_an_idle_connection(
        self, router: Router, backends: list[Scripted]
    ) -> None:
        async def late(talk: Talk) -> None:
            await asyncio.sleep(3 * SHORT)
            talk.json({})

        async with await RawClient.connect(router.data_url) as client:
            everywhere(backends, late)
            assert (await client.chat("s")).status == 200
            await asyncio.sleep(3 * SHORT)
            assert (await client.chat("s")).status == 200
        assert router.counters.client_timeouts == {}


class TestSlowBodies:
    @pytest.fixture
    async def router(self, backends: list[Scripted], start_router: StartRouter) -> Router:
        return await start_router(backends, limits={"body_timeout": SHORT, "min_body_rate": 10_000})

    @pytest.mark.parametrize(
        "part",
        [
            HEAD + b"content-length: 100\r\n\r\n",
            HEAD + b"content-length: 100\r\n\r\n{",
            CHUNKED,
            CHUNKED + b"5\r\n{",
            CHUNKED + b"1\r\n{\r\n",
            HEAD + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 9\r\n\r\n",
        ],
        ids=["nothing", "a byte", "no chunk", "half a chunk", "a chunk", "upgrade"],
    )
    async def test_a_part_of_a_body_is_answered_408(
        self, router: Router, backends: list[Scripted], part: bytes
    ) -> None:
        async with await RawClient.connect(router.data_url) as client:
            client.send(part)
            reply = await refusal(client)
        assert (reply.status, code(reply), reply.header("x-warmroute-decision")) == (408, "body_timeout", "none")
        assert router.counters.client_timeouts == {"body": 1}
        await until(lambda: router.counters.requests == {("", 408, "none"): 1})
        assert posts(backends) == 0

    async def test_anthropics_path_gets_anthropics_error(self, router: Router) -> None:
        async with await RawClient.connect(router.data_url) as client:
            client.send(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
            reply = await refusal(client)
        error: Any = reply.json()["error"]
        assert (reply.status, reply.json()["type"], error["type"]) == (408, "error", "timeout_error")

    @pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
    async def test_single_bytes_do_not_stretch_it(self, router: Router, chunked: bool) -> None:
        async with await RawClient.connect(router.data_url) as client, asyncio.TaskGroup() as tasks:

            async def drip() -> None:
                client.send(CHUNKED if chunked else HEAD + b"content-length: 100000\r\n\r\n")
                while True:
                    client.send(b"1\r\ny\r\n" if chunked else b"y")
                    await asyncio.sleep(0.02)

            dripping = tasks.create_task(drip())
            assert (await refusal(client)).status == 408
            dripping.cancel()

    async def test_a_slow_body_that_gets_on_is_taken(self, backends: list[Scripted], start_router: StartRouter) -> None:
        router = await start_router(backends, limits={"body_timeout": 1.0, "min_body_rate": 100})
        parts = 40
        async with await RawClient.connect(router.data_url) as client:
            client.send(HEAD + b"content-length: %d\r\n\r\n" % (100 * parts))
            for _ in range(parts):  # 2 s in all, at twenty times the least rate
                client.send(b"y" * 100)
                await asyncio.sleep(0.05)
            assert (await client.reply()).status == 200
        assert router.counters.client_timeouts == {}

    async def test_a_body_that_nobody_reads_is_ended_too(self, router: Router) -> None:
        async with await RawClient.connect(router.data_url) as client:
            client.send(b"POST /sleep HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{")
            async with asyncio.timeout(PATIENCE):
                assert (await client.reply()).status == 404
            assert await ended(client) == b""
        assert router.counters.client_timeouts == {"body": 1}

    async def test_a_body_behind_a_long_answer_is_not_waited_for_meanwhile(
        self, router: Router, backends: list[Scripted]
    ) -> None:
        async def late(talk: Talk) -> None:
            await asyncio.sleep(3 * SHORT)
            talk.json({})

        everywhere(backends, late)
        request = HEAD + b"content-length: 13\r\n\r\n"
        async with await RawClient.connect(router.data_url) as client:
            client.send(request + BODY + request)
            async with asyncio.timeout(PATIENCE):
                assert (await client.reply()).status == 200
                client.send(BODY)
                assert (await client.reply()).status == 200


class TestIdle:
    async def test_a_connection_without_a_request_is_closed(
        self, backends: list[Scripted], start_router: StartRouter
    ) -> None:
        router = await start_router(backends, limits={"idle_timeout": SHORT})
        async with await RawClient.connect(router.data_url) as client:
            for _ in range(3):
                assert (await client.chat("s")).status == 200
            assert await ended(client) == b""
        assert router.counters.client_timeouts == {"idle": 1}

    async def test_empty_lines_are_no_request(self, backends: list[Scripted], start_router: StartRouter) -> None:
        router = await start_router(backends, limits={"idle_timeout": SHORT})
        async with await RawClient.connect(router.data_url) as client, asyncio.TaskGroup() as tasks:
            assert (await client.chat("s")).status == 200

            async def drip() -> None:
                while True:
                    client.send(b"\r\n")
                    await asyncio.sleep(0.02)

            dripping = tasks.create_task(drip())
            assert await ended(client) == b""
            dripping.cancel()


class TestReadersThatDoNotRead:
    @pytest.fixture
    async def router(self, backends: list[Scripted], start_router: StartRouter) -> Router:
        return await start_router(backends, limits={"send_timeout": SHORT})

    async def test_its_answer_is_given_up_and_its_backend_let_go(
        self, router: Router, backends: list[Scripted]
    ) -> None:
        left = asyncio.Event()

        async def flood(talk: Talk) -> None:
            try:
                talk.stream_head()
                while True:
                    talk.chunk(b"data: " + b"x" * 5000 + b"\n\n")
                    await talk.drain()
            except ConnectionError:
                left.set()
                raise

        everywhere(backends, flood)
        async with await RawClient.connect(router.data_url, receive_buffer=4096) as slow:
            slow.post({"model": "m", "stream": True}, {"x-session-id": "s"})
            await slow.head()
            async with asyncio.timeout(PATIENCE):
                await left.wait()
            await until(lambda: router.counters.client_aborts == 1)
        assert router.counters.client_timeouts == {"send": 1}
        assert all(b.in_flight == 0 for b in router.registry.backends.values())
        assert all(b.failures == 0 for b in router.registry.backends.values())

    async def test_the_rest_of_a_whole_answer_is_given_up_too(self, router: Router, backends: list[Scripted]) -> None:
        async def large(talk: Talk) -> None:
            talk.json({"x": "y" * 8_000_000})

        everywhere(backends, large)
        async with await RawClient.connect(router.data_url, receive_buffer=4096) as slow:
            slow.post({"model": "m"}, {"connection": "close"})
            await slow.head()
            await until(lambda: router.counters.client_timeouts == {"send": 1})

    async def test_a_slow_reader_gets_all_of_it(self, backends: list[Scripted], start_router: StartRouter) -> None:
        """It reads on all the time, but for some deadlines too little for the system to take more from the router."""
        router = await start_router(backends, limits={"send_timeout": 1.0})
        answer = b"HTTP/1.1 200 OK\r\ncontent-length: 8000000\r\n\r\n" + b"y" * 8_000_000

        async def large(talk: Talk) -> None:
            talk.send(answer)

        everywhere(backends, large)
        async with await RawClient.connect(router.data_url, receive_buffer=65536) as slow:
            slow.post({"model": "m"})
            await slow.head()
            got = 0
            async with asyncio.timeout(PATIENCE * 2):
                for _ in range(40):
                    got += len(await slow.reader.read(32768))
                    await asyncio.sleep(0.1)
                while part := await slow.reader.read(1 << 20):
                    got += len(part)
                    if got == 8_000_000:
                        break
        assert (got, router.counters.client_timeouts) == (8_000_000, {})

    async def test_a_stream_that_pauses_has_no_deadline(self, router: Router, backends: list[Scripted]) -> None:
        async def pausing(talk: Talk) -> None:
            talk.stream_head()
            for _ in range(2):
                talk.event({"x": 1})
                await talk.drain()
                await asyncio.sleep(3 * SHORT)
            talk.end()

        everywhere(backends, pausing)
        async with await RawClient.connect(router.data_url) as client:
            assert (await client.chat("s", stream=True)).whole


class TestTooMany:
    async def test_those_beyond_the_limit_are_told_and_places_come_back(
        self, backends: list[Scripted], start_router: StartRouter
    ) -> None:
        router = await start_router(backends, limits={"max_connections": 2})
        first = await RawClient.connect(router.data_url)
        async with await RawClient.connect(router.data_url) as second:
            assert [(await c.chat("s")).status for c in (first, second)] == [200, 200]
            for _ in range(5):
                async with await RawClient.connect(router.data_url) as third:
                    third.post({"model": "m"})
                    reply = await refusal(third)
                assert (reply.status, code(reply)) == (503, "too_many_connections")
                assert reply.header("retry-after") == "2"
            assert router.counters.connections_refused == 5
            assert (await second.chat("s")).status == 200
            first.writer.close()

            async def served() -> bool:
                async with await RawClient.connect(router.data_url) as again:
                    return (await again.chat("s")).status == 200

            async with asyncio.timeout(PATIENCE):
                while not await served():
                    await asyncio.sleep(0.02)

    async def test_silent_ones_are_closed_soon(self, backends: list[Scripted], start_router: StartRouter) -> None:
        router = await start_router(backends, limits={"max_connections": 1})
        async with await RawClient.connect(router.data_url) as first, await RawClient.connect(router.data_url) as other:
            assert (await first.chat("s")).status == 200
            assert (await ended(other)).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")

            async def closed() -> bool:
                other.send(b"x")
                await asyncio.sleep(0.05)
                return other.writer.transport.is_closing()

            async with asyncio.timeout(PATIENCE):
                while not await closed():
                    pass

    async def test_both_counts_are_in_the_metrics(self, backends: list[Scripted], start_router: StartRouter) -> None:
        router = await start_router(backends, limits={"max_connections": 1, "head_timeout": SHORT})
        async with await RawClient.connect(router.data_url) as first:
            await until(lambda: router._door.guests != set())
            async with await RawClient.connect(router.data_url) as second:
                assert (await refusal(second)).status == 503
            assert await ended(first) == b""
        async with httpx.AsyncClient() as http:
            lines = (await http.get(f"{router.admin_url}/metrics")).text.splitlines()
        assert 'warmroute_client_timeouts_total{what="head"} 1.0' in lines
        assert "warmroute_connections_refused_total 1.0" in lines


HOSTLESS = HEAD.replace(b"host: x\r\n", b"")
REFUSED = {
    "no host": HOSTLESS + b"content-length: 13\r\n\r\n" + BODY,
    "two hosts": HEAD + b"host: x\r\ncontent-length: 13\r\n\r\n" + BODY,
    "two hosts of HTTP/1.0": HEAD.replace(b"1.1", b"1.0") + b"host: y\r\n\r\n",
    "length and coding": HEAD
    + b"content-length: 13\r\ntransfer-encoding: chunked\r\n\r\nd\r\n"
    + BODY
    + b"\r\n0\r\n\r\n",
    "coding and length": HEAD
    + b"transfer-encoding: chunked\r\ncontent-length: 13\r\n\r\nd\r\n"
    + BODY
    + b"\r\n0\r\n\r\n",
    "two lengths": HEAD + b"content-length: 13\r\ncontent-length: 14\r\n\r\n" + BODY,
    "a list of lengths": HEAD + b"content-length: 13, 13\r\n\r\n" + BODY,
    "a signed length": HEAD + b"content-length: +13\r\n\r\n" + BODY,
    "a length beyond numbers": HEAD + b"content-length: 99999999999999999999\r\n\r\n" + BODY,
    "a length without digits": HEAD + b"content-length: \r\n\r\n" + BODY,
    "another coding": HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "an unknown coding": HEAD + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a coding in HTTP/1.0": CHUNKED.replace(b"1.1", b"1.0") + b"0\r\n\r\n",
    "a folded header": HEAD + b"x-a: b\r\n c\r\n\r\n",
    "NUL in a value": HEAD + b"x-a: b\0c\r\n\r\n",
    "CR in a value": HEAD + b"x-a: b\rc\r\n\r\n",
    "LF ends a header": HEAD + b"x-a: b\nx-c: d\r\n\r\n",
    "a space before the colon": HEAD + b"content-length : 13\r\n\r\n" + BODY,
    "a header without a name": HEAD + b": a\r\n\r\n",
    "a target with a space": b"GET /v1/models x HTTP/1.1\r\nhost: x\r\n\r\n",
    "HTTP/0.9": b"GET /v1/models\r\n\r\n",
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a size that is none": CHUNKED + b"g\r\nx\r\n0\r\n\r\n",
    "a negative size": CHUNKED + b"-1\r\nx\r\n0\r\n\r\n",
    "a size with 0x": CHUNKED + b"0x1\r\nx\r\n0\r\n\r\n",
    "a size beyond numbers": CHUNKED + b"fffffffffffffffff\r\nx",
    "a size that is too small": CHUNKED + b"1\r\nxy\r\n0\r\n\r\n",
    "a chunk after a good one": CHUNKED + b"1\r\nx\r\nzz\r\n",
    "an endless extension": CHUNKED + b"1;" + b"a" * 400_000,
    "endless trailers": CHUNKED + b"1\r\nx\r\n0\r\nx-a: " + b"a" * 400_000,
}


class TestDoubtfulRequests:
    @pytest.mark.parametrize("raw", list(REFUSED.values()), ids=list(REFUSED))
    async def test_they_are_refused_and_nothing_behind_them_is_heard(
        self, router: Router, backends: list[Scripted], raw: bytes
    ) -> None:
        behind = HEAD + b"content-length: 13\r\n\r\n" + BODY
        async with await RawClient.connect(router.data_url) as client:
            client.send(raw + behind)
            reply = await refusal(client)
        assert (reply.status, code(reply)) == (400, "bad_request")
        assert posts(backends) == 0
        assert router.counters.internal_errors == {}

    async def test_a_fault_in_pieces_is_the_same_fault(self, router: Router, backends: list[Scripted]) -> None:
        for name in ("no host", "two hosts", "length and coding", "a folded header", "a size that is none"):
            async with await RawClient.connect(router.data_url) as client:
                client.writer.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for byte in REFUSED[name]:
                    client.send(bytes([byte]))
                    await asyncio.sleep(0)
                assert ((await refusal(client)).status, name) == (400, name)
        assert posts(backends) == 0

    async def test_a_refusal_comes_behind_the_answers_before_it(self, router: Router, backends: list[Scripted]) -> None:
        async def late(talk: Talk) -> None:
            talk.stream_head()
            talk.event({"x": 1})
            await asyncio.sleep(0.2)
            talk.end()

        everywhere(backends, late)
        good = HEAD + b"content-length: 13\r\n\r\n" + BODY
        for bad in (b"hello there\r\n\r\n", REFUSED["no host"], REFUSED["a size that is none"]):
            async with await RawClient.connect(router.data_url) as client:
                client.send(good + good + bad)
                async with asyncio.timeout(PATIENCE):
                    assert [(await client.reply()).status for _ in range(2)] == [200, 200]
                assert (await refusal(client)).status == 400

    async def test_a_bad_chunk_on_anthropics_path_gets_anthropics_error(self, router: Router) -> None:
        async with await RawClient.connect(router.data_url) as client:
            client.send(CHUNKED.replace(CHAT_PATH.encode(), b"/v1/messages") + b"g\r\n")
            reply = await refusal(client)
        assert (reply.status, reply.json()["type"]) == (400, "error")
        await until(lambda: router.counters.requests == {("", 400, "none"): 1})

    async def test_old_clients_may_leave_the_host_out(self, router: Router) -> None:
        async with await RawClient.connect(router.data_url) as client:
            client.send(b"GET /livez HTTP/1.0\r\n\r\n")
            assert (await client.reply("GET")).status == 200

    @pytest.mark.parametrize(("number", "status"), [(100, 200), (101, 431)])
    async def test_headers_are_counted(self, router: Router, number: int, status: int) -> None:
        async with await RawClient.connect(router.data_url) as client:
            client.send(HEAD + b"content-length: 13\r\n" + b"x-a: b\r\n" * (number - 2) + b"\r\n" + BODY)
            async with asyncio.timeout(PATIENCE):
                reply = await client.reply()
        assert reply.status == status

    async def test_trailers_are_no_headers(self, router: Router, backends: list[Scripted]) -> None:
        async with await RawClient.connect(router.data_url) as client:
            client.send(CHUNKED + b"d\r\n" + BODY + b"\r\n")
            client.send(b"0\r\nx-session-id: s\r\nauthorization: k\r\n\r\n")
            reply = await client.reply()
            assert (reply.status, reply.header("x-warmroute-key")) == (200, None)
            assert (await client.chat("s")).status == 200
        first = next(seen for b in backends for seen in b.posts if seen.body == BODY)
        assert (first.header("authorization"), first.header("x-session-id")) == (None, None)

    @pytest.mark.parametrize(
        ("line", "status", "allow"),
        [
            ("BREW /v1/chat/completions", 405, "POST"),
            ("get /v1/models", 405, "GET, HEAD"),
            ("BREW /sleep", 404, None),
            ("BREW", 400, None),
        ],
    )
    async def test_methods_that_nobody_knows(self, router: Router, line: str, status: int, allow: str | None) -> None:
        async with await RawClient.connect(router.data_url) as client:
            client.send(f"{line} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            reply = await refusal(client)
        assert (reply.status, reply.header("allow")) == (status, allow)

    async def test_an_upgrade_without_a_body_is_answered(self, router: Router) -> None:
        async with await RawClient.connect(router.data_url) as client:
            for _ in range(2):
                client.send(HEAD + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 0\r\n\r\n")
                async with asyncio.timeout(PATIENCE):
                    assert (await client.reply()).status == 200


async def test_a_refusal_reaches_a_client_that_is_still_sending(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    """A connection that is closed under unread bytes is reset, and the client never learns why."""
    router = await start_router(backends, limits={"body": "64KiB"})
    size = 20_000_000
    for _ in range(5):
        async with await RawClient.connect(router.data_url) as client:
            client.send(HEAD + b"content-length: %d\r\n\r\n" % size + b"x" * size)
            assert (await refusal(client)).status == 413
