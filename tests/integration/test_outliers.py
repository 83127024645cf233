"""Backends whose checks pass while their answers are faults, or never come."""

import asyncio
from collections import Counter

import httpx
import pytest

from warmroute.app import Router

from .conftest import StartRouter, until
from .scripted import CHAT_PATH, Script, Scripted, Talk, answer

QUICK = {"outlier": {"failures": 3, "rest": 0.5, "silence": 1}}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def failing(status: str, headers: str = "") -> Script:
    async def script(talk: Talk) -> None:
        talk.json({"error": {"message": "boom"}}, status, headers)

    return script


async def post(client: httpx.AsyncClient, session: str = "s") -> httpx.Response:
    return await client.post(CHAT_PATH, json=CHAT, headers={"x-session-id": session})


def home(router: Router, backends: list[Scripted], response: httpx.Response) -> Scripted:
    name = response.headers["x-warmroute-backend"]
    return next(b for b in backends if b.url.endswith(name))


@pytest.mark.parametrize("status", ["500 Internal Server Error", "502 Bad Gateway", "503 Service Unavailable"])
async def test_a_faulty_answer_is_replaced_by_anothers(router: Router, backends: list[Scripted], status: str) -> None:
    async with httpx.AsyncClient(base_url=router.data_url) as client:
        first = home(router, backends, await post(client))
        first.script = failing(status)
        second = await post(client)
        assert second.status_code == 200
        assert home(router, backends, second) is not first
        assert second.headers["x-warmroute-decision"] == "pin_lost"
        assert router.counters.retries["status"] == 1


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        ("400 Bad Request", ""),
        ("404 Not Found", ""),
        ("429 Too Many Requests", "retry-after: 3\r\n"),
        ("501 Not Implemented", ""),
        ("503 Service Unavailable", "retry-after: 3\r\n"),
    ],
)
async def test_answers_that_are_no_faults_are_passed_on(
    router: Router, backends: list[Scripted], status: str, headers: str
) -> None:
    for backend in backends:
        backend.script = failing(status, headers)
    async with httpx.AsyncClient(base_url=router.data_url) as client:
        for _ in range(8):
            response = await post(client)
            assert (response.status_code, response.json()) == (int(status[:3]), {"error": {"message": "boom"}})
            assert response.headers.get("retry-after") == ("3" if headers else None)
    assert sum(len(b.posts) for b in backends) == 8
    assert {b.state for b in router.registry.backends.values()} == {"up"}


async def test_where_all_fail_the_last_answer_is_passed_on_and_retries_are_bounded(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    for backend in backends:
        backend.script = failing("500 Internal Server Error")
    router = await start_router(backends, retry={"share": 0.2, "least": 3})
    async with httpx.AsyncClient(base_url=router.data_url) as client:
        answers = [await post(client, f"s{i}") for i in range(40)]
    assert [(a.status_code, a.json()) for a in answers] == [(500, {"error": {"message": "boom"}})] * 40
    assert 43 <= sum(len(b.posts) for b in backends) <= 40 + 8
    resting = [b.name for b in router.registry.backends.values() if b.state == "resting"]
    assert len(resting) == 1


async def test_a_backend_that_fails_often_rests_and_one_request_tries_it(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    router = await start_router(backends, **QUICK)
    async with httpx.AsyncClient(base_url=router.data_url, limits=httpx.Limits(max_connections=None)) as client:
        bad = home(router, backends, await post(client))
        state = router.registry.backends[bad.url.removeprefix("http://")]
        bad.script = failing("500 Internal Server Error")
        for i in range(60):
            assert (await post(client, f"s{i}")).status_code == 200
            if state.state == "resting":
                break
        assert state.state == "resting"
        assert state.health.up
        tried = asyncio.Event()

        async def slowly(talk: Talk) -> None:
            tried.set()
            await asyncio.sleep(0.3)
            talk.json({}, "500 Internal Server Error")

        bad.script = slowly
        before = len(bad.posts)
        await until(lambda: state.state == "trial")
        burst = await asyncio.gather(*(post(client, f"t{i}") for i in range(30)))
        assert {r.status_code for r in burst} == {200}
        assert len(bad.posts) == before + 1
        assert tried.is_set()
        assert state.state == "resting"
        bad.script = answer
        await until(lambda: state.state == "trial")
        async with asyncio.timeout(10):
            n = 0
            while state.state != "up":
                assert (await post(client, f"u{(n := n + 1)}")).status_code == 200


async def test_a_hung_engine_is_found_by_its_silence_and_what_waited_goes_elsewhere(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    router = await start_router(backends, **QUICK)

    async def never(talk: Talk) -> None:
        await talk.peer_closed(30)

    async with httpx.AsyncClient(base_url=router.data_url, timeout=20) as client:
        hung = home(router, backends, await post(client))
        hung.script = never
        seen = await asyncio.gather(*(post(client, f"h{i}") for i in range(12)), post(client))
    assert {r.status_code for r in seen} == {200}
    state = router.registry.backends[hung.url.removeprefix("http://")]
    assert state.health.up
    assert "nothing for 1 s" in state.reason or state.state == "trial"
    assert Counter(r.headers["x-warmroute-backend"] == state.name for r in seen)[True] == 0
    assert router.counters.retries["timeout"] >= 1
    await until(lambda: all(b.in_flight == 0 for b in router.registry.backends.values()))
