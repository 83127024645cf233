"""Open WebUI as it is, with and without its chat ids, through the router: chats stay together, the rest touches none."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from tests.openwebui import CHAT_ID, OpenWebUI, assert_kept_together, built_in_tools, task_prompt
from warmroute.app import Router
from warmroute.config import Config
from warmroute.sim.backend import SimBackend, SimOptions

from .conftest import until, up

ROOMY = SimOptions(
    model="tiny", num_blocks=12_000, max_model_len=16_000, prefill_tokens_per_s=1e6, tokens_per_s=1e4, max_num_seqs=64
)
PATIENT = {
    "listen": {"port": 0, "admin_port": 0},
    "health": {"unsettled_interval": 0.1, "timeout": 15},
    "upstream": {"connect_timeout": 15},
    "log": {"format": "off"},
}
"""All run in one event loop here, which a busy machine can hold up: no backend is to be taken for dead meanwhile."""
SHORT = {"max_tokens": 12}


@pytest.fixture
async def servers(stack: AsyncExitStack) -> list[SimBackend]:
    return [await stack.enter_async_context(SimBackend(ROOMY)) for _ in range(3)]


@pytest.fixture
async def router(stack: AsyncExitStack, servers: list[SimBackend]) -> AsyncIterator[Router]:
    config = Config.model_validate({**PATIENT, "backends": [server.url for server in servers]})
    async with Router(config) as router:
        await until(lambda: up(router) == 3 and all(b.models for b in router.registry.backends.values()))
        yield router


async def moves(router: Router) -> float:
    async with httpx.AsyncClient() as http:
        page = (await http.get(f"{router.admin_url}/metrics")).text
    return sum(float(value) for value in re.findall(r"^warmroute_session_moves_total(?:\{.*\})? (\S+)$", page, re.M))


@pytest.mark.parametrize("chat_ids", [False, True], ids=["no-identity", "chat-ids"])
async def test_chats_stay_together_and_what_is_beside_them_touches_none(router: Router, chat_ids: bool) -> None:
    chats = await OpenWebUI(router.data_url, model="tiny", settings=SHORT, chat_ids=chat_ids).run()
    assert [len(chat.turns) for chat in chats] == [4] * 24
    assert [Counter(seen.kind for seen in chat.beside) for chat in chats] == [
        {"title": 1, "follow_ups": 4, "tags": 1}
    ] * 24
    assert_kept_together(chats, 3, CHAT_ID.lower() if chat_ids else "content")
    fleet: Any = router.state()["fleet"]
    assert fleet["sessions"] == 24
    assert await moves(router) == 0


async def test_chats_that_begin_one_by_one_are_even_too(router: Router) -> None:
    """The tools are the same in all chats: the backends that know them already do not get more than their share."""
    chats = await OpenWebUI(router.data_url, model="tiny", settings=SHORT, turns=2, one_by_one=True).run()
    assert_kept_together(chats, 3, "content")


async def test_what_is_beside_the_chats_is_dealt_out_by_load(router: Router) -> None:
    chats = await OpenWebUI(router.data_url, model="tiny", settings=SHORT, chats=12, turns=2).run()
    beside = [seen for chat in chats for seen in chat.beside]
    by_backend = Counter(seen.backend for seen in beside)
    assert by_backend.total() == 12 * 4
    assert len(by_backend) == 3
    assert max(by_backend.values()) <= 1.5 * by_backend.total() / 3
    assert any(len({seen.backend for seen in chat.beside}) > 1 for chat in chats)  # a chat's own do not go to its home


async def test_a_turn_that_speaks_like_a_task_is_a_turn(router: Router) -> None:
    """Somebody may paste such a prompt into a chat: it is streamed, and the chat goes on from it."""
    pasted = {"role": "user", "content": task_prompt("title", [{"role": "user", "content": "about the moon"}])}
    replay = OpenWebUI(router.data_url, model="tiny", settings=SHORT, chats=0)
    async with httpx.AsyncClient(base_url=router.data_url) as http:
        body = {"model": "tiny", "messages": [pasted], "stream": True, "tools": replay.tools, **SHORT}
        first = await http.post("/v1/chat/completions", json=body)
        events = [json.loads(line[6:]) for line in first.text.splitlines() if line.startswith("data: {")]
        said = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
        body["messages"] = [pasted, {"role": "assistant", "content": said}, {"role": "user", "content": "and now?"}]
        second = await http.post("/v1/chat/completions", json=body)
    assert first.headers["x-warmroute-key"] == second.headers["x-warmroute-key"] == "content"
    assert second.headers["x-warmroute-decision"] == "pin_hit"
    assert second.headers["x-warmroute-backend"] == first.headers["x-warmroute-backend"]


def test_the_replay_is_of_the_size_of_the_original() -> None:
    assert 22_000 < len(json.dumps(built_in_tools())) < 30_000
    prompt = task_prompt("title", [{"role": "user", "content": "hello"}])
    assert prompt.startswith("### Task:")
    assert "USER: hello" in prompt
