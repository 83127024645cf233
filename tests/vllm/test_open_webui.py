"""Open WebUI's chats on real vLLM servers: each stays warm on one of them, whatever else the frontend asks meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.openwebui import CHAT_ID, OpenWebUI, assert_kept_together, hit_rate
from tests.serving import Serving, serving, until_ready
from tests.vllm.conftest import StartServers
from tests.vllm.conversations import Outcome, counters
from tests.vllm.servers import MODEL, VllmServer
from tests.vllm.test_main_job import fleet, metric

SETTINGS = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
"""Without them vLLM refuses every request that offers tools."""
LIKE_ALL: dict[str, Any] = {"model": MODEL, "settings": SETTINGS, "sentences": 6, "usage": True}
UNRECOGNISED = "affinity:\n  key_sources: []\n"


async def test_chats_stay_warm_without_any_identity_and_with_chat_ids(
    vllm_servers: StartServers, tmp_path: Path
) -> None:
    servers = await asyncio.to_thread(vllm_servers, 3, *TOOLS)
    by_content = await _kept_together(servers, seed=1, chat_ids=False)
    by_id = await _kept_together(servers, seed=2, chat_ids=True)
    off = tmp_path / "off.yaml"
    off.write_text(UNRECOGNISED)
    with serving(*(s.url for s in servers), "--log-format", "off", "--config", str(off)) as router:
        control = await _replay("unrecognised", router, servers, OpenWebUI(router.data, seed=3, **LIKE_ALL))
    for rates in (by_content, by_id):
        assert rates.turns >= 0.5
        assert rates.counted > control.counted
        assert rates.turns > control.turns + 0.15  # the workload is one that recognising helps
    assert abs(by_content.turns - by_id.turns) <= 0.05


@dataclass(frozen=True, slots=True)
class Rates:
    """Hit rates: of all requests by the servers' own counters, and of the chats' turns by what their answers tell.

    What quotes a chat beside it cannot be in any cache, so that the first one is low whatever a router does.
    """

    counted: float
    turns: float


async def _kept_together(servers: list[VllmServer], *, seed: int, chat_ids: bool) -> Rates:
    """The hit rates of a replay through a router of its own, of which all that is promised is asserted."""
    name = CHAT_ID.lower() if chat_ids else "content"
    with serving(*(s.url for s in servers), "--log-format", "off") as router:
        replay = OpenWebUI(router.data, seed=seed, chat_ids=chat_ids, **LIKE_ALL)
        rates = await _replay(name, router, servers, replay)
        assert_kept_together(replay.chats, 3, name)
        assert (await fleet(router))["sessions"] == 24
        assert await metric(router, "warmroute_session_moves_total") == 0
    return rates


async def _replay(name: str, router: Serving, servers: list[VllmServer], replay: OpenWebUI) -> Rates:
    await until_ready(router.admin, up=3)
    outcome = Outcome()
    async with httpx.AsyncClient(trust_env=False) as http:
        before = [await counters(http, server.url) for server in servers]
        chats = await replay.run()
        for server, (asked, had) in zip(servers, before, strict=True):
            queries, hits = await counters(http, server.url)
            outcome.queries[server.url], outcome.hits[server.url] = queries - asked, hits - had
    rates = Rates(outcome.hit_rate, hit_rate(seen for chat in chats for seen in chat.turns))
    print(f"{name}: {rates}, load max/mean {outcome.load_max_over_mean:.3f}")
    return rates
