"""Clients that leave, stop reading or close half of their connection."""

import asyncio
import io
import resource
import socket
import time
from collections.abc import Callable

import pytest

from warmroute.app import Router
from warmroute.proxy.connection import Connection
from warmroute.proxy.pool import Pool

from ..integration.conftest import until
from ..integration.scripted import RawClient, Script, Talk, answer, role, token
from .backend import FaultyBackend, everywhere, posts, silence, turn
from .conftest import LONG, StartRouter


async def silence_after_head(talk: Talk) -> None:
    talk.stream_head()
    await silence(talk)


async def silence_after_one_event(talk: Talk) -> None:
    talk.stream_head()
    talk.event(role())
    talk.event(token("one"))
    await silence(talk)


async def sixty_events(talk: Talk) -> None:
    talk.stream_head()
    for i in range(60):
        talk.event(token(str(i)))
        await talk.drain()
        await asyncio.sleep(0.05)
    talk.end()


def nothing_left(router: Router) -> bool:
    """No place is taken at any backend, and no exchange runs."""
    busy = [c for pool in router._pools.values() for c in pool.connections if not c.complete]
    return not busy and all(b.in_flight == 0 for b in router.registry.backends.values())


class TestClientLeaves:
    @pytest.mark.parametrize("script", [silence, silence_after_head, sixty_events, silence_after_one_event])
    async def test_the_backend_is_told_at_once(
        self,
        backends: list[FaultyBackend],
        start_router: StartRouter,
        access_log: io.StringIO,
        caplog: pytest.LogCaptureFixture,
        script: Script,
    ) -> None:
        router = await start_router(backends, log={"format": "json"})
        kinds = (False, True) if script is silence else (True,)
        for stream in kinds:
            everywhere(backends, script)
            client = await RawClient.connect(router.data_url)
            client.post({"model": "m", "stream": stream}, {"x-session-id": "s"})
            await until(lambda: any(b.running for b in backends))
            if script in (sixty_events, silence_after_one_event):
                await client.head()
                for _ in range(4 if script is sixty_events else 1):
                    await client.chunk()
            asked = next(b for b in backends if b.running)
            left_at = time.monotonic()
            client.writer.transport.abort()
            await self.told(asked, asked.posts[-1].connection, left_at)
            await until(lambda: nothing_left(router))
            everywhere(backends, answer)
            assert (await turn(router.data_url, "s")).status == 200
        await until(lambda: router.counters.total == 2 * len(kinds))
        router._access_log.flush()  # type: ignore[union-attr]
        assert access_log.getvalue().count("\n") == 2 * len(kinds)
        assert "Traceback" not in caplog.text
        assert all(b.failures == 0 for b in router.registry.backends.values())

    @staticmethod
    async def told(backend: FaultyBackend, connection: int, left_at: float) -> None:
        """The backend's connection ends soon after the client has left."""
        await until(lambda: connection in backend.closed_at, within=5 * LONG)
        assert backend.closed_at[connection] - left_at < 1 * LONG

    async def test_a_client_that_sent_a_long_body_may_leave_too(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        everywhere(backends, silence)
        client = await RawClient.connect(router.data_url)
        client.post(b'{"model":"m","x":"' + b"y" * 5_000_000 + b'"}')
        await until(lambda: len(posts(backends)) == 1)
        client.writer.transport.abort()
        await until(lambda: sum(b.running for b in backends) == 0, within=1 * LONG)
        await until(lambda: nothing_left(router))

    async def test_a_client_that_leaves_while_its_backend_is_chosen_anew(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        """The first backend breaks just when the client has gone: nobody else is asked for an answer nobody reads."""
        client = await RawClient.connect(router.data_url)

        async def break_when_left(talk: Talk) -> None:
            client.writer.transport.abort()
            talk.reset()

        everywhere(backends, break_when_left)
        client.post({"model": "m"})
        await until(lambda: router.counters.total == 1)
        await until(lambda: nothing_left(router))
        assert router.counters.internal_errors == {}

    async def test_half_of_a_connection_closed(self, router: Router, backends: list[FaultyBackend]) -> None:
        """A client that will send no more is either served or given up; nothing stays behind."""

        async def slow(talk: Talk) -> None:
            await asyncio.sleep(0.2)
            await answer(talk)

        everywhere(backends, slow)
        async with await RawClient.connect(router.data_url) as client:
            client.post({"model": "m"})
            client.writer.write_eof()
            got = await asyncio.wait_for(client.reader.read(), 5 * LONG)
        assert got == b"" or got.startswith(b"HTTP/1.1 200")
        await until(lambda: nothing_left(router) and router.counters.total == 1)
        assert router.counters.internal_errors == {}

    async def test_many_clients_that_leave_leave_nothing(self, router: Router, backends: list[FaultyBackend]) -> None:
        everywhere(backends, sixty_events)

        async def leave(number: int) -> None:
            client = await RawClient.connect(router.data_url)
            client.post({"model": "m", "stream": True}, {"x-session-id": str(number)})
            await client.head()
            for _ in range(number % 4):
                await client.chunk()
            client.writer.transport.abort()

        tasks = len(asyncio.all_tasks())
        for _ in range(4):
            await asyncio.gather(*(leave(i) for i in range(25)))
        await until(lambda: nothing_left(router) and router.counters.total == 100, within=5 * LONG)
        await until(lambda: sum(b.running for b in backends) == 0)
        assert router.counters.client_aborts == 100
        await until(lambda: len(asyncio.all_tasks()) <= tasks + 2)


def rss() -> int:
    """Bytes of memory that this process has in use now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


EVENT = b"data: " + b"x" * (64 * 1024 - 8) + b"\n\n"
TOTAL = 32 << 20


class TestSlowReader:
    async def test_a_client_that_stops_reading_stops_its_backend_and_nobody_else(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        pushed = 0

        async def flood(talk: Talk) -> None:
            nonlocal pushed
            talk.stream_head()
            while pushed < TOTAL:
                talk.chunk(EVENT)
                await talk.drain()
                pushed += len(EVENT)
            talk.end()

        everywhere(backends, flood)
        memory = rss()
        async with await RawClient.connect(router.data_url, receive_buffer=4096) as slow:
            slow.post({"model": "m", "stream": True}, {"x-session-id": "s"})
            await slow.head()
            stopped = await self.at_rest(lambda: pushed)
            assert stopped < 16 << 20
            assert rss() - memory < 20 << 20
            everywhere(backends, answer)
            began = time.monotonic()
            for i in range(20):
                assert (await turn(router.data_url, "s" if i % 2 else f"s{i}")).status == 200
            assert time.monotonic() - began < 1 * LONG
            assert pushed == stopped
            got = 0
            while part := await slow.chunk():
                got += len(part)
            assert got == TOTAL

    async def test_when_it_leaves_its_backend_is_told(self, router: Router, backends: list[FaultyBackend]) -> None:
        pushed = 0

        async def flood(talk: Talk) -> None:
            nonlocal pushed
            talk.stream_head()
            while True:
                talk.chunk(EVENT)
                await talk.drain()
                pushed += len(EVENT)

        everywhere(backends, flood)
        slow = await RawClient.connect(router.data_url, receive_buffer=4096)
        slow.post({"model": "m", "stream": True})
        await slow.head()
        await self.at_rest(lambda: pushed)
        sock: socket.socket = slow.writer.get_extra_info("socket")
        assert sock.fileno() >= 0
        slow.writer.transport.abort()
        await until(lambda: sum(b.running for b in backends) == 0, within=1 * LONG)
        await until(lambda: nothing_left(router))

    @staticmethod
    async def at_rest(pushed: Callable[[], int]) -> int:
        """Wait until nothing has moved for a while; what has been pushed by then."""
        last, since = pushed(), time.monotonic()
        async with asyncio.timeout(10 * LONG):
            while time.monotonic() - since < 0.5 or last == 0:
                await asyncio.sleep(0.02)
                if pushed() != last:
                    last, since = pushed(), time.monotonic()
        return last

    async def test_it_is_let_go_in_the_end(self, backends: list[FaultyBackend], start_router: StartRouter) -> None:
        router = await start_router(backends, limits={"send_timeout": 0.3})

        async def flood(talk: Talk) -> None:
            talk.stream_head()
            while True:
                talk.chunk(EVENT)
                await talk.drain()

        everywhere(backends, flood)
        async with await RawClient.connect(router.data_url, receive_buffer=4096) as slow:
            slow.post({"model": "m", "stream": True})
            await slow.head()
            await until(lambda: nothing_left(router), within=2 * LONG)


async def test_who_leaves_between_two_backends_ends_nobody_elses_request(
    backends: list[FaultyBackend], start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first backend has failed with an answer that leaves its connection whole, and the second is slow to connect."""
    router = await start_router(backends[:2])
    answering, connecting, connects = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def script(talk: Talk) -> None:
        if b"fails" in talk.seen.body:
            talk.send(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")
        else:
            await answering.wait()
            await answer(talk)

    async def connect(pool: Pool, make: type[Connection] = Connection) -> Connection:
        if any(b.posts for b in backends):
            connecting.set()
            await connects.wait()
        return await at_once(pool, make)

    at_once = Pool.connect
    monkeypatch.setattr(Pool, "connect", connect)
    everywhere(backends, script)
    leaver = await RawClient.connect(router.data_url)
    leaver.post({"model": "m", "messages": [], "user": "fails"})
    await asyncio.wait_for(connecting.wait(), LONG)
    failed = next(b for b in backends if b.posts)
    others = [await RawClient.connect(router.data_url) for _ in range(16)]
    for number, other in enumerate(others):
        other.post({"model": "m", "messages": []}, {"x-session-id": str(number)})
    await until(
        lambda: any(seen.place for seen in failed.posts)
    )  # one has the kept connection, the rest wait for new ones
    aborts = router.counters.client_aborts
    leaver.writer.close()
    await until(lambda: len(router._door.guests) == len(others))
    connects.set()
    answering.set()
    assert {(await asyncio.wait_for(other.reply(), LONG)).status for other in others} == {200}
    assert router.counters.client_aborts == aborts + 1
    for other in others:
        other.writer.close()
