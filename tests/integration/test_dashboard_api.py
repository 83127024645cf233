"""What the admin port tells the dashboard: events as they happen, sessions by search, turns, and a live stream that ends."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from warmroute.app import Router
from warmroute.config import Config

from .conftest import FAST, StartRouter, until
from .scripted import RawClient, Scripted, Talk

SAID = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=10) as http:
        yield http


async def get(http: httpx.AsyncClient, router: Router, path: str) -> Any:
    answer = await http.get(f"{router.admin_url}{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def talk_as(router: Router, *sessions: str) -> list[str]:
    """A request of each session; returns the backends that answered."""
    async with await RawClient.connect(router.data_url) as client:
        return [(await client.chat(session, messages=SAID)).header("x-warmroute-backend") or "" for session in sessions]


@asynccontextmanager
async def live(http: httpx.AsyncClient, router: Router) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
    async with http.stream("GET", f"{router.admin_url}/api/live") as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")

        async def events() -> AsyncIterator[tuple[str, Any]]:
            name = ""
            async for line in response.aiter_lines():
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    yield name, json.loads(value)

        yield events()


async def test_a_failover_is_told_from_end_to_end(
    router: Router, backends: list[Scripted], http: httpx.AsyncClient
) -> None:
    (home,) = await talk_as(router, "s")

    async def reset(talk: Talk) -> None:
        talk.reset()

    next(b for b in backends if b.name == home).script = reset
    (other,) = await talk_as(router, "s")
    found = (await get(http, router, "/api/events"))["events"]
    assert [(e["kind"], e["backend"], e["to"], e["why"]) for e in found if e["kind"] == "move"] == [
        ("move", home, other, "failover")
    ]
    assert [(e["backend"], e["to"], e["count"]) for e in found if e["kind"] == "failure"] == [(home, other, 1)]


async def test_drains_and_states_are_told(router: Router, backends: list[Scripted], http: httpx.AsyncClient) -> None:
    name = backends[0].name
    await http.post(f"{router.admin_url}/api/backends/{name}/drain", json={"deadline": 0.01})
    await until(lambda: any(e["to"] == "drained" for e in router._kept.events.newest()))
    await http.post(f"{router.admin_url}/api/backends/{name}/undrain")
    await backends[1].__aexit__(None, None, None)
    gone = backends[1].name
    await until(lambda: any((e["backend"], e["to"]) == (gone, "down") for e in router._kept.events.newest()))
    await until(lambda: router._kept.events.newest()[0]["kind"] == "state")
    told = [(e["backend"], e["to"]) for e in router._kept.events.newest() if e["kind"] == "state"]
    assert (name, "drained") in told
    assert told.index((name, "up")) < told.index((name, "drained"))
    assert len(await get_events(http, router, 1)) == 1


async def get_events(http: httpx.AsyncClient, router: Router, limit: int) -> list[Any]:
    found: list[Any] = (await get(http, router, f"/api/events?limit={limit}"))["events"]
    return found


async def test_sessions_are_found_by_digest_source_and_backend(router: Router, http: httpx.AsyncClient) -> None:
    homes = await talk_as(router, *(f"s{i}" for i in range(12)))
    every = (await get(http, router, "/api/sessions"))["sessions"]
    wanted = every[5]["session"]
    (one,) = (await get(http, router, f"/api/sessions?search={wanted[:10].upper()}"))["sessions"]
    assert one["session"] == wanted
    by_backend = await get(http, router, f"/api/sessions?search={homes[0]}")
    assert len(by_backend["sessions"]) == homes.count(homes[0])
    assert by_backend["total"] == 12
    assert len((await get(http, router, "/api/sessions?search=X-Session&limit=5"))["sessions"]) == 5
    assert (await get(http, router, "/api/sessions?search=nobody"))["sessions"] == []
    assert (await http.get(f"{router.admin_url}/api/sessions?search={'x' * 300}")).status_code == 422


async def test_a_sessions_turns_are_found_again_and_again(router: Router, http: httpx.AsyncClient) -> None:
    await talk_as(router, "a", "b", "a")
    rows = (await get(http, router, "/api/sessions"))["sessions"]
    told = {row["session"]: row["turns"] for row in rows}
    for _ in range(2):
        for session, count in told.items():
            found = await get(http, router, f"/api/sessions/{session}/turns")
            assert (found["session"], len(found["turns"])) == (session, count)
    assert (await http.get(f"{router.admin_url}/api/sessions/nobody/turns")).status_code == 404


async def test_possible_is_never_less_than_what_was_had(start_router: StartRouter, http: httpx.AsyncClient) -> None:
    async with Scripted() as backend:
        router = await start_router([backend])
        fleet = (await get(http, router, "/api/state"))["fleet"]
        assert fleet["possible_ratio"] == {"1m": None, "5m": None, "1h": None}
        past = await get(http, router, "/api/history")
        assert past["possible"] == [None] * len(past["times"])
        assert len(past["truth"]["times"]) == len(past["times"])


async def test_a_live_stream_tells_what_happens(
    router: Router, http: httpx.AsyncClient, backends: list[Scripted]
) -> None:
    async with asyncio.timeout(15), live(http, router) as events:
        seen = [await anext(events) for _ in range(3)]
        assert [name for name, _ in seen] == ["state", "events", "history"]
        assert seen[0][1]["fleet"]["backends"] == len(backends)
        await http.post(f"{router.admin_url}/api/backends/{backends[0].name}/drain")
        drained = (backends[0].name, "draining")
        async for name, told in events:
            if name == "events" and drained in [(e["backend"], e["to"]) for e in told["events"]]:
                break


async def test_a_live_stream_ends_when_the_router_stops(backends: list[Scripted], http: httpx.AsyncClient) -> None:
    router = Router(Config.model_validate({**FAST, "backends": [b.url for b in backends]}))
    async with asyncio.timeout(15):
        await router.__aenter__()
        async with live(http, router) as events:
            await anext(events)
            began = time.monotonic()
            stopping = asyncio.ensure_future(router.__aexit__(None, None, None))
            async for _ in events:
                pass
            await stopping
    assert time.monotonic() - began < 3.0


async def test_there_is_no_live_stream_of_a_router_that_stops(router: Router, http: httpx.AsyncClient) -> None:
    router._say_the_end_is_near()
    answer = await http.get(f"{router.admin_url}/api/live")
    assert answer.status_code == 503
    assert answer.json() == {"detail": "the router is stopping; ask /api/state instead"}


async def test_a_page_that_goes_leaves_nothing_running(router: Router, http: httpx.AsyncClient) -> None:
    before = len(asyncio.all_tasks())
    async with live(http, router) as events:
        await anext(events)
        assert len(asyncio.all_tasks()) > before
    await until(lambda: len(asyncio.all_tasks()) <= before)
