"""Faults of the shared store by count and by order, not by the clock: who waits, what stale data does, routers kept apart."""

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from warmroute.app import Router
from warmroute.config import Config
from warmroute.pins import codec
from warmroute.pins.store import Flight, Store

from .conftest import FAST, StartRouter, until
from .scripted import Scripted
from .test_redis_pins import PATIENT, home, known, only, places, turn, until_stored, up
from .valkey import Valkey


@pytest.fixture
async def valkey(stack: AsyncExitStack, tmp_path: Path) -> Valkey:
    return await stack.enter_async_context(Valkey(tmp_path))


CALM = {"deadline": "200ms"}
"""Long enough for a busy machine, and shorter than what it takes to give the store up: who waits is counted, not how long."""


class Waits:
    """Counts the requests that ask the store: `waited` are those whose task was suspended for it, `passed` the others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waited = self.passed = 0
        wait = Store.wait

        async def counted(store: Store, flight: Flight) -> bool | None:
            others: list[bool] = []
            asyncio.get_running_loop().call_soon(others.append, True)
            result = await wait(store, flight)
            self.waited += bool(others)
            self.passed += not others
            return result

        monkeypatch.setattr(Store, "wait", counted)


async def test_of_requests_in_a_row_one_waits_for_a_store_that_hangs(
    backends: list[Scripted], start_router: StartRouter, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = await start_router(backends, store={"redis": valkey.url, **CALM})
    await until(lambda: up(router))
    assert router.shared is not None
    waits = Waits(monkeypatch)
    for i in range(5):
        await turn(router, f"before {i}")
    assert waits.waited == 5  # each for one round trip
    valkey.freeze()
    try:
        for i in range(1000):
            await turn(router, f"hangs {i}")
            if not up(router):
                break
        assert not up(router)
        assert waits.waited == 6  # the one that found it out, for a deadline
        assert waits.passed >= 1
        asked = router.shared.store.errors["place"]
        for i in range(20):
            await turn(router, f"down {i}")
        assert waits.waited == 6
        assert router.shared.store.errors["place"] == asked  # nothing is asked any more
        assert not router.shared.store.flights
    finally:
        valkey.thaw()
    await until(lambda: up(router))
    await turn(router, "after")
    assert waits.waited == 7


async def test_of_requests_in_a_row_at_most_one_waits_for_a_store_that_dies(
    backends: list[Scripted], start_router: StartRouter, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = await start_router(backends, store={"redis": valkey.url, **CALM})
    await until(lambda: up(router))
    waits = Waits(monkeypatch)
    valkey.kill()
    for i in range(50):
        await turn(router, f"s{i}")
    assert waits.waited <= 1
    assert not up(router)
    lived = {f"s{i}": await home(router, f"s{i}") for i in range(50)}
    assert waits.waited <= 1
    await valkey.start()
    await until(lambda: up(router))
    await until_stored(valkey, lambda pins: len(pins) == 50)
    assert {session: await home(router, session) for session in lived} == lived


async def test_a_store_that_comes_back_with_old_data_is_followed_by_all(
    backends: list[Scripted], start_router: StartRouter, valkey: Valkey
) -> None:
    one = await start_router(backends, store={"redis": valkey.url, **PATIENT})
    two = await start_router(backends, store={"redis": valkey.url, **PATIENT})
    lived = await known(one, two)
    stored = await valkey.pins()
    names = sorted(stored)
    await valkey.do("CONFIG", "SET", "requirepass", "nobody knows")  # out they go, while it is as it was yesterday
    async with valkey.client(password="nobody knows") as client:
        await client.client_kill_filter(_type="normal", skipme=True)
        await client.client_kill_filter(_type="pubsub")
        await until(lambda: not up(one) and not up(two))
        elsewhere = {b.name: backends[i - 1].name for i, b in enumerate(backends)}
        for name in names[:5]:
            held = codec.read(stored[name])
            assert held is not None
            await client.set(name, codec.value(elsewhere[held.backend], None), px=60_000)
        await client.set(names[5], codec.value("gone:8000", None), px=60_000)
        await client.delete(names[6])
        await client.rpush(names[6], "a", "list")
        await client.config_set("requirepass", "")
    await until(lambda: up(one, two))
    await until(lambda: places(one) == places(two) and one.shared is not None and one.shared.adopted >= 5)
    now = {session: await home(one, session) for session in lived}
    assert {session: await home(two, session) for session in lived} == now
    assert sum(now[session] != lived[session] for session in lived) == 5
    await until_stored(valkey, lambda pins: len(pins) == 20 and all(codec.read(value) for value in pins.values()))
    assert one.shared is not None
    assert two.shared is not None
    ignored = one.shared.ignored + two.shared.ignored
    assert ignored["unknown_backend"] >= 1
    assert ignored["wrong_type"] >= 1


class Relay:
    """A way to the store that can be cut while others still reach it."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._writers: set[asyncio.StreamWriter] = set()
        self.cut = False

    async def __aenter__(self) -> "Relay":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self.sever()
        self._server.close()

    def sever(self) -> None:
        """Break all that go through it, and take no more until `cut` is False."""
        self.cut = True
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.cut:
            writer.transport.abort()
            return
        there, to = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers |= {writer, to}
        try:
            await asyncio.gather(self._copy(reader, to), self._copy(there, writer))
        finally:
            self._writers -= {writer, to}

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()


async def test_routers_that_were_kept_apart_agree_within_a_turn(
    backends: list[Scripted], start_router: StartRouter, valkey: Valkey
) -> None:
    async with Relay(valkey.port) as relay:
        config = Config.model_validate(
            {
                **FAST,
                "store": {"redis": f"redis://127.0.0.1:{relay.port}", **PATIENT},
                "backends": [b.url for b in backends],
            }
        )
        one = await start_router(backends, store={"redis": valkey.url, **PATIENT})
        async with Router(config) as two:
            await until(lambda: up(one, two) and all(b.health.up for b in two.registry.backends.values()))
            lived = await known(one, two)
            relay.sever()
            await until(lambda: not up(two))
            only(one, backends[0], backends)
            only(two, backends[1], backends)
            apart = [f"apart {i}" for i in range(10)]
            assert {await home(one, session) for session in apart} == {backends[0].name}
            assert {await home(two, session) for session in apart} == {backends[1].name}
            assert {session: await home(two, session) for session in lived} == lived
            relay.cut = False
            await until(lambda: up(two))
            for i, session in enumerate(apart):  # one turn through either: whoever comes first, both mean the same
                await turn((one, two)[i % 2], session)
            assert {session: await home(two, session) for session in apart} == {
                session: await home(one, session) for session in apart
            }
            assert {session: await home(two, session) for session in lived} == lived
            assert len(await valkey.pins()) == 30


async def test_a_session_that_a_full_table_has_let_go_is_found_in_the_store(
    backends: list[Scripted], start_router: StartRouter, valkey: Valkey
) -> None:
    router = await start_router(backends, store={"redis": valkey.url, **PATIENT}, affinity={"max_sessions": 10})
    lived: dict[str, str] = {}
    for backend in backends:
        only(router, backend, backends)
        lived |= {s: await home(router, s) for s in (f"{backend.port} {i}" for i in range(10))}
    assert len(router.pins) == 10
    assert router.pins.evicted == 20
    assert len(await valkey.pins()) == 30
    assert {session: await home(router, session) for session in lived} == lived
    assert router.counters.moves == {}
