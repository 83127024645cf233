"""Real agents, a real router and real vLLM servers: the second turn finds the first one's prompt in the cache.

Runs where the variable VLLM_DIR names a folder that `tests/vllm/install.sh` filled.
"""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest

from tests.clients.agents import AGENTS, Agent
from tests.clients.between import Between
from tests.clients.conftest import Install
from tests.clients.routed import Log, Turn, two_turns
from tests.serving import serving, until_ready
from tests.vllm.conftest import StartServers
from tests.vllm.servers import MODEL, VllmServer

pytestmark = pytest.mark.skipif("VLLM_DIR" not in os.environ, reason="VLLM_DIR names no folder with a real vLLM")

BLOCK = 32

FLAGS = (
    # Agents ask for up to 32,000 tokens of answer, and a server refuses what exceeds its context.
    "--max-model-len", "65536",
    "--num-gpu-blocks-override", "4000",
    # The model hardly ever ends by itself.
    "--override-generation-config", '{"max_new_tokens": 16}',
    "--enable-auto-tool-choice",
    "--tool-call-parser", "hermes",
)  # fmt: skip

each_agent = pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)


@pytest.fixture(scope="module")
def servers(vllm_servers: StartServers) -> list[VllmServer]:
    return vllm_servers(3, *FLAGS)


@pytest.fixture
async def vllm_log(servers: list[VllmServer]) -> AsyncIterator[Log]:
    """What a running router in front of three real servers tells of its requests."""
    with serving(*(server.url for server in servers), "--log-format", "off") as router:
        await until_ready(router.admin, within=60.0, up=3)
        yield Log(router)


@each_agent
async def test_the_second_turn_is_warm_by_the_clients_own_id(agent: Agent, install: Install, vllm_log: Log) -> None:
    [(first, second)] = await two_turns(install(agent, vllm_log.router.data, MODEL), log=vllm_log)
    _warm(first, second)
    assert {row.key_source for row in (*first.own, *second.own)} == {agent.key_source}


@each_agent
async def test_the_second_turn_is_warm_by_its_content_where_all_ids_are_taken_out(
    agent: Agent, install: Install, vllm_log: Log, stack: AsyncExitStack, http: httpx.AsyncClient
) -> None:
    between = Between(vllm_log.router.data, strip=True, http=http)
    listener = await stack.enter_async_context(between.listener())
    [(first, second)] = await two_turns(install(agent, listener.url, MODEL), log=vllm_log)
    _warm(first, second)
    assert {row.key_source for row in second.own} == {"content"}


def _warm(first: Turn, second: Turn) -> None:
    """One server had it all, and found the whole first prompt again, but for its last block that was not full.

    An answer that ends at its limit makes Claude Code ask for the rest, three times, and then end with an error: its turns
    have four requests here, which are one conversation all the same. No other prompt holds this one's home folder.
    """
    start, *rest = (*first.own, *second.own)
    assert {row.status for row in (*first.side, start, *rest)} == {200}
    assert second.own
    assert {row.backend for row in rest} == {start.backend}
    assert {row.decision for row in rest} == {"pin_hit"}
    assert start.prompt_tokens is not None
    assert min(row.cached_tokens or 0 for row in rest) >= start.prompt_tokens // BLOCK * BLOCK
