"""Backends that are ill in every way: out while they are, back when they are well, and no trouble for the others."""

import asyncio
import json
import time
from contextlib import AsyncExitStack

import httpx

from warmroute.app import Router

from ..integration.conftest import until, up
from ..integration.scripted import RawClient, Scripted, Talk, answer, free_port
from .backend import FaultyBackend, after, by_name, everywhere, homes, posts, raw_answer, silence, turn
from .conftest import LONG, StartRouter


def is_up(router: Router, backend: Scripted) -> bool:
    return bool(router.registry.backends[backend.name].health.up)


async def ill(talk: Talk) -> None:
    talk.send(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")


class TestHealth:
    async def test_an_engine_that_says_it_is_dead_is_out_after_the_allowed_failures(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        first = await homes(router.data_url, [f"s{i}" for i in range(12)])
        backends[0].health = ill
        checks = sum(seen.path == "/health" for seen in backends[0].requests)
        await until(lambda: not is_up(router, backends[0]))
        assert sum(seen.path == "/health" for seen in backends[0].requests) - checks == router.config.health.fall
        state = router.registry.backends[backends[0].name]
        assert (state.state, state.health.reason) == ("down", "/health answered 503")
        before = len(backends[0].posts)
        moved = await homes(router.data_url, first)
        assert len(backends[0].posts) == before
        assert {s for s in first if first[s] != moved[s]} == {s for s in first if first[s] == backends[0].name}
        backends[0].health = None
        await until(lambda: is_up(router, backends[0]))
        assert await homes(router.data_url, first) == moved  # nobody is pulled back

    async def test_an_answer_that_comes_too_late_is_a_failed_check(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        router = await start_router(backends, health={"timeout": 0.3})

        async def late(talk: Talk) -> None:
            await asyncio.sleep(1.5)
            talk.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

        async def drip(talk: Talk) -> None:
            talk.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n")
            for _ in range(100):
                talk.send(b"x")
                await talk.drain()
                await asyncio.sleep(0.1)

        backends[0].health, backends[1].health = late, drip
        others = [sum(seen.path == "/health" for seen in b.requests) for b in backends]
        await until(lambda: not is_up(router, backends[0]) and not is_up(router, backends[1]))
        for backend in backends[:2]:
            assert "timed out" in router.registry.backends[backend.name].health.reason
        # the third one was checked in the meantime as if nothing were
        assert sum(seen.path == "/health" for seen in backends[2].requests) - others[2] >= 3
        assert (await turn(router.data_url, "s")).status == 200

    async def test_an_engine_that_hangs_is_found_by_its_traffic(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        """Its page is green all the time; that alone does not bring it back."""
        router = await start_router(backends, outlier={"silence": 0.4, "rest": 0.4})
        home = by_name(backends, (await homes(router.data_url, ["s"]))["s"])
        home.script = silence
        state = router.registry.backends[home.name]
        async with asyncio.timeout(5 * LONG):
            assert (await turn(router.data_url, "s")).status == 200
            assert (state.health.up, state.state) == (True, "resting")
            before = len(home.posts)
            for i in range(30):
                assert (await turn(router.data_url, f"new {i}")).status == 200
            assert len(home.posts) - before <= 2  # trials
        shown = next(b for b in router.state()["backends"] if b["name"] == home.name)  # type: ignore[attr-defined]
        assert shown["state"] in ("resting", "trial")
        home.script = answer
        async with asyncio.timeout(5 * LONG):
            while state.state != "up":  # one request that succeeds
                assert (await turn(router.data_url)).status == 200
                await asyncio.sleep(0.02)

    async def test_a_hanging_engine_takes_no_other_session_with_it(
        self, router: Router, backends: list[FaultyBackend], stack: AsyncExitStack
    ) -> None:
        """As long as it is not found out, the sessions of the others are served; new ones go where less runs."""
        first = await self.one_hangs(router, backends, stack)
        rest = {s: name for s, name in first.items() if name != backends[0].name}
        async with asyncio.timeout(2 * LONG):
            assert await homes(router.data_url, rest) == rest
            fresh = await homes(router.data_url, ["new 1", "new 2"])
        assert backends[0].name not in fresh.values()

    async def test_an_engine_that_makes_no_steps_gets_no_new_session(
        self, backends: list[FaultyBackend], start_router: StartRouter, stack: AsyncExitStack
    ) -> None:
        """Its own metrics tell that it hangs, however even the sessions are; its pins stay, and a step clears it."""
        for backend in backends:
            backend.metrics = steps_made(5)
        router = await start_router(backends, outlier={"stall": 0.5})
        first = await self.one_hangs(router, backends, stack)
        state = router.registry.backends[backends[0].name]
        await until(lambda: state.progress.stalled)
        assert "no steps" in state.reason
        async with asyncio.timeout(2 * LONG):
            fresh = await homes(router.data_url, [f"new {i}" for i in range(6)])
        assert backends[0].name not in fresh.values()
        assert sum(name == backends[0].name for name in first.values()) == state.sessions
        backends[0].metrics, backends[0].script = steps_made(6), answer
        await until(lambda: not state.progress.stalled)
        later = await homes(router.data_url, [f"later {i}" for i in range(6)])
        assert list(later.values()).count(backends[0].name) >= 4  # it is behind by three sessions

    @staticmethod
    async def one_hangs(router: Router, backends: list[FaultyBackend], stack: AsyncExitStack) -> dict[str, str]:
        """Nine sessions live; those of the first backend have asked it again and wait for an answer that never comes."""
        first = await homes(router.data_url, [f"s{i}" for i in range(9)])
        backends[0].script = silence
        for session in (s for s, name in first.items() if name == backends[0].name):
            client = await stack.enter_async_context(await RawClient.connect(router.data_url))
            client.post({"model": "m"}, {"x-session-id": session})
        await until(lambda: backends[0].running == 3)
        return first

    async def test_a_flapping_backend_moves_its_sessions_once(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        """One good check in five: down after the failures that are allowed, and not up again by a single success."""
        router = await start_router(backends, health={"interval": 0.05, "unsettled_interval": 0.05})
        first = await homes(router.data_url, [f"s{i}" for i in range(9)])
        checks = 0

        async def flap(talk: Talk) -> None:
            nonlocal checks
            checks += 1
            if checks % 5 == 0:
                talk.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            else:
                await ill(talk)

        backends[0].health = flap
        await until(lambda: not is_up(router, backends[0]))
        down_since = router.registry.backends[backends[0].name].since
        moved = await homes(router.data_url, first)
        await until(lambda: checks >= 25)
        assert router.registry.backends[backends[0].name].since == down_since  # it has not been up in between
        assert await homes(router.data_url, first) == moved
        assert sum(router.counters.moves.values()) == 3

    async def test_a_server_error_is_no_illness_and_the_last_one_stays(self, start_router: StartRouter) -> None:
        """Ten times 500: passed on, and the one backend there is goes on being asked."""
        async with FaultyBackend(raw_answer(b"HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\nboom")) as only:
            router = await start_router([only])
            assert [(await turn(router.data_url, "s")).status for _ in range(10)] == [500] * 10
            only.script = answer
            assert (await turn(router.data_url, "s")).status == 200


class TestBreaker:
    async def test_one_trial_and_no_burst_after_its_rest(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        router = await start_router(backends, outlier={"failures": 3, "rest": 0.4}, retry={"least": 100})
        first = await homes(router.data_url, [f"s{i}" for i in range(30)])
        weak = backends[0]
        state = router.registry.backends[weak.name]
        weak.script = after(0.2, raw_answer(b"HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\nboom"))
        for session in [s for s in first if first[s] == weak.name][:3]:
            assert (await turn(router.data_url, session)).status == 200  # by another one
        assert state.state == "resting"
        await until(lambda: state.state == "trial")
        before = len(weak.posts)
        sessions = [*first, *(f"new {i}" for i in range(20))]
        replies = await asyncio.gather(*(turn(router.data_url, session) for session in sessions))
        assert [reply.status for reply in replies] == [200] * 50
        assert len(weak.posts) - before <= 1
        weak.script = answer
        async with asyncio.timeout(5 * LONG):
            while state.state != "up":
                assert (await turn(router.data_url)).status == 200
                await asyncio.sleep(0.02)
        assert (await turn(router.data_url, "s0")).status == 200

    async def test_a_backend_that_comes_back_is_not_run_down(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        """It gets its share of new sessions; those that it had stay where they went."""
        first = await homes(router.data_url, [f"s{i}" for i in range(25)])
        back = backends[0]
        await back.stop()
        moved = await homes(router.data_url, first)
        await back.start()
        await until(lambda: up(router) == 3)
        everywhere(backends, after(0.1))
        before = len(back.posts)
        sessions = [*moved, *(f"new {i}" for i in range(25))]
        replies = await asyncio.gather(*(turn(router.data_url, session) for session in sessions))
        assert [reply.status for reply in replies] == [200] * 50
        assert {
            s: r.header("x-warmroute-backend") for s, r in zip(sessions, replies, strict=True) if s in moved
        } == moved
        assert 1 <= len(back.posts) - before <= 25
        assert not back.sessions().intersection(s for s in first if first[s] != back.name)


def steps_made(steps: int) -> str:
    return f'vllm:iteration_tokens_total_count{{engine="0",model_name="m"}} {steps}.0\n'


class TestFailover:
    async def test_one_gone_then_all_then_one_back(self, router: Router, backends: list[FaultyBackend]) -> None:
        first = await homes(router.data_url, [f"s{i}" for i in range(30)])
        gone = backends[1]
        await gone.stop()
        moved: dict[str, str | None] = {}
        for round_ in range(4):
            for session in first:
                began = time.monotonic()
                reply = await turn(router.data_url, session)
                assert (reply.status, time.monotonic() - began < 1.5 * LONG) == (200, True)
                new = reply.header("x-warmroute-backend")
                assert moved.setdefault(session, new) == new, round_
        assert {s for s in first if first[s] != moved[s]} == {s for s in first if first[s] == gone.name}
        assert gone.name not in moved.values()
        await backends[0].stop()
        await backends[2].stop()
        await self.all_down(router)
        await backends[0].start()
        await until(lambda: up(router) == 1, within=3 * LONG)
        assert (await turn(router.data_url, "s1")).status == 200

    @staticmethod
    async def all_down(router: Router) -> None:
        began = time.monotonic()
        reply = await turn(router.data_url, "s1")
        assert time.monotonic() - began < 1.5 * LONG
        assert (reply.status, reply.header("retry-after")) == (503, "2")
        assert set(reply.json()["error"]) == {"message", "type", "code", "param"}  # type: ignore[call-overload]
        await until(lambda: up(router) == 0)
        async with httpx.AsyncClient(trust_env=False) as http:
            statuses = {
                path: (await http.get(router.data_url + path)).status_code
                for path in ("/livez", "/readyz", "/v1/models")
            }
            assert statuses == {"/livez": 200, "/readyz": 503, "/v1/models": 503}
            for path in ("/", "/metrics", "/api/state", "/livez"):
                assert (await http.get(router.admin_url + path)).status_code == 200

    async def test_refusing_takes_no_time(self, start_router: StartRouter) -> None:
        router = await start_router([FaultyBackend(port=free_port()) for _ in range(3)], wait=False)
        await until(lambda: all(b.health.up is False for b in router.registry.backends.values()))
        began = time.monotonic()
        replies = [await turn(router.data_url, f"s{i}") for i in range(20)]
        assert [reply.status for reply in replies] == [503] * 20
        assert (time.monotonic() - began) / 20 < 0.05 * LONG

    async def test_strict_affinity_refuses_rather_than_moves(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        router = await start_router(backends, affinity={"when_gone": "refuse"})
        home = by_name(backends, (await homes(router.data_url, ["s"]))["s"])
        await home.stop()
        for _ in range(2):  # found dead by the request, then known to be
            reply = await turn(router.data_url, "s")
            assert (reply.status, reply.header("retry-after")) == (503, "2")
            assert reply.header("x-warmroute-decision") == "pin_gone"
            assert home.name in json.dumps(reply.json())
            await until(lambda: not is_up(router, home))
        assert len(posts(backends)) == 1
        assert {r.status for r in [await turn(router.data_url, f"new {i}") for i in range(4)]} == {200}
        await home.start()
        await until(lambda: is_up(router, home))
        back = await turn(router.data_url, "s")
        assert (back.status, back.header("x-warmroute-backend")) == (200, home.name)
        router.registry.drain(home.name, on=True, until=0)  # who is sent away does not wait
        router.registry.end_drains(time.monotonic())
        assert (await turn(router.data_url, "s")).header("x-warmroute-decision") == "pin_lost"
