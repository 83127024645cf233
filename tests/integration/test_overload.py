"""More requests than the backends may have: a short queue, then a quick refusal; conversations keep their places."""

import asyncio
import time
from collections import Counter
from contextlib import suppress

import httpx
import pytest

from warmroute.app import Router

from .conftest import StartRouter, until
from .scripted import CHAT_PATH, RawClient, Scripted, Talk, answer


class Slow:
    """A backend's work: so many requests at once take their time, and how many there were at most is noted."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.now = self.most = 0

    async def __call__(self, talk: Talk) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await self.go.wait()
        self.now -= 1
        await answer(talk)


@pytest.fixture
def slow(backends: list[Scripted]) -> list[Slow]:
    return [Slow() for _ in backends]


async def ask(client: httpx.AsyncClient, session: str) -> httpx.Response:
    return await client.post(CHAT_PATH, json={"model": "m"}, headers={"x-session-id": session})


def client_of(router: Router) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=router.data_url, timeout=30, limits=httpx.Limits(max_connections=None))


def running(router: Router) -> int:
    return sum(b.in_flight for b in router.registry.backends.values())


async def test_what_is_too_much_waits_and_is_served_in_turn(
    backends: list[Scripted], slow: list[Slow], start_router: StartRouter
) -> None:
    for backend, work in zip(backends, slow, strict=True):
        backend.script = work
    router = await start_router(backends, queue={"in_flight": 2, "length": 50, "timeout": 20})
    async with client_of(router) as client:
        tasks = [asyncio.ensure_future(ask(client, f"s{i}")) for i in range(30)]
        await until(lambda: running(router) == 6)
        await asyncio.sleep(0.1)
        assert running(router) == 6
        for work in slow:
            work.go.set()
        answers = await asyncio.gather(*tasks)
    assert {a.status_code for a in answers} == {200}
    assert [work.most for work in slow] == [2, 2, 2]
    assert running(router) == 0


async def test_beyond_the_queue_the_refusal_is_quick_and_says_when_to_come_back(
    backends: list[Scripted], slow: list[Slow], start_router: StartRouter
) -> None:
    for backend, work in zip(backends, slow, strict=True):
        backend.script = work
    router = await start_router(backends, queue={"in_flight": 1, "length": 2, "timeout": 20})
    async with client_of(router) as client:
        waiting = [asyncio.ensure_future(ask(client, f"s{i}")) for i in range(5)]
        await until(lambda: running(router) == 3)
        await asyncio.sleep(0.1)
        began = time.monotonic()
        refused = await asyncio.gather(*(ask(client, f"t{i}") for i in range(20)))
        assert time.monotonic() - began < 2
        assert {(r.status_code, r.json()["error"]["code"], r.headers["retry-after"]) for r in refused} == {
            (503, "overloaded", "1")
        }
        assert {r.headers["x-warmroute-decision"] for r in refused} == {"busy"}
        for work in slow:
            work.go.set()
        assert {r.status_code for r in await asyncio.gather(*waiting)} == {200}


async def test_waiting_has_an_end(backends: list[Scripted], slow: list[Slow], start_router: StartRouter) -> None:
    backends[0].script = slow[0]
    router = await start_router(backends[:1], queue={"in_flight": 1, "length": 9, "timeout": 0.3})
    async with client_of(router) as client:
        first = asyncio.ensure_future(ask(client, "s"))
        await until(lambda: running(router) == 1)
        second = await ask(client, "s")
        assert (second.status_code, second.json()["error"]["code"]) == (503, "overloaded")
        assert "which holds this conversation" in second.json()["error"]["message"]
        slow[0].go.set()
        assert (await first).status_code == 200


async def test_who_leaves_waits_no_longer_and_takes_no_place(
    backends: list[Scripted], slow: list[Slow], start_router: StartRouter
) -> None:
    backends[0].script = slow[0]
    router = await start_router(backends[:1], queue={"in_flight": 1, "length": 9, "timeout": 30})
    async with client_of(router) as client:
        first = asyncio.ensure_future(ask(client, "s"))
        await until(lambda: running(router) == 1)
        async with await RawClient.connect(router.data_url) as leaving:
            leaving.post({"model": "m"})
            await asyncio.sleep(0.2)
        await until(lambda: router.counters.client_aborts == 1)
        second = asyncio.ensure_future(ask(client, "s"))
        slow[0].go.set()
        assert [r.status_code for r in await asyncio.gather(first, second)] == [200, 200]
    assert len(backends[0].posts) == 2


async def test_a_hot_conversation_waits_while_others_are_served(
    backends: list[Scripted], slow: list[Slow], start_router: StartRouter
) -> None:
    router = await start_router(backends, queue={"in_flight": 4, "length": 64, "timeout": 20})
    async with client_of(router) as client:
        home = (await ask(client, "hot")).headers["x-warmroute-backend"]
        hot = next(i for i, b in enumerate(backends) if b.url.endswith(home))
        backends[hot].script = slow[hot]
        many = [asyncio.ensure_future(ask(client, "hot")) for _ in range(40)]
        await until(lambda: slow[hot].now == 4)
        others = Counter([(await ask(client, f"cold{i}")).status_code for i in range(24)])
        assert others == {200: 24}
        slow[hot].go.set()
        answers = await asyncio.gather(*many)
    assert Counter((r.status_code, r.headers["x-warmroute-backend"]) for r in answers) == {(200, home): 40}
    assert slow[hot].most == 4


async def test_or_it_spills_and_moves_when_that_happens_too_often(
    backends: list[Scripted], slow: list[Slow], start_router: StartRouter
) -> None:
    router = await start_router(
        backends, queue={"in_flight": 1, "length": 9, "timeout": 20}, affinity={"when_full": "spill", "spills": 3}
    )
    async with client_of(router) as client:
        home = (await ask(client, "hot")).headers["x-warmroute-backend"]
        hot = next(i for i, b in enumerate(backends) if b.url.endswith(home))
        backends[hot].script = slow[hot]
        held = asyncio.ensure_future(ask(client, "hot"))
        await until(lambda: slow[hot].now == 1)
        spilled = [await ask(client, "hot") for _ in range(4)]
        slow[hot].go.set()
        assert (await held).headers["x-warmroute-backend"] == home
    told = [r.headers["x-warmroute-decision"] for r in spilled]
    assert told == ["pin_spill", "pin_spill", "pin_spill", "pin_hit"]
    assert home not in {r.headers["x-warmroute-backend"] for r in spilled}
    assert router.counters.moves == {"pin_spill": 1}


async def test_cancelled_requests_give_their_places_back(
    backends: list[Scripted], slow: list[Slow], start_router: StartRouter
) -> None:
    for backend, work in zip(backends, slow, strict=True):
        backend.script = work
    router = await start_router(backends, queue={"in_flight": 1, "length": 64, "timeout": 20})
    async with client_of(router) as client:
        tasks = [asyncio.ensure_future(ask(client, f"s{i}")) for i in range(20)]
        await until(lambda: running(router) == 3)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        await until(lambda: running(router) == 0)
        for work in slow:
            work.go.set()
        assert {(await ask(client, f"after{i}")).status_code for i in range(6)} == {200}
