"""The backends' metrics pages, good and bad, and the router's own, which must not grow with what clients choose."""

import asyncio
import json
import re
import time

import httpx
import pytest

from warmroute.app import Router

from ..integration.conftest import until
from ..integration.scripted import RawClient, Scripted, Talk
from ..integration.valkey import Valkey
from .backend import FaultyBackend, homes, posts, turn
from .conftest import LONG, StartRouter
from .test_client_leaves import rss


def counter(name: str, value: int, labels: str = 'engine="0",model_name="m"') -> str:
    return f"# TYPE {name} counter\n{name}{{{labels}}} {value}.0\n"


def page(queries: int, hits: int, *, prefix: str = "", also_old: bool = False) -> str:
    """A metrics page; with what must never be counted beside it."""
    text = counter(f"vllm:{prefix}prefix_cache_queries_total", queries) + counter(
        f"vllm:{prefix}prefix_cache_hits_total", hits
    )
    if also_old:
        text += page(queries, hits, prefix="gpu_")
    for name in ("queries", "hits"):
        text += f'vllm:{prefix}prefix_cache_{name}_created{{engine="0",model_name="m"}} 1.76e+09\n'
    return text + counter("vllm:external_prefix_cache_hits_total", 999)


async def admin(router: Router, path: str) -> str:
    async with httpx.AsyncClient(base_url=router.admin_url, trust_env=False) as http:
        answered = await http.get(path)
    assert answered.status_code == 200
    return answered.text


def value(text: str, series: str) -> float | None:
    found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.M)
    return float(found[1]) if found else None


async def read_again(router: Router, backends: list[Scripted]) -> None:
    """Wait until each of these has been read since now."""
    now = time.monotonic()
    states = [router.registry.backends[b.name].scrape for b in backends]
    await until(lambda: all((scrape.at or 0) > now for scrape in states))


class TestMetricsContent:
    @pytest.fixture
    async def four(self, backends: list[FaultyBackend]) -> list[FaultyBackend]:
        return [*backends, FaultyBackend()]

    async def test_old_and_new_names_are_counted_once_and_nothing_is_no_ratio(
        self, four: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        new, old, mute, unused = four
        async with unused:
            new.metrics, old.metrics, unused.metrics = page(0, 0, also_old=True), page(0, 0, prefix="gpu_"), page(0, 0)
            mute.metrics = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n"
            router = await start_router(four)
            await read_again(router, [*four])
            new.metrics, old.metrics = page(1000, 600, also_old=True), page(400, 100, prefix="gpu_")
            await read_again(router, [*four])
            text, state = await admin(router, "/metrics"), json.loads(await admin(router, "/api/state"))
            await router.__aexit__(None, None, None)
        ratios = {
            b.name: value(text, f'warmroute_backend_prefix_cache_hit_ratio{{backend="{b.name}",window="5m"}}')
            for b in four
        }
        assert ratios == {new.name: 0.6, old.name: 0.25, mute.name: None, unused.name: None}
        assert value(text, 'warmroute_fleet_prefix_cache_hit_ratio{window="5m"}') == 0.5  # 700 of 1400
        shown = {b["name"]: b["hit_ratio"]["5m"] for b in state["backends"]}
        assert shown == ratios
        assert "NaN" not in re.sub(r"^vllm:.*$", "", text, flags=re.M)
        assert value(text, f'warmroute_backend_prefix_cache_queries_total{{backend="{new.name}"}}') == 1000
        assert any(mute.name in a["text"] and "no prefix cache counters" in a["text"] for a in state["advice"])

    async def test_more_hits_than_queries_are_no_ratio(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        router, text, _ = await self.contradiction(backends, start_router)
        name = backends[0].name
        assert f'hit_ratio{{backend="{name}"' not in text
        assert value(text, f'warmroute_backend_prefix_cache_hits_total{{backend="{name}"}}') == 1200
        assert router.counters.internal_errors == {}

    async def test_more_hits_than_queries_are_told(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        _, _, advice = await self.contradiction(backends, start_router)
        assert any(backends[0].name in sentence and "hits" in sentence for sentence in advice)

    @staticmethod
    async def contradiction(backends: list[FaultyBackend], start_router: StartRouter) -> tuple[Router, str, list[str]]:
        for backend in backends:
            backend.metrics = page(0, 0)
        router = await start_router(backends)
        await read_again(router, [*backends])
        backends[0].metrics = page(1000, 1200)
        await read_again(router, [*backends])
        told = json.loads(await admin(router, "/api/state"))["advice"]
        return router, await admin(router, "/metrics"), [advice["text"] for advice in told]

    async def test_a_page_of_nonsense_is_no_trouble(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        pages = [
            "",
            "{}",
            "<html>",
            "vllm:prefix_cache_hits_total\n" * 3,
            'vllm:x{a="b 1\n',
            "vllm:y NaN\nvllm:z +Inf\n",
            "\0" * 99,
        ]
        router = await start_router(backends)
        for text in pages:
            backends[0].metrics = text
            await read_again(router, [backends[0]])
            assert (await turn(router.data_url)).status == 200
        assert router.counters.internal_errors == {}
        assert await admin(router, "/metrics")


class TestScraping:
    async def test_a_bad_page_slows_nothing_and_is_marked(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        """It hangs, then it drips, then it is refused: the others move on, and chats through it go well."""
        bad, open_now, most_open, count = backends[1], 0, 0, 0

        async def hang(talk: Talk) -> None:
            nonlocal open_now, most_open
            open_now += 1
            most_open = max(most_open, open_now)
            try:
                if drips:
                    talk.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
                while not await talk.peer_closed(within=0.1):
                    talk.send(b"#" if drips else b"")
            finally:
                open_now -= 1

        async def counting(talk: Talk) -> None:
            nonlocal count
            count += 1
            text = page(count, 0).encode()
            talk.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(text) + text)

        drips = False  # read by `hang`
        for backend in backends:
            backend.metrics_script = counting
        router = await start_router(backends, metrics={"stale_after": 1.5})
        await read_again(router, [*backends])
        bad.metrics_script = hang
        await self.nothing_is_slow(router, backends)
        drips = True
        await self.nothing_is_slow(router, backends)
        await bad.stop()
        await until(lambda: not router.registry.backends[bad.name].health.up)
        await bad.start()  # it serves again, but its page is as bad as before
        await self.marked(router, bad)
        assert most_open <= 2

    @staticmethod
    async def nothing_is_slow(router: Router, backends: list[FaultyBackend]) -> None:
        good = [b for i, b in enumerate(backends) if i != 1]
        for _ in range(5):
            began = time.monotonic()
            await admin(router, "/metrics")
            await admin(router, "/api/state")
            assert time.monotonic() - began < 0.6 * LONG
            assert (await turn(router.data_url)).status == 200
        await read_again(router, [*good])
        assert router.registry.backends[backends[1].name].health.up
        lived = await homes(router.data_url, [f"s{i}" for i in range(6)])
        assert backends[1].name in lived.values()

    @staticmethod
    async def marked(router: Router, bad: FaultyBackend) -> None:
        async with asyncio.timeout(5 * LONG):
            while True:
                state = json.loads(await admin(router, "/api/state"))
                shown = next(b["scrape"] for b in state["backends"] if b["name"] == bad.name)
                if shown["stale"]:
                    break
                await asyncio.sleep(0.05)
        assert shown["age_s"] > 1
        assert shown["error"]
        text = await admin(router, "/metrics")
        assert value(text, f'warmroute_backend_metrics_fresh{{backend="{bad.name}"}}') == 0
        assert not re.search(rf'^vllm:.*backend="{bad.name}"', text, re.M)

    async def test_reading_has_a_timeout_of_its_own(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        async def hang(talk: Talk) -> None:
            await talk.peer_closed(within=30)

        backends[0].metrics_script = hang
        router = await start_router(backends, metrics={"scrape_interval": 60, "scrape_timeout": 0.2})
        await until(lambda: router.registry.backends[backends[0].name].scrape.error == "timed out")
        await until(
            lambda: any(s.path == "/metrics" and s.connection in backends[0].closed_at for s in backends[0].begun)
        )


LIMIT = 100


async def strangers(router: Router, first: int, count: int) -> None:
    """Ids, paths, models and methods that nobody has used before."""
    async with await RawClient.connect(router.data_url) as client:
        for i in range(first, first + count):
            await client.chat(f"session-{i}")
            if i % 4 == 0:
                await client.chat(f"session-{i}", model=f"model-{i}")
            if i % 4 == 1:
                client.post({}, path=f"/odd/{i}")
                await client.reply()
            if i % 4 == 2:
                client.send(f"GET /v1/models/name-{i} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                await client.reply()
    for i in range(first, first + count // 20):
        async with await RawClient.connect(router.data_url) as client:
            client.send(f"FOO{i} /v1/models HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await client.reader.read()


class TestGrowth:
    async def test_what_clients_choose_makes_nothing_grow(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        router = await start_router(backends, affinity={"max_sessions": LIMIT, "max_history": LIMIT})
        await strangers(router, 0, 200)
        homes_before = {b.name for b in backends}
        size, memory = len(await admin(router, "/metrics")), rss()
        await strangers(router, 200, 1500)
        for backend in backends:  # what the test itself keeps
            backend.requests.clear()
            backend.begun.clear()
        text = await admin(router, "/metrics")
        assert len(text) < 1.1 * size
        assert rss() - memory < 30 << 20
        assert len(router.pins) <= LIMIT
        assert router.pins.evicted >= 1700 - LIMIT
        assert not re.search(r"session-\d|/odd/|model-\d|name-\d|FOO", text + await admin(router, "/api/state"))
        assert len(json.loads(await admin(router, "/api/sessions"))["sessions"]) <= 100
        assert len(router.counters.recent) < 500
        assert all(count <= 2 * LIMIT for count in router.memory.entries().values())
        assert (await turn(router.data_url, "session-3")).header("x-warmroute-backend") in homes_before

    async def test_a_session_that_was_forgotten_gets_its_home_on_the_ring_again(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        alone = {"even_sessions": 0, "session_bound": 10, "size_bound": 10, "in_flight_bound": 10, "max_sessions": 10}
        router = await start_router(backends, affinity=alone)
        ids = [f"s{i}" for i in range(60)]
        first = await homes(router.data_url, ids)
        assert len(router.pins) == 10
        assert await homes(router.data_url, ids) == first

    async def test_every_key_in_the_store_ends_by_itself(
        self, backends: list[FaultyBackend], start_router: StartRouter, valkey: Valkey
    ) -> None:
        router = await start_router(backends, store={"redis": valkey.url, "deadline": "500ms"})
        await homes(router.data_url, [f"s{i}" for i in range(10)])
        async with valkey.client() as client:
            keys = [key async for key in client.scan_iter("*")]
            assert len(keys) > 10
            assert all([await client.ttl(key) > 0 for key in keys])
        assert len(posts(backends)) == 10
