"""Conversations without any id on real vLLM servers: as warm and as even as with ids.

Thresholds leave room for a busy machine, as in test_main_job.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serving import Serving, serving, until_ready
from tests.vllm.conftest import StartServers
from tests.vllm.conversations import Conversations, Outcome
from tests.vllm.servers import VllmServer
from tests.vllm.test_main_job import fleet, metric

TURNS = 5
"""As many as the caches hold: what is evicted by chance would blur the comparison."""
LEAST_HIT_RATE = 0.62
MOST_LOAD = 1.15
WITHOUT_CONTENT = "affinity:\n  key_sources: []\n"


@pytest.fixture(scope="module")
def servers(vllm_servers: StartServers) -> list[VllmServer]:
    return vllm_servers(3)


async def test_conversations_are_known_by_what_they_say(servers: list[VllmServer], tmp_path: Path) -> None:
    with serving(*(s.url for s in servers), "--log-format", "off") as router:
        await until_ready(router.admin, up=3)
        with_ids = await _run("with ids", Conversations(router.data, servers, turns=TURNS))
        apart = await _run("by content", Conversations(router.data, servers, turns=TURNS, ids=False))
        assert await _sessions(router) == 2 * 24
        assert await metric(router, "warmroute_session_moves_total") == 0
    assert apart.moves() == {}
    assert apart.told["pin_hit", "content"] == 24 * (TURNS - 1)
    assert apart.hit_rate >= LEAST_HIT_RATE
    assert apart.load_max_over_mean <= MOST_LOAD
    assert abs(with_ids.hit_rate - apart.hit_rate) <= 0.03
    off = tmp_path / "off.yaml"
    off.write_text(WITHOUT_CONTENT)
    with serving(*(s.url for s in servers), "--log-format", "off", "--config", str(off)) as router:
        await until_ready(router.admin, up=3)
        control = await _run("not recognised", Conversations(router.data, servers, turns=TURNS, ids=False))
    assert set(control.told) == {("no_session", None)}
    assert control.hit_rate < apart.hit_rate - 0.1  # the workload is one that recognising helps


@pytest.mark.parametrize("earlier", [0, 48], ids=["first", "after-others"])
async def test_conversations_with_one_opening_go_apart(servers: list[VllmServer], earlier: int) -> None:
    """They are interchangeable until they go apart: each may change its server then, once, and the load is even."""
    with serving(*(s.url for s in servers), "--log-format", "off") as router:
        await until_ready(router.admin, up=3)
        if earlier:  # others that are idle now, but still have their places
            await _run("earlier", Conversations(router.data, servers, sessions=earlier, turns=1, ids=False, seed=2))
        run = Conversations(router.data, servers, turns=TURNS, ids=False, same_opening=True)
        outcome = await _run("one opening", run)
        assert await _sessions(router) == earlier + 24
        assert await metric(router, "warmroute_session_moves_total") == 0
    assert outcome.moves(after=1) == {}
    assert {key for _, key in outcome.told} == {"content"}
    assert outcome.told["pin_hit", "content"] == 24 * (TURNS - 1)
    assert outcome.hit_rate >= LEAST_HIT_RATE
    assert outcome.load_max_over_mean <= MOST_LOAD


async def _run(name: str, conversations: Conversations) -> Outcome:
    outcome = await conversations.run()
    print(
        f"{name}: hit rate {outcome.hit_rate:.4f}, load max/mean {outcome.load_max_over_mean:.3f}, {dict(outcome.told)}"
    )
    assert outcome.failed_before_content + outcome.failed_after_content == []
    return outcome


async def _sessions(router: Serving) -> int:
    count = (await fleet(router))["sessions"]
    assert isinstance(count, int)
    return count
