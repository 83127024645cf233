"""`warmroute check` on real vLLM servers: eviction, with and without a tier behind; a shared store; engines; a key."""

import asyncio
import json
import random
from typing import Any

import httpx
import pytest

from tests.vllm.conftest import StartServers
from tests.vllm.servers import VllmServer, stop_servers
from warmroute.check import CheckError, eviction, ranks, store
from warmroute.check import run as two_turns
from warmroute.check.probe import Bounds
from warmroute.core import vllm_metrics
from warmroute.core.exposition import parse

CACHE = 800 * 32
TOKENS = 2000
"""Length of prompts: vLLM's example of a store cannot give back what one step of the engine does not compute."""


@pytest.fixture(scope="module")
def behind(vllm_servers: StartServers, tmp_path_factory: pytest.TempPathFactory) -> list[VllmServer]:
    """Two servers with one store behind their caches."""
    place = {"shared_storage_path": str(tmp_path_factory.mktemp("kv"))}
    config = {"kv_connector": "ExampleConnector", "kv_role": "kv_both", "kv_connector_extra_config": place}
    return vllm_servers(2, "--kv-transfer-config", json.dumps(config))


def asking(key: str | None = None) -> dict[str, Any]:
    bounds = Bounds(100_000, 120.0)
    return {
        "model": None,
        "key": key,
        "prompt_tokens": TOKENS,
        "bounds": bounds,
        "say": print,
        "dice": random.Random(),
    }


async def reloaded(server: VllmServer) -> float:
    async with httpx.AsyncClient(trust_env=False) as http:
        values = parse((await http.get(f"{server.url}/metrics")).text, "it").values
    return vllm_metrics.reloaded(values) or 0.0


async def test_what_was_evicted_comes_back_by_reload(behind: list[VllmServer]) -> None:
    before = await reloaded(behind[0])
    report = await eviction.run(behind[0].url, **asking())
    print(eviction.as_text(report))
    assert (report.back, report.passed, report.cache_tokens) == (eviction.Back.RELOAD, True, CACHE)
    assert report.reloaded_tokens == await reloaded(behind[0]) - before > 0
    assert report.warm_up_to is not None
    assert report.gone_from is not None
    assert 0.5 * CACHE < report.warm_up_to < report.gone_from <= 1.4 * CACHE
    assert report.speeds.reload is not None
    assert (
        report.speeds.prefill is not None
    )  # which is faster depends on the disk: prompts this short are soon computed


async def test_what_one_server_computed_comes_to_the_other(behind: list[VllmServer]) -> None:
    before = await reloaded(behind[1])
    report = await store.run(behind[0].url, behind[1].url, **asking())
    print(store.as_text(report))
    assert report.passed
    assert report.reloaded_tokens == (report.expected_tokens,) * 3
    assert await reloaded(behind[1]) - before == sum(report.reloaded_tokens)
    assert report.speeds.reload is not None
    assert report.speeds.prefill is not None
    assert report.speeds.reload < report.speeds.prefill


async def test_engines_keys_and_eviction_without_a_tier(vllm_servers: StartServers, behind: list[VllmServer]) -> None:
    await asyncio.to_thread(stop_servers, behind)
    (server,) = await asyncio.to_thread(vllm_servers, 1, "--data-parallel-size", "2", "--api-key", "secret")
    with pytest.raises(CheckError, match="wants a key: set VLLM_API_KEY"):
        await ranks.run(server.url, **asking())
    with pytest.raises(CheckError, match="does not take this key"):
        await two_turns(server.url, admin=None, model=None, say=print, key="wrong")
    found = await ranks.run(server.url, **asking("secret"))
    print(ranks.as_text(found))
    assert (found.passed, found.engines) == (True, ("0", "1"))
    expected = (found.prompt_tokens - 1) // 32 * 32
    for rank in found.ranks:
        assert (rank.first.cached, rank.again.cached, rank.elsewhere.cached) == (0, expected, 0)
        assert (rank.first.engines, rank.elsewhere.engines) == ((rank.rank,), (rank.other,))
    report = await eviction.run(server.url, **asking("secret"))
    print(eviction.as_text(report))
    assert (report.back, report.passed, report.cache_tokens) == (eviction.Back.PREFILL, True, CACHE)
    assert report.gone_from is not None
    assert 0.75 * CACHE < report.gone_from <= 1.4 * CACHE
    assert any("--kv-offloading-size" in finding for finding in report.findings)
