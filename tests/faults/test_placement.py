"""Where sessions go when the fleet changes, and when some of them are hot."""

import asyncio
import signal
from collections import Counter
from pathlib import Path

import httpx

from warmroute.app import Router
from warmroute.config import Config

from ..integration.conftest import FAST, until
from ..integration.scripted import Talk, answer, free_port
from ..serving import serving, until_ready
from .backend import FaultyBackend, after, by_name, everywhere, homes, posts, turn
from .conftest import StartRouter

IDS = [f"session-{i}" for i in range(500)]
RING_ALONE = {"even_sessions": 0, "session_bound": 10, "size_bound": 10, "in_flight_bound": 10}
"""Bounds that nothing exceeds, so that the ring alone places."""


class TestRing:
    async def test_only_the_sessions_of_a_changed_backend_move(self) -> None:
        """All five names are one server here: the ring knows names, and a restart forgets pins."""
        async with FaultyBackend() as one:
            four = await self.placed(one, ["b1", "b2", "b3", "b4"])
            without = await self.placed(one, ["b1", "b2", "b4"])
            again = await self.placed(one, ["b4", "b3", "b2", "b1"])
            five = await self.placed(one, ["b1", "b2", "b3", "b4", "b5"])
        of_b3 = [s for s in IDS if four[s] == "b3"]
        assert [s for s in IDS if four[s] != without[s]] == of_b3
        spread = Counter(without[s] for s in of_b3)
        assert len(spread) == 3
        assert min(spread.values()) >= 0.15 * len(of_b3)
        assert again == four  # removed and added back, in another order
        pulled = [s for s in IDS if four[s] != five[s]]
        assert {five[s] for s in pulled} == {"b5"}
        assert 0.14 <= len(pulled) / len(IDS) <= 0.26
        shares = Counter(four.values()).values()
        assert max(shares) / min(shares) <= 1.35

    @staticmethod
    async def placed(backend: FaultyBackend, names: list[str]) -> dict[str, str]:
        listed = [{"url": backend.url, "name": name} for name in names]
        config = Config.model_validate({**FAST, "affinity": RING_ALONE, "backends": listed})
        async with Router(config) as router:
            await until(lambda: all(b.health.up and b.models for b in router.registry.backends.values()))
            return await homes(router.data_url, IDS)

    async def test_with_pins_a_backend_that_goes_takes_its_own_sessions_alone_and_pulls_none_back(
        self, start_router: StartRouter, backends: list[FaultyBackend]
    ) -> None:
        late = FaultyBackend(port=free_port())
        router = await start_router([*backends, late], wait=False)
        await until(lambda: router.registry.backends[late.name].health.up is False)
        ids = IDS[:150]
        first = await homes(router.data_url, ids)
        assert max(Counter(first.values()).values()) == 50
        await backends[2].stop()
        after_loss = await homes(router.data_url, ids)
        assert [s for s in ids if first[s] != after_loss[s]] == [s for s in ids if first[s] == backends[2].name]
        assert Counter(after_loss.values()) == {backends[0].name: 75, backends[1].name: 75}
        async with late:
            await backends[2].start()
            await until(lambda: all(b.health.up for b in router.registry.backends.values()))
            assert await homes(router.data_url, ids) == after_loss
            fresh = await homes(router.data_url, [f"new {i}" for i in range(40)])
            assert set(fresh.values()) == {late.name, backends[2].name}

    async def test_a_removed_backend_is_left_alone_and_its_streams_end(
        self, backends: list[FaultyBackend], tmp_path: Path
    ) -> None:
        go_on = asyncio.Event()

        async def long(talk: Talk) -> None:
            talk.stream_head()
            talk.event({"i": 1})
            await talk.drain()
            await go_on.wait()
            talk.event(b"[DONE]")
            talk.end()

        file = tmp_path / "warmroute.yaml"
        quick = "health: {interval: 100ms}\nmetrics: {scrape_interval: 100ms}\n"
        file.write_text(f"{quick}backends: [{', '.join(b.url for b in backends)}]\n")
        with serving("--config", str(file)) as router:
            await until_ready(router.admin, up=3)
            home = by_name(backends, (await homes(router.data, ["s"]))["s"])
            home.script = long
            running = asyncio.ensure_future(turn(router.data, "s", stream=True))
            await until(lambda: home.running == 1)
            file.write_text(f"{quick}backends: [{', '.join(b.url for b in backends if b is not home)}]\n")
            router.process.send_signal(signal.SIGHUP)
            async with httpx.AsyncClient(base_url=router.admin, trust_env=False) as http:
                while len((await http.get("/api/state")).json()["backends"]) == 3:
                    await asyncio.sleep(0.02)
            await asyncio.sleep(0.2)  # two intervals, in which what was on its way may end
            quiet = len(home.requests)
            other = (await homes(router.data, ["s"]))["s"]
            await asyncio.sleep(0.4)
            assert (len(home.requests), other != home.name) == (quiet, True)
            go_on.set()
            assert (await running).body.endswith(b"[DONE]\n\n")


class TestLoad:
    @staticmethod
    def engines(backends: list[FaultyBackend], seconds: float = 0.05) -> None:
        """Each backend works on four requests at a time and queues the rest, as an engine does."""
        for backend in backends:
            places = asyncio.Semaphore(4)

            async def work(talk: Talk, places: asyncio.Semaphore = places) -> None:
                async with places:
                    await asyncio.sleep(seconds)
                    await answer(talk)

            backend.script = work

    async def test_a_hot_session_keeps_its_home_and_the_others_their_pace(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        rest = [f"s{i}" for i in range(30)]
        first = await homes(router.data_url, ["hot", *rest])
        self.engines(backends)
        hot = [asyncio.ensure_future(turn(router.data_url, "hot")) for _ in range(40)]
        home = by_name(backends, first["hot"])
        await until(lambda: home.running >= 30)
        async with httpx.AsyncClient(trust_env=False) as http:
            state = (await http.get(f"{router.admin_url}/api/state")).json()
        shown = {b["name"]: b["in_flight"] for b in state["backends"]}
        assert shown[home.name] > sum(n for name, n in shown.items() if name != home.name)  # the skew is there to see
        elsewhere = [s for s in rest if first[s] != home.name]
        replies = await asyncio.gather(*(turn(router.data_url, s) for s in elsewhere))
        assert not all(task.done() for task in hot)  # these did not queue behind the hot ones
        assert [r.header("x-warmroute-backend") for r in replies] == [first[s] for s in elsewhere]
        fresh = await homes(router.data_url, [f"new {i}" for i in range(4)])
        assert home.name not in fresh.values() or all(task.done() for task in hot)
        assert {r.header("x-warmroute-backend") for r in await asyncio.gather(*hot)} == {home.name}
        assert set((await homes(router.data_url, [f"later {i}" for i in range(12)])).values()) == {
            b.name for b in backends
        }
        assert sum(router.counters.moves.values()) == 0

    async def test_more_than_a_backend_may_have_waits_and_what_is_beyond_is_refused(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        queue = {"in_flight": 8, "length": 6, "timeout": 30}
        router = await start_router(backends, queue=queue, affinity={"when_full": "wait"})
        home = (await homes(router.data_url, ["hot"]))["hot"]
        self.engines(backends, 0.1)
        replies = await asyncio.gather(*(turn(router.data_url, "hot") for _ in range(40)))
        served = [reply for reply in replies if reply.status == 200]
        assert len(served) == 14
        assert {reply.header("x-warmroute-backend") for reply in served} == {home}
        for reply in (reply for reply in replies if reply.status != 200):
            assert (reply.status, reply.header("retry-after") is not None) == (503, True)
            assert "overloaded" in str(reply.json())
        assert max(b.most_running for b in backends) <= 8
        assert (await turn(router.data_url, "hot")).status == 200

    async def test_the_excess_of_a_hot_session_is_served_elsewhere_and_its_place_kept(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        affinity = {"when_full": "spill", "spills": 100}
        router = await start_router(backends, queue={"in_flight": 8}, affinity=affinity)
        home = (await homes(router.data_url, ["hot"]))["hot"]
        self.engines(backends, 0.1)
        replies = await asyncio.gather(*(turn(router.data_url, "hot") for _ in range(14)))
        assert [reply.status for reply in replies] == [200] * 14
        assert Counter(reply.header("x-warmroute-backend") for reply in replies)[home] == 8
        back = await turn(router.data_url, "hot")
        assert (back.header("x-warmroute-backend"), back.header("x-warmroute-decision")) == (home, "pin_hit")

    async def test_more_than_all_can_do_is_queued_evenly_and_recovered_from(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        self.engines(backends, 0.02)
        replies = await asyncio.gather(*(turn(router.data_url) for _ in range(240)))
        assert [reply.status for reply in replies] == [200] * 240
        most = [b.most_running for b in backends]
        assert max(most) <= 1.25 * min(most) + 2
        assert len(posts(backends)) == 240
        everywhere(backends, after(0))
        assert (await turn(router.data_url)).status == 200
        assert all(b.in_flight == 0 for b in router.registry.backends.values())
