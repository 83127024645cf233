"""Routers that share pins through a store which is not there, is killed, refuses writes or loses its connections."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from warmroute.app import Router

from ..integration.conftest import until
from ..integration.scripted import RawClient, Reply
from ..integration.valkey import Valkey
from .backend import FaultyBackend, by_name, homes, turn
from .conftest import LONG, StartRouter

PATIENT = {"deadline": "500ms"}
"""For tests of who agrees with whom: a busy machine may stop for longer than a router should wait."""


def in_use(*routers: Router) -> bool:
    return all(router.shared is not None and router.shared.store.up for router in routers)


def reason(router: Router) -> str:
    assert router.shared is not None
    return router.shared.store.reason


async def until_stored(valkey: Valkey, enough: Callable[[int], bool]) -> None:
    """Wait for so many pins in the store."""
    began = time.monotonic()
    while not enough(len(await valkey.pins())):
        assert time.monotonic() - began < 5 * LONG
        await asyncio.sleep(0.02)


class Traffic:
    """New sessions all the time, at a steady pace, until `stop`."""

    def __init__(self, *routers: Router, pause: float = 0.02) -> None:
        self._routers, self._pause = routers, pause
        self.replies: list[Reply] = []
        self._over = False
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(await RawClient.connect(r.data_url)) for r in self._routers]
            while not self._over:
                number = len(self.replies)
                self.replies.append(await clients[number % len(clients)].chat(f"traffic {number}"))
                await asyncio.sleep(self._pause)

    async def stop(self) -> None:
        self._over = True
        await self._task

    async def more(self, count: int) -> None:
        """Wait for so many further answers."""
        wanted = len(self.replies) + count
        await until(lambda: len(self.replies) >= wanted or self._task.done())

    @property
    def failed(self) -> list[Reply]:
        return [reply for reply in self.replies if reply.status != 200]


def store_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "warmroute.store"]


class TestRedisAvailability:
    async def test_down_at_the_start_then_up_then_killed_then_empty(
        self,
        backends: list[FaultyBackend],
        start_router: StartRouter,
        valkey: Valkey,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level("INFO", "warmroute.store")
        valkey.kill()
        began = time.monotonic()
        router = await start_router(backends, store={"redis": valkey.url})
        lived = await homes(router.data_url, [f"s{i}" for i in range(20)])
        assert time.monotonic() - began < 5 * LONG
        assert await homes(router.data_url, lived) == lived
        assert router.state()["ready"]
        assert not in_use(router)
        await valkey.start()
        await until(lambda: in_use(router), within=5 * LONG)
        await until_stored(valkey, lambda count: count == 20)
        traffic = Traffic(router)
        await traffic.more(10)
        valkey.kill()
        await traffic.more(30)
        assert await homes(router.data_url, lived) == lived
        await valkey.start()  # empty
        await until(lambda: in_use(router), within=5 * LONG)
        await traffic.more(10)
        await traffic.stop()
        assert traffic.failed == []
        await until_stored(valkey, lambda count: count == 20 + len(traffic.replies))
        assert await homes(router.data_url, lived) == lived
        assert router.counters.moves == {}
        assert len(store_lines(caplog)) == 4  # not there, there, lost, found: none for a request
        assert "Traceback" not in caplog.text

    @pytest.mark.parametrize(
        ("says", "why"),
        [
            (b"-LOADING Redis is loading the dataset in memory\r\n", "loading"),
            (b"-NOAUTH Authentication required.\r\n", "refuses this user"),
            (b"-WRONGPASS invalid username-password pair\r\n", "refuses this user"),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", ""),
        ],
        ids=["loading", "no password", "wrong password", "no Redis at all"],
    )
    async def test_one_that_answers_nothing_but_errors_is_as_good_as_none(
        self, backends: list[FaultyBackend], start_router: StartRouter, stack: AsyncExitStack, says: bytes, why: str
    ) -> None:
        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while await reader.read(65536):
                    writer.write(says)
                    await writer.drain()
            except ConnectionError:
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        try:
            port = server.sockets[0].getsockname()[1]
            router = await start_router(backends, store={"redis": f"redis://127.0.0.1:{port}"})
            lived = await homes(router.data_url, [f"s{i}" for i in range(6)])
            assert await homes(router.data_url, lived) == lived
            assert not in_use(router)
            assert reason(router)
            assert why in reason(router)
            assert "\n" not in reason(router)
            await router.__aexit__(None, None, None)
        finally:
            server.close()


BREAKS = {
    "read-only": (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
    "full": (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
}


class TestRedisCorrectness:
    async def test_writes_refused_are_writes_unavailable_until_they_are_taken_again(
        self,
        backends: list[FaultyBackend],
        start_router: StartRouter,
        valkey: Valkey,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        router = await start_router(backends, store={"redis": valkey.url, **PATIENT})
        caplog.set_level("INFO", "warmroute.store")
        caplog.clear()
        traffic = Traffic(router)
        for what, (break_it, mend_it) in BREAKS.items():
            await valkey.do(*break_it)
            await until(lambda: not in_use(router), within=5 * LONG)
            assert "it takes no writes" in reason(router), what
            await traffic.more(10)
            await valkey.do(*mend_it)
            await until(lambda: in_use(router), within=5 * LONG)
            await traffic.more(5)
        await traffic.stop()
        assert traffic.failed == []
        await until_stored(valkey, lambda count: count == len(traffic.replies))
        assert len(store_lines(caplog)) == 2 * len(BREAKS)

    async def test_killed_connections_cost_no_request(
        self, backends: list[FaultyBackend], start_router: StartRouter, valkey: Valkey
    ) -> None:
        router = await start_router(backends, store={"redis": valkey.url, **PATIENT})
        traffic = Traffic(router)
        for _ in range(3):
            await traffic.more(5)
            await valkey.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await traffic.more(5)
        await traffic.stop()
        assert traffic.failed == []
        await until(lambda: in_use(router))
        await until_stored(valkey, lambda count: count == len(traffic.replies))


StartPair = Callable[[], Awaitable[tuple[Router, Router]]]


async def alternately(one: Router, two: Router, sessions: list[str], rounds: int) -> dict[str, set[str]]:
    """Turns of each session through both routers; session -> every backend that it touched."""
    touched: dict[str, set[str]] = {session: set() for session in sessions}
    for n in range(rounds):
        for i, session in enumerate(sessions):
            reply = await turn((one, two)[(n + i) % 2].data_url, session)
            assert reply.status == 200
            touched[session].add(reply.header("x-warmroute-backend") or "")
    return touched


class TestRouterReplicas:
    SESSIONS = tuple(f"s{i}" for i in range(20))

    async def test_one_store_makes_them_agree(
        self, backends: list[FaultyBackend], start_router: StartRouter, valkey: Valkey
    ) -> None:
        store = {"redis": valkey.url, **PATIENT}
        one = await start_router(backends, store=store)
        two = await start_router(backends[::-1], store=store)  # in another order
        touched = await alternately(one, two, list(self.SESSIONS), rounds=6)
        assert all(len(found) == 1 for found in touched.values())
        first = {session: next(iter(found)) for session, found in touched.items()}
        await backends[1].stop()
        touched = await alternately(two, one, list(self.SESSIONS), rounds=2)
        assert all(len(found) == 1 for found in touched.values())
        now = {session: next(iter(found)) for session, found in touched.items()}
        assert {s for s in first if first[s] != now[s]} == {s for s in first if first[s] == backends[1].name}
        again = await start_router(backends, wait=False, store=store)  # a restart: empty memory
        await until(lambda: sum(bool(b.health.up) for b in again.registry.backends.values()) == 2)
        assert await homes(again.data_url, self.SESSIONS) == now
        assert again.counters.moves == {}

    async def test_without_a_store_the_ring_alone_is_the_same_everywhere(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        alone = {"even_sessions": 0, "session_bound": 10, "size_bound": 10, "in_flight_bound": 10}
        one = await start_router(backends, affinity=alone)
        two = await start_router(backends[::-1], affinity=alone)
        first = await homes(one.data_url, self.SESSIONS)
        assert await homes(two.data_url, self.SESSIONS) == first
        await by_name(backends, first["s0"]).stop()
        assert await homes(one.data_url, self.SESSIONS) == await homes(two.data_url, self.SESSIONS)
