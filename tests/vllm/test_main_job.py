"""The main job on real vLLM servers: conversations stay where their cache is warm, also when a server dies.

Thresholds leave room for a busy machine; the figures of a quiet one are in docs/measurements.md.
"""

import asyncio
import re

import httpx

from tests.serving import Serving, serving, until_ready
from tests.vllm.conftest import StartServers
from tests.vllm.conversations import Conversations
from tests.vllm.servers import VllmServer
from warmroute import check

SCRAPE = 6.0
"""Seconds after which a router has surely read its backends' counters again."""


async def fleet(router: Serving) -> dict[str, object]:
    async with httpx.AsyncClient() as http:
        state = (await http.get(f"{router.admin}/api/state")).json()
    found: dict[str, object] = state["fleet"]
    return found


async def metric(router: Serving, series: str) -> float:
    async with httpx.AsyncClient() as http:
        text = (await http.get(f"{router.admin}/metrics")).text
    return sum(float(value) for value in re.findall(rf"^{series}(?:\{{.*\}})? (\S+)$", text, re.M))


async def test_conversations_stay_warm_and_the_load_is_even(vllm_servers: StartServers) -> None:
    servers = await asyncio.to_thread(vllm_servers, 3)
    with serving(*(s.url for s in servers), "--log-format", "off") as router:
        await until_ready(router.admin, up=3)
        await _with_and_without_ids(router, servers)
        await _check_agrees(router, servers)
        await _a_killed_server_costs_its_conversations_one_move(router, servers)


async def _with_and_without_ids(router: Serving, servers: list[VllmServer]) -> None:
    told_before = await metric(router, "warmroute_backend_prefix_cache_queries_total")
    outcome = await Conversations(router.data, servers).run()
    print(f"with ids: hit rate {outcome.hit_rate:.4f}, load max/mean {outcome.load_max_over_mean:.3f}")
    assert outcome.failed_before_content + outcome.failed_after_content == []
    assert outcome.moves() == {}
    assert outcome.hit_rate >= 0.68
    assert outcome.load_max_over_mean <= 1.15
    await asyncio.sleep(SCRAPE)
    told = await metric(router, "warmroute_backend_prefix_cache_queries_total") - told_before
    assert told == sum(outcome.queries.values())  # the router publishes what the servers counted
    without = await Conversations(router.data, servers, ids=False, seed=2).run()
    print(f"without: hit rate {without.hit_rate:.4f}, load max/mean {without.load_max_over_mean:.3f}")
    assert abs(without.hit_rate - outcome.hit_rate) <= 0.03
    assert without.load_max_over_mean <= 1.15


async def _check_agrees(router: Serving, servers: list[VllmServer]) -> None:
    direct = await check.run(servers[0].url, admin=None, model=None, say=print)
    through = await check.run(router.data, admin=router.admin, model=None, say=print)
    for report in (direct, through):
        print(check.as_text(report))
        assert report.passed
        assert report.block_size == 32
        first, second = report.turns
        assert report.expected_hits == first.prompt_tokens // 32 * 32
        assert second.cached_tokens == second.hits  # nobody else uses the servers now
        assert second.queries == second.prompt_tokens
    assert through.router
    assert through.turns[0].backend == through.turns[1].backend


async def _a_killed_server_costs_its_conversations_one_move(router: Serving, servers: list[VllmServer]) -> None:
    run = Conversations(router.data, servers, turns=8, seed=3)
    task = asyncio.ensure_future(run.run())
    async with asyncio.timeout(120):
        while run.turns_done < 48:  # a quarter of all turns
            await asyncio.sleep(0.1)
    victim = servers[0]
    await asyncio.to_thread(victim.kill)
    outcome = await task
    dead = victim.url.removeprefix("http://")
    homes = {number: seen[0] for number, seen in outcome.served_by.items()}
    print(f"killed {dead}: moves {outcome.moves()}, cut off {outcome.failed_after_content}")
    assert outcome.failed_before_content == []
    assert all(homes[number] == dead for number in outcome.moves())
    assert set(outcome.moves().values()) == {1}
    assert sorted(outcome.moves()) == sorted(number for number, home in homes.items() if home == dead)
    assert (await fleet(router))["backends_up"] == 2
    await asyncio.to_thread(victim.start)
    await until_ready(router.admin, up=3)
    again = await Conversations(router.data, servers, sessions=6, turns=2, seed=4).run()
    assert again.failed_before_content + again.failed_after_content == []
    assert dead in {seen[0] for seen in again.served_by.values()}


async def test_each_engine_of_a_data_parallel_server_keeps_its_conversations(vllm_servers: StartServers) -> None:
    servers = await asyncio.to_thread(vllm_servers, 2, "--data-parallel-size", "2")
    with serving(*(s.url for s in servers), "--log-format", "off") as router:
        await until_ready(router.admin, up=2)
        outcome = await Conversations(router.data, servers).run()
        print(f"data parallel: hit rate {outcome.hit_rate:.4f}, load max/mean {outcome.load_max_over_mean:.3f}")
        assert outcome.failed_before_content + outcome.failed_after_content == []
        assert outcome.moves() == {}
        assert outcome.hit_rate >= 0.68
        assert outcome.load_max_over_mean <= 1.15
        async with httpx.AsyncClient() as http:
            backends = (await http.get(f"{router.admin}/api/state")).json()["backends"]
        assert [engine["sessions"] for backend in backends for engine in backend["engines"]] == [6, 6, 6, 6]
