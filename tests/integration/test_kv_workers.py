"""KV events with several processes: one of them hears, all of them know, and the account is as one process would have it."""

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from warmroute.config import Config
from warmroute.core.split import Outcome
from warmroute.workers.supervisor import Supervisor

from .conftest import FAST, until, up
from .kv_publisher import Publisher, stored
from .scripted import Scripted, Talk
from .test_kv_events import CHAT, Vllm, ask, by_name, states, until_live
from .test_workers import MANY, WORKERS, connections, guests, pids

BLOCKS = 10
"""Blocks that each turn adds to its prompt."""


class Counting(Vllm):
    """Each turn adds so many blocks; `finds` says how many of those before it finds, all that are left if it is None."""

    finds: int | None = None
    prompt = 0

    async def _script(self, talk: Talk) -> None:
        if talk.seen.path != CHAT:
            await self.sources(talk)
            return
        label = talk.seen.header("x-session-id") or ""
        known = self.blocks.setdefault(label, [])
        cached = len(known) if self.finds is None else self.finds
        new = [next(self.numbers) for _ in range(BLOCKS)]
        await self.publisher.publish(stored(label, *new, parent=known[-1] if known else None))
        known += new
        self.prompt += BLOCKS * 16
        usage: dict[str, Any] = {"prompt_tokens": self.prompt, "completion_tokens": 1}
        usage["prompt_tokens_details"] = {"cached_tokens": 16 * cached}
        talk.json({"choices": [{"message": {"role": "assistant", "content": "hello"}}], "usage": usage})


@pytest.fixture
async def servers(stack: AsyncExitStack) -> list[Vllm]:
    made = [Vllm(await stack.enter_async_context(Publisher())) for _ in range(2)]
    for vllm in made:
        await stack.enter_async_context(vllm.backend)
    return made


async def started(stack: AsyncExitStack, backends: list[Scripted], wanted: list[str] | None = None) -> Supervisor:
    """Several workers over these backends; `wanted` is what they are at a reload."""

    def config(urls: list[str]) -> Config:
        listen = {"port": 0, "admin_port": 0, "workers": WORKERS}
        return Config.model_validate({**FAST, "listen": listen, "kv_events": {"enabled": True}, "backends": urls})

    urls = [backend.url for backend in backends]
    router = await stack.enter_async_context(
        Supervisor(config(urls), read=lambda: config(urls if wanted is None else wanted))
    )
    await until(lambda: up(router) == len(backends) and all(b.models for b in router.registry.backends.values()))
    await until(lambda: {b["kv_events"] for b in states(router)} == {"live"})
    await router.agreed()
    await until(lambda: router._figures.shared.store.up)
    return router


HI = [{"role": "user", "content": "hi"}]


async def everywhere(
    router: Supervisor, session: str, said: Sequence[dict[str, str]] = HI
) -> list[list[dict[str, Any]]]:
    """What each worker knows of what is left of a session in which this was said."""
    assert router._crew is not None
    body = json.dumps({"model": "m", "messages": said}).encode()
    headers = [(b"x-session-id", session.encode())]
    found = await router._crew.ask("explain", "POST", CHAT.encode(), headers, body, within=10.0)
    return [one["warm"] for one in found]


async def live_everywhere(router: Supervisor, session: str, *tokens: int, said: Sequence[dict[str, str]] = HI) -> None:
    """Wait until all workers know that so many tokens are left of it, one number for each engine that had it."""
    found: list[list[int]] = []
    async with asyncio.timeout(15):
        while found != [list(tokens)] * WORKERS:
            found = [[row["live_tokens"] for row in rows] for rows in await everywhere(router, session, said)]


# Who knows


async def test_what_a_backend_stores_and_drops_all_workers_know(stack: AsyncExitStack, servers: list[Vllm]) -> None:
    router = await started(stack, [s.backend for s in servers])
    vllm = by_name(servers, await ask(router, "secret-chat"))
    clients = await connections(stack, router)
    for client in clients:
        assert (await client.chat("secret-chat")).status == 200
    assert all(guests(router)), "each worker has served some"
    (label,) = vllm.blocks
    residents = router._kept.residents
    assert residents is not None
    assert [label] == [residents.label(key) for key, _ in router.pins.newest()], "one name, whichever worker gives it"
    assert not any(b"secret-chat" in seen.head for seen in vllm.backend.posts)
    await live_everywhere(router, "secret-chat", 16 * (MANY + 1))
    await vllm.drop(label)
    await live_everywhere(router, "secret-chat", 0)
    name = vllm.backend.name
    async with httpx.AsyncClient(trust_env=False) as http:
        page = (await http.get(f"{router.admin_url}/metrics")).text
    assert f'warmroute_kv_events_live{{backend="{name}"}} 1.0' in page
    assert f'warmroute_kv_event_messages_total{{backend="{name}",engine="0"}} {MANY + 2}.0' in page


async def test_a_name_that_the_client_gives_in_the_body_is_known_to_all(
    stack: AsyncExitStack, servers: list[Vllm]
) -> None:
    router = await started(stack, [s.backend for s in servers])
    for _ in range(6):
        vllm = by_name(servers, await ask(router, None, session_id="chat-9"))
    assert list(vllm.blocks) == ["chat-9"]
    await until(lambda: sum(1 for _ in router.pins.newest()) == 1)
    key = next(key for key, _ in router.pins.newest())
    residents = router._kept.residents
    assert residents is not None
    await until(lambda: (held := residents.held(key, vllm.backend.name, None)) is not None and held.live == 96)


async def test_a_worker_that_is_replaced_knows_what_the_others_know(stack: AsyncExitStack, servers: list[Vllm]) -> None:
    """Though nothing is published any more, and nothing was missed by who hears."""
    router = await started(stack, [s.backend for s in servers])
    vllm = by_name(servers, await ask(router, "a"))
    await live_everywhere(router, "a", 16)
    os.kill(pids(router)[0], signal.SIGKILL)
    await until(lambda: router._workers().restarts == 1 and router._workers().serving == WORKERS)
    assert [[row["live_tokens"] for row in rows] for rows in await everywhere(router, "a")] == [[16]] * WORKERS
    await vllm.drop(next(iter(vllm.blocks)))
    await live_everywhere(router, "a", 0)


async def test_a_worker_that_missed_what_it_was_told_is_replaced(stack: AsyncExitStack, servers: list[Vllm]) -> None:
    router = await started(stack, [s.backend for s in servers])
    await ask(router, "a")
    await live_everywhere(router, "a", 16)
    assert router._crew is not None
    channel = router._crew.hands[1].channel
    assert channel is not None
    before = pids(router)
    channel.lost = 1
    await until(lambda: router._workers().restarts == 1 and router._workers().serving == WORKERS)
    after = pids(router)
    assert (after[0] == before[0], after[1] == before[1]) == (True, False)
    await live_everywhere(router, "a", 16)


async def test_a_publisher_that_goes_leaves_nothing_known_to_any_worker(stack: AsyncExitStack) -> None:
    async with AsyncExitStack() as first_life:
        publisher = await first_life.enter_async_context(Publisher())
        vllm = Vllm(publisher)
        await stack.enter_async_context(vllm.backend)
        router = await started(stack, [vllm.backend])
        await ask(router, "a")
        await live_everywhere(router, "a", 16)
    await live_everywhere(router, "a")


async def test_backends_that_come_and_go_at_a_reload_are_followed(stack: AsyncExitStack, servers: list[Vllm]) -> None:
    third = Vllm(await stack.enter_async_context(Publisher()))
    await stack.enter_async_context(third.backend)
    wanted = [servers[1].backend.url, third.backend.url]
    router = await started(stack, [s.backend for s in servers], wanted)
    homes = {number: by_name(servers, await ask(router, f"s{number}")) for number in range(8)}
    gone = [number for number, home in homes.items() if home is servers[0]]
    stay = [number for number, home in homes.items() if home is servers[1]]
    assert gone
    assert stay
    for number in homes:
        await live_everywhere(router, f"s{number}", 16)
    await router.reload()
    for number in gone:
        await live_everywhere(router, f"s{number}")
    for number in stay:
        await live_everywhere(router, f"s{number}", 16)
    await until(lambda: up(router) == 2 and {b["kv_events"] for b in states(router)} == {"live"})
    await router.agreed()
    answers = [await ask(router, f"new-{number}") for number in range(8)]
    assert any(by_name([servers[1], third], answer) is third for answer in answers)
    for number in range(8):
        await live_everywhere(router, f"new-{number}", 16)


# What is made of it


async def test_a_session_of_which_nothing_is_left_leaves_a_busy_backend(
    stack: AsyncExitStack, servers: list[Vllm]
) -> None:
    router = await started(stack, [s.backend for s in servers])
    for server in servers:
        server.free.set()
    vllm = by_name(servers, await ask(router, "a"))
    (label,) = vllm.blocks
    other = next(s for s in servers if s is not vllm)
    for number in range(20):
        if by_name(servers, await ask(router, f"slow-{number}", "slow")) is vllm:
            break
    vllm.free.clear()
    for client in await connections(stack, router):
        slow = {"model": "m", "messages": [{"role": "user", "content": "slow"}]}
        client.post(slow, {"x-session-id": f"slow-{number}"})

    def busy() -> bool:
        router._shown.refresh()
        there, free = (router.registry.backends[server.backend.name].in_flight for server in (vllm, other))
        return there >= 8 and free == 0

    await until(busy)
    warm_there = await ask(router, "a")
    assert warm_there.headers["x-warmroute-decision"] == "pin_hit"
    await until_live(router, "a", 32)
    await vllm.drop(label)
    await live_everywhere(router, "a", 0)
    cold = await ask(router, "a")
    vllm.free.set()
    assert cold.headers["x-warmroute-decision"] == "pin_cold"
    assert by_name(servers, cold) is other
    async with asyncio.timeout(15):
        while [by_name(servers, await ask(router, "a")) for _ in range(4)] != [other] * 4:
            pass
    await until(lambda: router.counters.moves["pin_cold"] == 1)


async def test_what_was_not_found_counts_as_evicted_only_where_the_events_say_so(stack: AsyncExitStack) -> None:
    server = Counting(await stack.enter_async_context(Publisher()))
    await stack.enter_async_context(server.backend)
    router = await started(stack, [server.backend])
    tokens = router._kept.ledger.tally.totals

    said: list[dict[str, str]] = []
    finished = 0

    async def turn() -> None:
        nonlocal finished
        finished += 1
        said.append({"role": "user", "content": f"question {finished} " + "x" * 600})
        async with httpx.AsyncClient(base_url=router.data_url) as client:
            body = {"model": "m", "messages": said}
            response = await client.post(CHAT, headers={"X-Session-ID": "s"}, json=body)
        assert response.status_code == 200
        said.append({"role": "assistant", "content": "hello"})
        await until(lambda: router.counters.total == finished)

    for _ in range(4):
        await turn()
    assert tokens()[Outcome.EVICTED] == 0
    await live_everywhere(router, "s", 4 * BLOCKS * 16, said=said)
    server.finds = 0
    await turn()
    assert tokens()[Outcome.EVICTED] == 0, "all of it was there"
    assert tokens()[Outcome.UNKNOWN] + tokens()[Outcome.PROMPT_CHANGED] == 4 * BLOCKS * 16
    await live_everywhere(router, "s", 5 * BLOCKS * 16, said=said)
    server.finds = None
    await server.drop(next(iter(server.blocks)))
    await live_everywhere(router, "s", 0, said=said)
    await turn()
    assert tokens()[Outcome.EVICTED] == 5 * BLOCKS * 16
    assert tokens()[Outcome.UNKNOWN] + tokens()[Outcome.PROMPT_CHANGED] == 4 * BLOCKS * 16
