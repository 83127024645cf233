"""Routers that share their pins through a real Valkey: one place for each session, and no trouble for clients."""

import asyncio
import gc
import re
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import httpx
import pytest

from warmroute.app import Router
from warmroute.config import Config
from warmroute.core.identity import identify
from warmroute.listeners import StartError
from warmroute.pins import codec

from .conftest import FAST, StartRouter, until
from .scripted import RawClient, Reply, Scripted, Talk, answer
from .test_explain import explained
from .valkey import Valkey

PATIENT = {"deadline": "500ms"}
"""For tests of who is first: a busy machine may stop for longer than a router should wait."""

StartPair = Callable[..., Awaitable[tuple[Router, Router]]]


@pytest.fixture
async def valkey(stack: AsyncExitStack, tmp_path: Path) -> Valkey:
    return await stack.enter_async_context(Valkey(tmp_path))


@pytest.fixture
async def pair(backends: list[Scripted], start_router: StartRouter, valkey: Valkey) -> StartPair:
    async def start(**store: Any) -> tuple[Router, Router]:
        section = {"redis": valkey.url, **PATIENT, **store}
        one = await start_router(backends, store=section)
        return one, await start_router(backends, store=section)

    return start


def up(*routers: Router) -> bool:
    return all(router.shared is not None and router.shared.store.up for router in routers)


def errors(router: Router) -> int:
    assert router.shared is not None
    return sum(router.shared.store.errors.values())


async def until_stored(valkey: Valkey, enough: Callable[[dict[bytes, bytes]], bool]) -> None:
    """Wait for what the store should hold. By the clock: redis-py can swallow the cancellation of a timeout around it."""
    began = time.monotonic()
    while not enough(await valkey.pins()):
        assert time.monotonic() - began < 15
        await asyncio.sleep(0.02)


async def turn(router: Router, session: str, **fields: object) -> Reply:
    async with await RawClient.connect(router.data_url) as client:
        reply = await client.chat(session, **fields)
    assert reply.status == 200
    return reply


async def home(router: Router, session: str) -> str:
    return (await turn(router, session)).header("x-warmroute-backend") or ""


async def known(one: Router, two: Router) -> dict[str, str]:
    """Sessions that both routers have served."""
    lived = {f"s{i}": await home((one, two)[i % 2], f"s{i}") for i in range(20)}
    assert {s: await home((two, one)[i % 2], s) for i, s in enumerate(lived)} == lived
    return lived


def only(router: Router, backend: Scripted, backends: list[Scripted]) -> None:
    """New sessions of this router go to one backend alone, so that the routers' own choices differ."""
    for other in backends:
        router.registry.drain(other.name, other is not backend)


def places(router: Router) -> dict[bytes, str]:
    return {name: pin.backend for name, pin in router.pins.newest()}


# One place for each session


async def test_parallel_first_turns_through_two_routers_agree(
    backends: list[Scripted], pair: StartPair, valkey: Valkey
) -> None:
    one, two = await pair()
    only(one, backends[0], backends)
    only(two, backends[1], backends)
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(await RawClient.connect(router.data_url)) for router in (one, two) * 4
        ]
        for i in range(200):
            replies = await asyncio.gather(*(client.chat(f"s{i}") for client in clients))
            assert {reply.status for reply in replies} == {200}
            assert len({reply.header("x-warmroute-backend") for reply in replies}) == 1
    for session in range(200):
        reached = [b for b in backends if any(seen.header("x-session-id") == f"s{session}" for seen in b.posts)]
        assert len(reached) == 1
    assert len(await valkey.pins()) == 200
    assert errors(one) == errors(two) == 0
    assert one.shared is not None
    assert two.shared is not None
    assert one.shared.adopted + two.shared.adopted == 200  # the two never chose the same


async def test_every_turn_through_either_router_goes_where_the_first_went(
    backends: list[Scripted], pair: StartPair
) -> None:
    one, two = await pair()
    only(two, backends[1], backends)
    first = {f"s{i}": await home((one, two)[i % 2], f"s{i}") for i in range(20)}
    for n in range(4):
        assert {s: await home((one, two)[(n + i) % 2], s) for i, s in enumerate(first)} == first


async def test_explain_tells_what_only_the_other_router_knows_and_remembers_nothing(
    backends: list[Scripted], pair: StartPair, valkey: Valkey
) -> None:
    one, two = await pair()
    only(one, backends[0], backends)
    only(two, backends[1], backends)
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    new = await explained(two, body, "X-Session-ID: s1")
    assert (new["known"], new["backend"]) == (False, backends[1].name)
    assert await home(one, "s1") == backends[0].name
    for _ in range(2):
        found = await explained(two, body, "X-Session-ID: s1")
        assert (found["known"], found["recognised"]) == (True, "another router knows it")
        assert (found["decision"], found["backend"]) == ("pin_hit", backends[0].name)
    assert places(two) == {}
    for raw in (codec.value("gone", None), b"rubbish"):
        (name,) = await valkey.pins()
        await valkey.do("SET", name, raw)
        found = await explained(two, body, "X-Session-ID: s1")
        assert (found["known"], found["backend"]) == (False, backends[1].name)
    assert errors(two) == 0
    valkey.kill()
    await until(lambda: not up(two))
    found = await explained(two, body, "X-Session-ID: s1")
    assert (found["known"], found["backend"]) == (False, backends[1].name)


async def test_backends_in_another_order_make_no_difference(
    backends: list[Scripted], start_router: StartRouter, valkey: Valkey
) -> None:
    section = {"redis": valkey.url, **PATIENT}
    one = await start_router(backends, store=section)
    two = await start_router(backends[::-1], store=section)
    first = {f"s{i}": await home(one, f"s{i}") for i in range(20)}
    assert {session: await home(two, session) for session in first} == first


async def moved(one: Router, two: Router, backends: list[Scripted], session: str) -> str:
    """Let a session move through one router, and see that the other follows; returns where it is then."""
    first = await home(one, session)
    assert await home(two, session) == first
    failing = next(b for b in backends if b.name == first)

    async def reset(talk: Talk) -> None:
        talk.reset()

    before = places(two)
    failing.script = reset
    reply = await turn(one, session)
    failing.script = answer
    assert reply.header("x-warmroute-decision") == "pin_lost"
    second = reply.header("x-warmroute-backend") or ""
    assert second != first
    await until(lambda: [b for n, b in places(two).items() if before[n] != b] == [second], within=1.0)
    reply = await turn(two, session)
    assert (reply.header("x-warmroute-backend"), reply.header("x-warmroute-decision")) == (second, "pin_hit")
    return second


async def test_a_move_reaches_the_other_router_within_a_second(
    backends: list[Scripted], pair: StartPair, valkey: Valkey
) -> None:
    one, two = await pair()
    there = await moved(one, two, backends, "s")
    assert list((await valkey.pins()).values()) == [codec.value(there, None)]
    assert (one.counters.moves, two.counters.moves) == ({"pin_lost": 1}, {})
    await moved(two, one, backends, "s")


async def test_after_a_backend_has_died_both_routers_use_the_same_new_home(
    backends: list[Scripted], pair: StartPair
) -> None:
    one, two = await pair()
    first = {f"s{i}": await home((one, two)[i % 2], f"s{i}") for i in range(15)}
    await backends[1].stop()
    after = {session: await home((two, one)[i % 2], session) for i, session in enumerate(first)}
    assert backends[1].name not in after.values()
    assert {s: b for s, b in after.items() if first[s] != backends[1].name} == {
        s: b for s, b in first.items() if b != backends[1].name
    }
    for router in (one, two):
        assert {session: await home(router, session) for session in first} == after


async def test_a_placement_that_failed_is_taken_out_of_the_store(
    backends: list[Scripted], pair: StartPair, valkey: Valkey
) -> None:
    async def refuse(talk: Talk) -> None:
        talk.json({"error": {"message": "context length exceeded"}}, "400 Bad Request")

    one, _ = await pair()
    for backend in backends:
        backend.script = refuse
    async with await RawClient.connect(one.data_url) as client:
        assert (await client.chat("s")).status == 400
    await until_stored(valkey, lambda pins: not pins)
    assert len(one.pins) == 0


async def test_a_router_that_starts_anew_moves_no_session(
    backends: list[Scripted], start_router: StartRouter, valkey: Valkey
) -> None:
    section = {"redis": valkey.url, **PATIENT}
    config = Config.model_validate({**FAST, "store": section, "backends": [b.url for b in backends]})
    async with Router(config) as first:
        await until(lambda: all(b.health.up for b in first.registry.backends.values()))
        before: dict[str, str] = {}
        for backend in backends:
            only(first, backend, backends)  # not where the ring alone would put them
            before |= {s: await home(first, s) for s in (f"{backend.port} {i}" for i in range(7))}
    again = await start_router(backends, store=section)
    assert again.shared is not None
    assert {session: await home(again, session) for session in before} == before
    assert again.shared.adopted > 0
    assert again.counters.moves == {}


# What is stored


async def test_no_id_leaves_the_router_and_every_key_ends_by_itself(
    backends: list[Scripted], pair: StartPair, valkey: Valkey
) -> None:
    canary = "canary-5d1f2c"
    async with valkey.client() as client, client.pubsub() as listener:
        await listener.psubscribe("*")
        one, two = await pair(secret="a secret of some length")
        for i in range(5):
            await turn(one, f"{canary}-{i}")
            await turn(two, f"{canary}-{i}")
        seen = [str(await valkey.do("INFO", "commandstats"))]
        for _ in range(15):
            message = await listener.get_message(ignore_subscribe_messages=True, timeout=1.0)
            seen += [f"{message['channel']!r} {message['data'].hex()}"] if message else []
            if len(seen) == 6:  # each first turn is told
                break
        assert len(seen) == 6
        keys = [key async for key in client.scan_iter("*")]
        assert len(keys) == 6  # five sessions and the marker
        for key in keys:
            assert key.startswith(b"warmroute:")
            assert 2000 < await client.ttl(key) <= 1800 * 1.25
            seen.append(f"{key!r} {await client.get(key)!r}")
    told = "\n".join(seen)
    assert canary not in told
    assert canary.encode().hex() not in told
    for name in (name for name, _ in one.pins.newest()):
        assert f"warmroute:{name.hex()}" in told
    for i in range(5):
        session = identify(_View(f"{canary}-{i}"), "m").session
        assert session is not None
        assert session.key.hex() not in told
        assert blake2b(f"{canary}-{i}".encode(), digest_size=16).hexdigest() not in told


class _View:
    """A request of model m with this session id."""

    def __init__(self, session: str) -> None:
        self.named = {b"x-session-id": session.encode()}

    def may_name(self) -> bool:
        return True

    def field(self, name: str) -> object:
        return None


async def test_another_prefix_or_secret_is_another_store(
    backends: list[Scripted], start_router: StartRouter, valkey: Valkey
) -> None:
    section = {"redis": valkey.url, **PATIENT}
    others = [{}, {"prefix": "other:"}, {"secret": "sixteen characters"}, {"secret": "seventeen characters"}]
    for other in others:
        router = await start_router(backends, store={**section, **other})
        await turn(router, "s")
        assert router.shared is not None
        assert router.shared.adopted == 0
    assert len(await valkey.pins("*")) == 4


async def test_a_session_in_use_is_kept_alive_and_an_idle_one_forgotten(
    backends: list[Scripted], start_router: StartRouter, valkey: Valkey
) -> None:
    router = await start_router(backends, store={"redis": valkey.url, **PATIENT}, affinity={"idle_expiry": 0.8})
    await turn(router, "idle")
    await turn(router, "used")
    assert len(await valkey.pins()) == 2
    (used,) = [name for name, pin in router.pins.newest()][:1]
    began = time.monotonic()
    while time.monotonic() - began < 1.6:
        await turn(router, "used")
        await asyncio.sleep(0.05)
    assert list(await valkey.pins()) == [f"warmroute:{used.hex()}".encode()]
    stats = str(await valkey.do("INFO", "commandstats"))
    evals = int(re.search(r"'cmdstat_eval': \{'calls': (\d+)", stats)[1])  # type: ignore[index]
    assert evals < 20  # not one for each of the 30 turns; the proofs that the store is up are among them


@pytest.mark.parametrize(
    ("kind", "why"),
    [("text", "unreadable"), ("list", "wrong_type"), ("unknown", "unknown_backend"), ("pickle", "unreadable")],
)
async def test_a_value_of_no_use_is_replaced_and_counted(
    backends: list[Scripted], start_router: StartRouter, valkey: Valkey, kind: str, why: str
) -> None:
    router = await start_router(backends, store={"redis": valkey.url, **PATIENT})
    await turn(router, "s")
    (key,) = await valkey.pins()
    await valkey.do("DEL", key)
    if kind == "list":
        await valkey.do("RPUSH", key, "a", "b")
    else:
        values = {"text": b"gone", "unknown": codec.value("nobody:1", None), "pickle": b"cos\nsystem\n(S'true'\ntR."}
        await valkey.do("SET", key, values[kind])
    again = await start_router(backends, store={"redis": valkey.url, **PATIENT})
    first = await home(again, "s")
    assert await valkey.pins() == {key: codec.value(first, None)}
    assert await valkey.do("PTTL", key) > 0
    assert again.shared is not None
    assert again.shared.ignored == {"unreadable": 0, "unknown_backend": 0, "wrong_type": 0} | {why: 1}
    assert f'warmroute_store_ignored_total{{reason="{why}"}} 1.0' in await metrics(again)


async def metrics(router: Router) -> str:
    async with httpx.AsyncClient(trust_env=False) as http:
        return (await http.get(f"{router.admin_url}/metrics")).text


# Trouble


class Load:
    """Turns of ever new sessions through some routers, four at a time."""

    def __init__(self, *routers: Router) -> None:
        self._routers = routers
        self.replies: list[Reply] = []
        self.took: list[float] = []
        self.turns = 0

    async def run(self, seconds: float, pause: float = 0.01) -> float:
        """The longest that a turn took, in seconds. Each session has two turns, one after the other."""
        self.took = []
        gc.collect()
        gc.disable()  # it would stop for long to look at what all the tests before have left, and that is not measured here
        try:
            async with asyncio.TaskGroup() as group:
                for router in self._routers * (4 // len(self._routers)):
                    group.create_task(self._user(router, time.monotonic() + seconds, pause))
        finally:
            gc.enable()
        return max(self.took)

    async def _user(self, router: Router, until: float, pause: float) -> None:
        async with await RawClient.connect(router.data_url) as client:
            while time.monotonic() < until:
                self.turns += 1
                began = time.monotonic()
                reply = await client.chat(f"load {self.turns // 2}")
                self.took.append(time.monotonic() - began)
                self.replies.append(reply)
                await asyncio.sleep(pause)

    @property
    def failed(self) -> int:
        return sum(reply.status != 200 for reply in self.replies)


@asynccontextmanager
async def log_lines(caplog: pytest.LogCaptureFixture) -> AsyncIterator[list[str]]:
    caplog.set_level("INFO", "warmroute.store")
    lines: list[str] = []
    yield lines
    lines += [record.getMessage() for record in caplog.records if record.name == "warmroute.store"]


async def test_a_place_is_held_while_the_store_is_asked(
    backends: list[Scripted], start_router: StartRouter, valkey: Valkey
) -> None:
    running = most = 0

    async def count(talk: Talk) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        await answer(talk)

    backends[0].script = count
    router = await start_router(
        backends[:1], store={"redis": valkey.url, **PATIENT}, queue={"in_flight": 1, "length": 64, "timeout": 20}
    )
    await asyncio.gather(*(turn(router, f"s{i}") for i in range(12)))
    assert most == 1
    assert router.registry.backends[backends[0].name].in_flight == 0


async def test_a_router_starts_without_its_store_and_finds_it_later(
    backends: list[Scripted], start_router: StartRouter, valkey: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    valkey.kill()
    async with log_lines(caplog) as lines:
        began = time.monotonic()
        router = await start_router(backends, store={"redis": valkey.url})
        assert time.monotonic() - began < 3.0
        sessions = {f"s{i}": await home(router, f"s{i}") for i in range(20)}
        assert {session: await home(router, session) for session in sessions} == sessions
        state = router.state()["store"]
        assert isinstance(state, dict)
        assert state["up"] is False
        assert "connect" in state["reason"].lower()
        assert any("the shared store is not in use" in told["text"] for told in router.state()["advice"])  # type: ignore[attr-defined]
        assert "warmroute_store_up 0.0" in await metrics(router)
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.get(f"{router.admin_url}/readyz")).status_code == 200
        await valkey.start()
        await until(lambda: up(router))
        await until_stored(valkey, lambda pins: len(pins) == 20)
    assert {session: await home(router, session) for session in sessions} == sessions
    assert router.state()["store"] == {"up": True, "reason": ""}
    assert "warmroute_store_up 1.0" in await metrics(router)
    assert len(lines) == 2
    assert "not in use" in lines[0]
    assert lines[1] == "the shared store is in use"


ATTEMPTS = 3
"""So often is a time measured that a busy machine may spoil; what the router does itself is there every time."""


async def test_a_store_that_is_killed_at_load_is_nobodys_trouble(
    backends: list[Scripted], start_router: StartRouter, valkey: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    one = await start_router(backends, store={"redis": valkey.url})
    two = await start_router(backends, store={"redis": valkey.url})
    await until(lambda: up(one, two))
    lived = await known(one, two)
    load = Load(one, two)
    for _ in range(ATTEMPTS):
        usual = await load.run(0.5)
        caplog.clear()
        async with log_lines(caplog) as lines:
            running = asyncio.ensure_future(load.run(1.0))
            await asyncio.sleep(0.1)
            valkey.kill()
            longest = await running
            assert not up(one)
            assert not up(two)
            assert {s: await home((two, one)[i % 2], s) for i, s in enumerate(lived)} == lived
            await valkey.start()
            await until(lambda: up(one, two))
            longest = max(longest, await load.run(0.3))
        assert 4 <= len(lines) < 10  # lost and found, by each router: not one a request
        if longest < usual + 0.05:
            break
    else:
        pytest.fail(f"a turn took {longest:.3f} s, and {usual:.3f} s before")
    assert load.failed == 0
    assert {s: await home((one, two)[i % 2], s) for i, s in enumerate(lived)} == lived
    await until_stored(valkey, lambda pins: len(pins) == len({*places(one), *places(two)}))


async def test_a_store_that_hangs_delays_nobody_for_long(
    backends: list[Scripted], start_router: StartRouter, valkey: Valkey
) -> None:
    router = await start_router(backends, store={"redis": valkey.url})
    assert router.shared is not None
    await until(lambda: up(router))
    load = Load(router)
    for _ in range(ATTEMPTS):
        usual = await load.run(0.5)
        tasks, turns = len(asyncio.all_tasks()), load.turns
        valkey.freeze()
        try:
            longest = await load.run(0.4)
            await until(lambda: not up(router), within=2.0)
            assert router.shared.store.reason == "it does not answer"
            longest = max(longest, await load.run(0.4))
            assert load.turns - turns > 60
            assert len(asyncio.all_tasks()) < tasks + 20  # no request has left one behind
            assert not router.shared.store.flights
        finally:
            valkey.thaw()
        await until(lambda: up(router))
        if longest < usual + 0.05:
            break
    else:
        pytest.fail(f"a turn took {longest:.3f} s, and {usual:.3f} s before")
    await turn(router, "after")
    await until_stored(valkey, lambda pins: len(pins) == len(router.pins))
    assert load.failed == 0


async def test_an_idle_router_notices_that_its_store_hangs(
    backends: list[Scripted], start_router: StartRouter, valkey: Valkey
) -> None:
    router = await start_router(backends, store={"redis": valkey.url})
    await until(lambda: up(router))
    valkey.freeze()
    try:
        await until(lambda: not up(router), within=4.0)
    finally:
        valkey.thaw()
    await until(lambda: up(router))


async def test_an_emptied_store_is_filled_again_and_moves_nothing(
    backends: list[Scripted], pair: StartPair, valkey: Valkey
) -> None:
    one, two = await pair()
    only(two, backends[1], backends)
    lived = {f"s{i}": await home((one, two)[i % 2], f"s{i}") for i in range(100)}
    stored = await valkey.pins()
    await valkey.do("FLUSHALL")
    await until_stored(valkey, lambda pins: pins == stored)
    assert {s: await home((two, one)[i % 2], s) for i, s in enumerate(lived)} == lived
    assert up(one, two)


@pytest.mark.parametrize(
    ("break_it", "mend_it", "reason"),
    [
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"), "it takes no writes: it is a read-only replica"),
        (
            ("CONFIG", "SET", "maxmemory", "1"),
            ("CONFIG", "SET", "maxmemory", "0"),
            "it takes no writes: its memory is full",
        ),
    ],
    ids=["read-only", "full"],
)
async def test_a_store_that_takes_no_writes(
    backends: list[Scripted],
    pair: StartPair,
    valkey: Valkey,
    break_it: tuple[str, ...],
    mend_it: tuple[str, ...],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, two = await pair()
    lived = await known(one, two)
    load = Load(one, two)
    async with log_lines(caplog) as lines:
        caplog.clear()
        await valkey.do(*break_it)
        await load.run(0.3)
        await until(lambda: not up(one) and not up(two))
        assert one.shared is not None
        probes = one.shared.store.errors["probe"]
        await until(lambda: one.shared is not None and one.shared.store.errors["probe"] > probes)  # tried again
        assert one.shared.store.reason == reason
        await load.run(0.3)
        assert load.failed == 0
        assert {s: await home((two, one)[i % 2], s) for i, s in enumerate(lived)} == lived
        await valkey.do(*mend_it)
        await until(lambda: up(one, two))
    await turn(one, "afterwards")
    await until_stored(valkey, lambda pins: len(pins) == len({*places(one), *places(two)}))
    assert len(lines) == 4  # lost and found, by each router


async def test_killed_connections_are_made_again(backends: list[Scripted], pair: StartPair, valkey: Valkey) -> None:
    one, two = await pair()
    for i in range(3):
        await valkey.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert await home(one, f"normal {i}") == await home(two, f"normal {i}")
    assert errors(one) == errors(two) == 0
    await valkey.do("CLIENT", "KILL", "TYPE", "pubsub")
    for router in (one, two):
        assert router.shared is not None
        listening = router.shared.store.errors
        await until(lambda: listening["listen"] == 1)  # noqa: B023 - called within this round
    await until(lambda: up(one, two))
    await moved(one, two, backends, "s")


# How the store is reached


async def test_a_user_with_the_rights_of_the_manual_is_enough(
    backends: list[Scripted], start_router: StartRouter, valkey: Valkey
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text()
    found = re.search(r"ACL SETUSER (.*)", page)
    assert found
    await valkey.do("ACL", "SETUSER", *found[1].split())
    await valkey.do("CONFIG", "SET", "requirepass", "of-the-administrator")
    user, password = "warmroute", "a-long-password"
    assert f">{password}" in found[1]
    router = await start_router(backends, store={"redis": f"redis://{user}:{password}@127.0.0.1:{valkey.port}/0"})
    await until(lambda: up(router))
    placed = await turn(router, "s")
    async with valkey.client(password="of-the-administrator") as client:
        assert len(await client.keys("warmroute:*")) == 2
        assert await client.acl_log() == []
    other = await start_router(backends, store={"redis": f"redis://{user}:{password}@127.0.0.1:{valkey.port}/0"})
    await until(lambda: up(other))
    only(other, next(b for b in backends if b.name != placed.header("x-warmroute-backend")), backends)
    assert await home(other, "s") == placed.header("x-warmroute-backend")
    await moved(router, other, backends, "s")


async def test_a_wrong_password_is_told_and_not_shown(
    backends: list[Scripted], start_router: StartRouter, valkey: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    await valkey.do("CONFIG", "SET", "requirepass", "right-password")
    router = await start_router(backends, store={"redis": f"redis://:wrong-password@127.0.0.1:{valkey.port}"})
    assert router.shared is not None
    assert "refuses this user" in router.shared.store.reason
    await turn(router, "s")
    shown = [caplog.text, str(router.state()), repr(router.config), repr(router.shared), await metrics(router)]
    assert "password" not in "".join(shown).replace("username-password", "")


async def test_a_unix_socket(backends: list[Scripted], start_router: StartRouter, valkey: Valkey) -> None:
    router = await start_router(backends, store={"redis": f"unix://{valkey.socket}?db=3"})
    await until(lambda: up(router))
    await turn(router, "s")
    assert await valkey.pins() == {}
    async with valkey.client(db=3) as client:
        assert len(await client.keys("warmroute:*")) == 2


@asynccontextmanager
async def with_tls(valkey: Valkey, directory: Path) -> AsyncIterator[int]:
    """A port that ends TLS in front of the store, with the certificate cert.pem of this directory for localhost."""
    files = {"-keyout": directory / "key.pem", "-out": directory / "cert.pem"}
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    made += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made += [str(part) for pair in files.items() for part in pair]
    await asyncio.to_thread(subprocess.run, made, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["-out"], files["-keyout"])

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", valkey.port)
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))

    server = await asyncio.start_server(serve, "localhost", 0, ssl=context, family=2)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
async def test_tls_with_a_certificate_that_is_checked(
    backends: list[Scripted], start_router: StartRouter, valkey: Valkey, tmp_path: Path
) -> None:
    async with with_tls(valkey, tmp_path) as port:
        url = f"rediss://localhost:{port}/0"
        router = await start_router(backends, store={"redis": f"{url}?ssl_ca_certs={tmp_path}/cert.pem", **PATIENT})
        await until(lambda: up(router))
        await turn(router, "s")
        assert len(await valkey.pins()) == 1
        unsure = await start_router(backends, store={"redis": url, **PATIENT})
        assert unsure.shared is not None
        assert "certificate verify failed" in unsure.shared.store.reason.lower()
        await unsure.__aexit__(None, None, None)
        await router.__aexit__(None, None, None)


async def test_a_secret_out_of_a_file(
    backends: list[Scripted], start_router: StartRouter, valkey: Valkey, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text("seventeen letters\n")
    by_file = await start_router(backends, store={"redis": valkey.url, **PATIENT, "secret_file": str(file)})
    by_value = await start_router(backends, store={"redis": valkey.url, **PATIENT, "secret": "seventeen letters"})
    only(by_value, backends[0], backends)
    assert await home(by_file, "s") == await home(by_value, "s")
    assert len(await valkey.pins()) == 1
    file.write_text("short")
    with pytest.raises(StartError, match=r"secret: too short; put at least 16 characters there"):
        await start_router(backends, store={"redis": valkey.url, "secret_file": str(file)})
    file.unlink()
    with pytest.raises(StartError, match=r"store.secret_file .*/secret: No such file or directory"):
        await start_router(backends, store={"redis": valkey.url, "secret_file": str(file)})


# Without one


async def test_without_a_store_nothing_of_it_is_there(router: Router) -> None:
    assert router.shared is None
    assert router.state()["store"] is None
    assert "warmroute_store" not in await metrics(router)


def test_without_a_store_its_library_is_not_loaded() -> None:
    code = "import sys, warmroute.cli, warmroute.app; sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


# What holds with a store and without


@pytest.fixture(params=["memory", "valkey", "valkey that is down"])
async def any_router(
    request: pytest.FixtureRequest,
    backends: list[Scripted],
    start_router: StartRouter,
    tmp_path: Path,
    stack: AsyncExitStack,
) -> Router:
    """A router whose pins are its own, shared, or would be."""
    affinity = {"idle_expiry": 0.6}
    if request.param == "memory":
        return await start_router(backends, affinity=affinity)
    server = Valkey(tmp_path)
    if request.param == "valkey":
        await stack.enter_async_context(server)
    router = await start_router(backends, affinity=affinity, store={"redis": server.url, **PATIENT})
    assert up(router) == (request.param == "valkey")
    return router


async def test_contract_a_session_stays(any_router: Router) -> None:
    first = {f"s{i}": await home(any_router, f"s{i}") for i in range(12)}
    for _ in range(2):
        assert {session: await home(any_router, session) for session in first} == first
    assert len(any_router.pins) == 12


async def test_contract_parallel_first_turns_agree(any_router: Router) -> None:
    for i in range(10):
        assert len(set(await asyncio.gather(*(home(any_router, f"s{i}") for _ in range(8))))) == 1


async def test_contract_reasons(any_router: Router) -> None:
    assert (await turn(any_router, "s")).header("x-warmroute-decision") in ("ring", "ring_spill")
    assert (await turn(any_router, "s")).header("x-warmroute-decision") == "pin_hit"
    async with await RawClient.connect(any_router.data_url) as client:
        assert (await client.chat()).header("x-warmroute-decision") == "no_session"


async def test_contract_a_failed_backend_is_left_once(any_router: Router, backends: list[Scripted]) -> None:
    first = await home(any_router, "s")
    dead = next(b for b in backends if b.name == first)
    await dead.stop()
    second = await turn(any_router, "s")
    assert second.header("x-warmroute-decision") == "pin_lost"
    await dead.start()
    await until(lambda: bool(any_router.registry.backends[dead.name].health.up))
    third = await turn(any_router, "s")
    assert third.header("x-warmroute-decision") == "pin_hit"
    assert third.header("x-warmroute-backend") == second.header("x-warmroute-backend") != first
    assert any_router.counters.moves == {"pin_lost": 1}


async def test_contract_a_refusal_binds_nothing(any_router: Router, backends: list[Scripted]) -> None:
    async def refuse(talk: Talk) -> None:
        talk.json({"error": {"message": "context length exceeded"}}, "400 Bad Request")

    for backend in backends:
        backend.script = refuse
    async with await RawClient.connect(any_router.data_url) as client:
        assert (await client.chat("s")).status == 400
    assert len(any_router.pins) == 0


async def test_contract_an_idle_session_is_forgotten(any_router: Router, backends: list[Scripted]) -> None:
    first = await home(any_router, "s")
    await until(lambda: len(any_router.pins) == 0)
    await asyncio.sleep(0.3)  # the store keeps it for another quarter of the idle time
    only(any_router, next(b for b in backends if b.name != first), backends)
    assert (await turn(any_router, "s")).header("x-warmroute-decision") in ("ring", "ring_spill")
