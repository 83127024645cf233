"""KV events of backends: every message once and in its order, gaps filled or owned up to, and what the router makes of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Any

import httpx
import pytest

from warmroute import control, keeping
from warmroute.app import Router
from warmroute.config import Config
from warmroute.core.health import Thresholds
from warmroute.core.model import BackendSpec
from warmroute.core.residency import Held
from warmroute.fleet.heard import HeardResidents
from warmroute.fleet.kv_events import KvEvents
from warmroute.fleet.registry import Registry
from warmroute.fleet.residents import Sync
from warmroute.pins.memory import PinTable
from warmroute.saved import read

from .conftest import FAST, StartRouter, until, up
from .kv_publisher import CLEARED, Publisher, removed, stored, tells_of
from .scripted import Scripted, Talk, answer

SESSION = b"s" * 16
CHAT = "/v1/chat/completions"


@pytest.fixture
async def publisher(stack: AsyncExitStack) -> Publisher:
    return await stack.enter_async_context(Publisher())


class Heard:
    """Events of one backend as they are heard."""

    def __init__(self, residents: HeardResidents, name: str) -> None:
        self.residents = residents
        self.name = name
        self.label = residents.label(SESSION)

    def held(self) -> Held | None:
        return self.residents.held(SESSION, self.name, None)

    def live(self) -> int:
        held = self.held()
        return -1 if held is None else held.live

    async def live_is(self, tokens: int) -> None:
        await until(lambda: self.live() == tokens)

    async def sync_is(self, sync: Sync) -> None:
        await until(lambda: self.residents.sync(self.name) is sync)

    @property
    def gaps(self) -> tuple[int, int]:
        cache = self.residents.caches[self.name]["0"]
        return cache.gaps, cache.losses


@asynccontextmanager
async def hearing(backend: Scripted) -> AsyncIterator[Heard]:
    """Hears a backend, which is asked every 50 ms where its publishers are while it has none."""
    async with backend, httpx.AsyncClient(trust_env=False, timeout=None) as client:
        pins = PinTable(lambda: 0.0, idle_expiry=60.0, limit=10)
        registry = Registry([BackendSpec(backend.name, backend.url)], pins, Thresholds(), 0.0)
        registry.probed(backend.name, None, 0.0)
        residents = HeardResidents(b"k" * 32, 1000)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(KvEvents(registry, client, residents, ask_again=0.05).run())
            yield Heard(residents, backend.name)
            task.cancel()


async def test_what_a_backend_stores_and_drops_is_known(publisher: Publisher) -> None:
    async with hearing(tells_of(publisher)) as heard:
        await publisher.subscribed()
        await heard.sync_is(Sync.LIVE)
        await publisher.publish(stored(heard.label, 1, 2, 3))
        await publisher.publish(removed(3), removed(2))
        await heard.live_is(16)
        assert heard.held() == Held(48, 16, 32, True)
        await publisher.publish(CLEARED)
        await heard.live_is(0)
        assert heard.gaps == (0, 0)


async def test_messages_that_were_missed_are_fetched(publisher: Publisher) -> None:
    async with hearing(tells_of(publisher)) as heard:
        await publisher.subscribed()
        await publisher.publish(stored(heard.label, 1, 2))
        await heard.live_is(32)
        publisher.lose = True
        await publisher.publish(stored(heard.label, 3, parent=2))
        await publisher.publish(stored(heard.label, 4, parent=3))
        publisher.lose = False
        await publisher.publish(stored(heard.label, 5, parent=4))
        await publisher.serve_one_replay()
        await heard.live_is(80)
        await publisher.publish(removed(5))
        await heard.live_is(64)
        assert publisher.asked == [1]
        assert heard.gaps == (1, 0)


@pytest.mark.parametrize("why", ["no replay socket", "not in the buffer", "too many"])
async def test_a_gap_that_cannot_be_filled_makes_all_unknown(stack: AsyncExitStack, why: str) -> None:
    """Not gone, and not there: nothing is claimed of a session until it stores blocks again."""
    publisher = await stack.enter_async_context(Publisher(replays=why != "no replay socket"))
    async with hearing(tells_of(publisher)) as heard:
        await publisher.subscribed()
        await publisher.publish(stored(heard.label, 1, 2))
        await heard.live_is(32)
        publisher.lose = True
        for number in range(1100 if why == "too many" else 2):
            await publisher.publish(removed(number + 10))
        publisher.lose = False
        if why == "not in the buffer":
            publisher.forget()
        await publisher.publish(stored(None, 8))
        if why == "not in the buffer":
            await publisher.serve_one_replay()
        await until(lambda: heard.gaps == (1, 1))
        await heard.sync_is(Sync.LIVE)
        assert heard.held() is None
        assert not heard.residents.cold(SESSION, heard.name, None)
        await publisher.publish(stored(heard.label, 4, parent=3))
        await heard.live_is(16)
        assert heard.held() == Held(16, 16, 0, False)


async def test_a_count_that_begins_again_is_another_process(publisher: Publisher) -> None:
    async with hearing(tells_of(publisher)) as heard:
        await publisher.subscribed()
        await publisher.publish(stored(heard.label, 1, 2))
        await heard.live_is(32)
        publisher.restart()
        await publisher.publish(stored(None, 7))
        await heard.live_is(0)
        assert heard.residents.cold(SESSION, heard.name, None)


async def test_a_publisher_that_goes_leaves_nothing_known_and_is_heard_again_when_it_is_back() -> None:
    async with AsyncExitStack() as first_life:
        publisher = await first_life.enter_async_context(Publisher())
        named = [publisher]
        backend = tells_of(publisher)
        backend.script = lambda talk: tells_of(*named).script(talk)
        async with hearing(backend) as heard:
            await publisher.subscribed()
            await publisher.publish(stored(heard.label, 1, 2))
            await heard.live_is(32)
            named.clear()
            await first_life.aclose()
            await heard.sync_is(Sync.OFF)
            assert heard.held() is None
            async with Publisher() as again:
                named.append(again)
                await again.subscribed()
                await again.publish(stored(heard.label, 5))
                await heard.live_is(16)


async def test_what_is_no_message_of_vllms_is_not_taken(publisher: Publisher, caplog: pytest.LogCaptureFixture) -> None:
    async with hearing(tells_of(publisher)) as heard:
        await publisher.subscribed()
        await publisher.publish(stored(heard.label, 1, 2))
        await heard.live_is(32)
        await publisher.publish_raw(b"\xc1")
        await publisher.subscribed()
        await heard.sync_is(Sync.LIVE)
        assert heard.held() is None
    assert "no batch of events" in caplog.text


@pytest.mark.parametrize(
    ("page", "says"),
    [({}, "publishes none"), ([], "not what vLLM answers"), (None, "answered 404")],
)
async def test_a_backend_without_events_is_off_and_told_once(
    caplog: pytest.LogCaptureFixture, page: object, says: str
) -> None:
    async def script(talk: Talk) -> None:
        talk.json(page, "404 Not Found" if page is None else "200 OK")

    backend = Scripted(script=script)
    async with hearing(backend) as heard:
        await until(lambda: len(backend.requests) >= 3)
        assert heard.residents.sync(heard.name) is Sync.OFF
    assert caplog.text.count("are not heard") == 1
    assert says in caplog.text


# In a router


class Vllm:
    """A backend with a publisher that stores one more block of a session at each of its requests, under the id it is told."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.backend = tells_of(publisher)
        self.sources = self.backend.script
        self.backend.script = self._script
        self.blocks: dict[str, list[int]] = {}
        self.numbers = count(1)
        self.busy = asyncio.Event()
        self.free = asyncio.Event()

    async def _script(self, talk: Talk) -> None:
        if talk.seen.path != CHAT:
            await self.sources(talk)
            return
        if b"slow" in talk.seen.body:
            await self.free.wait()
        label = json.loads(talk.seen.body).get("session_id") or talk.seen.header("x-session-id")
        if label is not None:
            known = self.blocks.setdefault(label, [])
            block = next(self.numbers)
            await self.publisher.publish(stored(label, block, parent=known[-1] if known else None))
            known.append(block)
        await answer(talk)

    async def drop(self, label: str) -> None:
        await self.publisher.publish(*(removed(block) for block in reversed(self.blocks.pop(label))))


@pytest.fixture
async def servers(stack: AsyncExitStack) -> list[Vllm]:
    made = [Vllm(await stack.enter_async_context(Publisher())) for _ in range(2)]
    for vllm in made:
        await stack.enter_async_context(vllm.backend)
    return made


async def started(start_router: StartRouter, servers: list[Vllm]) -> Router:
    router = await start_router([s.backend for s in servers], kv_events={"enabled": True})
    await until(lambda: [b["kv_events"] for b in states(router)] == ["live", "live"])
    return router


def states(router: Router) -> list[dict[str, Any]]:
    found = router.state()["backends"]
    assert isinstance(found, list)
    return found


async def ask(router: Router, session: str | None, text: str = "hi", **more: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=router.data_url) as client:
        headers = {} if session is None else {"X-Session-ID": session}
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **more}
        response = await client.post(CHAT, headers=headers, json=body)
        assert response.status_code == 200
        return response


def by_name(servers: list[Vllm], response: httpx.Response) -> Vllm:
    return next(s for s in servers if s.backend.name == response.headers["x-warmroute-backend"])


async def warm(router: Router, session: str) -> list[dict[str, Any]]:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    saved = read(json.dumps(body).encode(), path=None, headers=(f"X-Session-ID: {session}",))
    found = await asyncio.to_thread(control.explain, router.admin_url, saved)
    text = control.explain_text(found)
    for one in found["warm"]:
        assert f"{one['live_tokens']} of {one['tokens']} tokens" in text
    rows: list[dict[str, Any]] = found["warm"]
    return rows


async def until_live(router: Router, session: str, tokens: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(15):
        while not (rows := await warm(router, session)) or rows[0]["live_tokens"] != tokens:
            await asyncio.sleep(0.01)
    return rows


async def test_backends_are_told_a_digest_and_explain_tells_how_warm_a_session_is(
    start_router: StartRouter, servers: list[Vllm]
) -> None:
    router = await started(start_router, servers)
    await ask(router, "secret-chat")
    vllm = by_name(servers, await ask(router, "secret-chat"))
    seen = [s for s in vllm.backend.posts if s.path == CHAT]
    labels = {s.header("x-session-id") for s in seen}
    assert len(labels) == 1
    assert len(labels.pop() or "") == 32
    assert not any(b"secret-chat" in s.head for s in seen)
    rows = await until_live(router, "secret-chat", 32)
    assert rows == [
        {"backend": vllm.backend.name, "engine": "0", "tokens": 32, "live_tokens": 32, "whole": True},
    ]
    assert await warm(router, "another") == []


async def test_a_request_without_a_session_has_no_label(start_router: StartRouter, servers: list[Vllm]) -> None:
    router = await started(start_router, servers)
    async with httpx.AsyncClient(base_url=router.data_url) as client:
        response = await client.post("/v1/embeddings", json={"model": "m", "input": "x"})
    vllm = by_name(servers, response)
    assert [s.header("x-session-id") for s in vllm.backend.posts] == [None]


async def test_an_id_in_the_body_is_what_vllm_goes_by(start_router: StartRouter, servers: list[Vllm]) -> None:
    router = await started(start_router, servers)
    await ask(router, None, session_id="chat-9")
    vllm = by_name(servers, await ask(router, None, session_id="chat-9"))
    assert list(vllm.blocks) == ["chat-9"]
    key = next(key for key, _ in router.pins.newest())
    residents = router._kept.residents
    assert residents is not None
    await until(lambda: (held := residents.held(key, vllm.backend.name, None)) is not None and held.live == 32)


async def test_a_session_of_which_nothing_is_left_leaves_a_busy_backend(
    start_router: StartRouter, servers: list[Vllm]
) -> None:
    router = await started(start_router, servers)
    vllm = by_name(servers, await ask(router, "a"))
    other = next(s for s in servers if s is not vllm)
    await until_live(router, "a", 16)
    label = next(iter(vllm.blocks))
    there = router.registry.backends[vllm.backend.name]
    other.free.set()
    async with asyncio.TaskGroup() as group:
        for number in range(14):
            group.create_task(ask(router, f"slow-{number}", "slow"))
        await until(lambda: there.in_flight >= 6)
        warm_there = await ask(router, "a")
        assert warm_there.headers["x-warmroute-decision"] == "pin_hit"
        await until_live(router, "a", 32)
        await vllm.drop(label)
        await until_live(router, "a", 0)
        cold = await ask(router, "a")
        vllm.free.set()
    assert cold.headers["x-warmroute-decision"] == "pin_cold"
    assert by_name(servers, cold) is other
    again = await ask(router, "a")
    assert (again.headers["x-warmroute-decision"], by_name(servers, again)) == ("pin_hit", other)
    assert router.counters.moves["pin_cold"] == 1


async def test_one_of_which_nothing_is_left_stays_where_it_is_not_busy(
    start_router: StartRouter, servers: list[Vllm]
) -> None:
    router = await started(start_router, servers)
    vllm = by_name(servers, await ask(router, "a"))
    await until_live(router, "a", 16)
    await vllm.drop(next(iter(vllm.blocks)))
    await until_live(router, "a", 0)
    again = await ask(router, "a")
    assert (again.headers["x-warmroute-decision"], by_name(servers, again)) == ("pin_hit", vllm)


async def test_the_metrics_tell_of_every_engine(start_router: StartRouter, servers: list[Vllm]) -> None:
    router = await started(start_router, servers)
    vllm = by_name(servers, await ask(router, "a"))
    await until_live(router, "a", 16)
    async with httpx.AsyncClient() as client:
        page = (await client.get(f"{router.admin_url}/metrics")).text
    name = vllm.backend.name
    assert f'warmroute_kv_events_live{{backend="{name}"}} 1.0' in page
    assert f'warmroute_kv_blocks{{backend="{name}",engine="0"}} 1.0' in page
    assert f'warmroute_kv_event_messages_total{{backend="{name}",engine="0"}} 1.0' in page
    assert f'warmroute_kv_event_gaps_total{{backend="{name}",engine="0",result="lost"}} 0.0' in page


async def test_without_the_setting_nothing_is_asked_and_ids_pass(
    start_router: StartRouter, servers: list[Vllm]
) -> None:
    router = await start_router([s.backend for s in servers])
    vllm = by_name(servers, await ask(router, "chat-1"))
    assert [s.header("x-session-id") for s in vllm.backend.posts] == ["chat-1"]
    assert not any(seen.path == "/kv_event_sources" for s in servers for seen in s.backend.requests)
    assert [b["kv_events"] for b in states(router)] == ["off", "off"]


async def test_a_backend_that_is_removed_is_not_heard_any_more(stack: AsyncExitStack, servers: list[Vllm]) -> None:
    urls = [s.backend.url for s in servers]
    sections = {**FAST, "kv_events": {"enabled": True}}
    router = await stack.enter_async_context(
        Router(
            Config.model_validate({**sections, "backends": urls}),
            read=lambda: Config.model_validate({**sections, "backends": urls[:1]}),
        )
    )
    await until(lambda: up(router) == 2)
    await until(lambda: [b["kv_events"] for b in states(router)] == ["live", "live"])
    await router.reload()
    residents = router._kept.residents
    assert residents is not None
    await until(lambda: list(residents.caches) == [servers[0].backend.name])


def test_routers_that_share_their_pins_call_a_session_by_one_name() -> None:
    """And by another one where they do not share them, or do not share the secret."""

    def label(secret: bytes | None, *, redis: str | None = None, shares: bool = True) -> str:
        sections = {"kv_events": {"enabled": True}, "store": {"redis": redis}}
        config = Config.model_validate({"backends": ["http://a"], **sections})
        kept = keeping.keep(config, secret, lambda: 0.0, shares=shares)
        assert kept.residents is not None
        return kept.residents.label(SESSION)

    redis = "redis://127.0.0.1:1"
    assert label(b"sixteen characters", redis=redis) == label(b"sixteen characters", redis=redis)
    assert label(b"sixteen characters", redis=redis) == label(b"sixteen characters", redis=redis, shares=False)
    assert label(b"sixteen characters", redis=redis) != label(b"other characters..", redis=redis)
    assert label(None) != label(None)
