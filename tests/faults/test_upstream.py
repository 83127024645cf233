"""Connections to backends that go stale, are refused or end in disorder, and answers that are no HTTP."""

import asyncio
import time

import pytest

from warmroute.app import Router
from warmroute.config import Config

from ..integration.conftest import until
from ..integration.scripted import RawClient, Script, Talk, answer, free_port, token
from .backend import FaultyBackend, by_name, deaf_port, everywhere, hang_up, homes, posts, raw_answer, reset, turn
from .conftest import LONG, StartRouter


class TestUpstreamConnections:
    async def test_a_connection_that_dies_at_its_second_request_costs_nothing(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        async def once(talk: Talk) -> None:
            await (answer(talk) if talk.seen.place == 0 else reset(talk))

        everywhere(backends, once)
        async with await RawClient.connect(router.data_url) as client:
            replies = [await client.chat("s") for _ in range(10)]
        assert [reply.status for reply in replies] == [200] * 10
        assert len({reply.header("x-warmroute-backend") for reply in replies}) == 1
        home = by_name(backends, replies[0].header("x-warmroute-backend"))
        assert sum(seen.place == 0 for seen in home.posts) == 10
        assert len(home.posts) == len(posts(backends)) <= 20
        assert set(router.counters.retries) <= {"stale"}
        assert router.counters.moves == {}
        assert all(b.failures == 0 for b in router.registry.backends.values())

    async def test_idle_connections_that_the_backend_closes(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        """Requests come just when the backend gives its connections up: before, at and after that moment."""
        for backend in backends:
            backend.idle_close = 0.15
        router = await start_router(backends)
        async with await RawClient.connect(router.data_url) as client:
            for i in range(8):
                assert (await client.chat("s")).status == 200
                await asyncio.sleep(0.147 + i % 4 * 0.002)
        assert sum(b.answered for b in backends) == 8
        assert len([b for b in backends if b.posts]) == 1
        assert router.counters.moves == {}
        assert all(b.failures == 0 for b in router.registry.backends.values())

    async def test_an_idle_connection_is_given_up_before_vllm_does(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        router = await start_router(backends, upstream={"keepalive_expiry": 0.3})
        home = by_name(backends, (await homes(router.data_url, ["s"]))["s"])
        seen = home.posts[0]
        await until(lambda: seen.connection in home.closed_at, within=1 * LONG)
        assert (await turn(router.data_url, "s")).status == 200
        assert router.counters.retries == {}
        assert Config.from_urls(["http://a:1"]).upstream.keepalive_expiry < 5

    @pytest.mark.parametrize("how", [reset, hang_up], ids=["reset", "closed"])
    async def test_a_fresh_connection_that_breaks_sends_the_request_to_one_other(
        self, router: Router, backends: list[FaultyBackend], how: Script
    ) -> None:
        home = by_name(backends, (await homes(router.data_url, ["s"]))["s"])
        home.script = how
        reply = await turn(router.data_url, "s")
        assert (reply.status, reply.header("x-warmroute-decision")) == (200, "pin_lost")
        assert sum(b.answered for b in backends if b is not home) == 1
        everywhere(backends, how)
        assert (await turn(router.data_url, "unlucky")).status == 502
        tried = [seen for seen in posts(backends) if seen.header("x-session-id") == "unlucky"]
        assert len({seen.header("x-request-id") for seen in tried}) == 1
        assert len([b for b in backends if "unlucky" in b.sessions()]) == 2

    async def test_a_refused_connection_is_nobodys_trouble(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        slow_checks = {"interval": 60, "unsettled_interval": 60}
        router = await start_router(backends, health=slow_checks)
        first = await homes(router.data_url, [f"s{i}" for i in range(9)])
        await backends[0].stop()
        began = time.monotonic()
        after = await homes(router.data_url, first)
        assert time.monotonic() - began < 1 * LONG
        assert {s: b for s, b in after.items() if first[s] != backends[0].name} == {
            s: b for s, b in first.items() if b != backends[0].name
        }
        assert router.counters.retries["refused"] == 1  # then it is known to all


GARBAGE = {
    "no status line": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "no bytes of sense": bytes(range(256)),
    "a bad length": b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n{}",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "an impossible status": b"HTTP/1.1 999 Odd\r\nContent-Length: 2\r\n\r\n{}",
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
    "a bad first chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
}
"""Answers that break before any content."""


class TestAnswersThatAreNoHttp:
    async def test_the_client_gets_an_error_and_the_router_lives(
        self, router: Router, backends: list[FaultyBackend], caplog: pytest.LogCaptureFixture
    ) -> None:
        for what, data in GARBAGE.items():
            everywhere(backends, raw_answer(data))
            async with asyncio.timeout(3 * LONG):
                reply = await turn(router.data_url, "s")
            assert (what, reply.status) == (what, 502)
            everywhere(backends, answer)
            assert (await turn(router.data_url, "s")).status == 200, what
        assert router.counters.internal_errors == {}
        assert "Traceback" not in caplog.text

    async def test_a_head_without_end_is_given_up(self, router: Router, backends: list[FaultyBackend]) -> None:
        async def endless(talk: Talk) -> None:
            talk.send(b"HTTP/1.1 200 OK\r\n")
            for i in range(4 << 10):
                talk.send(b"X-%d: " % i + b"y" * 1000 + b"\r\n")
                await talk.drain()
            talk.send(b"Content-Length: 2\r\n\r\n{}")

        everywhere(backends, endless)
        async with asyncio.timeout(5 * LONG), await RawClient.connect(router.data_url) as client:
            client.post({"model": "m"})
            status_line = await client.reader.readuntil(b"\r\n")
        assert b" 502 " in status_line

    async def test_a_broken_chunk_after_content_ends_the_answer_visibly(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        async def bad_chunk(talk: Talk) -> None:
            talk.stream_head()
            talk.event(token("one"))
            await talk.drain()
            await asyncio.sleep(0.05)
            talk.send(b"zz\r\n")

        everywhere(backends, bad_chunk)
        reply = await turn(router.data_url, "s", stream=True)
        assert (reply.status, b'"error"' in reply.body, b"[DONE]" in reply.body) == (200, True, False)
        await until(lambda: all(not pool._idle for pool in router._pools.values()))  # none is used again

    async def test_bytes_beyond_an_answers_length_reach_nobody(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        everywhere(backends, raw_answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}EVIL"))
        for _ in range(3):
            reply = await turn(router.data_url, "s")
            assert (reply.status, reply.body) == (200, b"{}")
        assert len({seen.connection for seen in posts(backends)}) == 3

    async def test_a_flood_of_interim_answers_is_passed_over(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        async def flood(talk: Talk) -> None:
            talk.send(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 1000)
            await answer(talk)

        everywhere(backends, flood)
        async with asyncio.timeout(3 * LONG):
            reply = await turn(router.data_url, "s")
        assert (reply.status, reply.header("link")) == (200, None)

    async def test_a_body_with_a_status_that_has_none_is_dropped(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        everywhere(backends, raw_answer(b"HTTP/1.1 204 No Content\r\n\r\nbody"))
        async with await RawClient.connect(router.data_url) as client:
            assert (await client.chat("s")).status == 204
            everywhere(backends, answer)
            assert (await client.chat("s")).status == 200
        assert router.counters.internal_errors == {}


QUICK = {"connect_timeout": 0.5}


class TestConnectTimeout:
    async def test_a_host_that_says_nothing_is_given_up_in_time(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        with deaf_port() as port:
            deaf = FaultyBackend(port=port)
            never = {"interval": 60, "unsettled_interval": 60, "timeout": 50}
            router = await start_router([deaf, backends[0]], wait=False, health=never, upstream=QUICK)
            began = time.monotonic()
            found = await homes(router.data_url, [f"s{i}" for i in range(6)])
            assert time.monotonic() - began < 0.5 + 1 * LONG
            assert set(found.values()) == {backends[0].name}
            assert router.counters.retries == {"timeout": 1}
            assert "within 0.5 s" in router.registry.backends[deaf.name].health.reason

    async def test_with_nobody_else_the_error_names_backend_and_timeout(self, start_router: StartRouter) -> None:
        with deaf_port() as port:
            never = {"interval": 60, "unsettled_interval": 60, "timeout": 50}
            router = await start_router([FaultyBackend(port=port)], wait=False, health=never, upstream=QUICK)
            reply = await turn(router.data_url, "s")
        assert (reply.status, reply.header("retry-after")) == (503, "2")
        assert f"127.0.0.1:{port} is down (no connection within 0.5 s)" in str(reply.json())

    async def test_many_that_wait_for_a_deaf_host_do_not_wait_one_after_another(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        with deaf_port() as port:
            never = {"interval": 60, "unsettled_interval": 60, "timeout": 50}
            router = await start_router(
                [FaultyBackend(port=port), backends[0]], wait=False, health=never, upstream=QUICK
            )
            began = time.monotonic()
            replies = await asyncio.gather(*(turn(router.data_url, f"s{i}") for i in range(40)))
            assert [reply.status for reply in replies] == [200] * 40
            assert time.monotonic() - began < 0.5 + 1 * LONG


async def test_half_of_the_fleet_refusing_makes_no_storm_of_attempts(start_router: StartRouter) -> None:
    async with FaultyBackend() as one, FaultyBackend() as two:
        gone = [FaultyBackend(port=free_port()) for _ in range(2)]
        router = await start_router([one, two, *gone], wait=False)
        statuses = []
        for _ in range(10):
            replies = await asyncio.gather(*(turn(router.data_url) for _ in range(20)))
            statuses += [reply.status for reply in replies]
        assert statuses == [200] * 200
        assert sum(record.attempts for record in router.counters.recent) <= 1.2 * len(router.counters.recent)
        assert len(posts([one, two])) == 200
