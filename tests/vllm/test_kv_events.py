"""KV events of a real server: what the router knows of its cache is what the server finds there at the next turn."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.integration.conftest import until
from tests.vllm.conftest import StartServers
from tests.vllm.conversations import text
from tests.vllm.servers import MODEL, VllmServer, free_port
from warmroute.app import Router
from warmroute.config import Config
from warmroute.core.residency import Held
from warmroute.core.split import Outcome
from warmroute.fleet.residents import Residents
from warmroute.process import kind_for
from warmroute.workers.supervisor import Supervisor

BLOCK = 32
CACHE = 300
"""Blocks of the server's cache."""


def publishes() -> tuple[str, str]:
    """The flag that lets a server tell of its cache."""
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{free_port()}",
        "replay_endpoint": f"tcp://*:{free_port()}",
    }
    return "--kv-events-config", json.dumps(config)


@asynccontextmanager
async def routing(server: VllmServer, workers: int = 1) -> AsyncIterator[Router]:
    config = Config.model_validate(
        {
            "backends": [server.url],
            "listen": {"port": 0, "admin_port": 0, "workers": workers},
            "health": {"interval": 0.5, "unsettled_interval": 0.2},
            "kv_events": {"enabled": True},
            "log": {"format": "off"},
        }
    )
    async with kind_for(config)(config) as router:
        await until(lambda: sync(router) == "live" and bool(engines(router)), within=60)
        yield router


def sync(router: Router) -> object:
    backends = router.state()["backends"]
    assert isinstance(backends, list)
    return backends[0]["kv_events"]


def engines(router: Router) -> list[str]:
    (backend,) = router.registry.backends.values()
    return [e.engine for e in backend.engines]


def residents(router: Router) -> Residents:
    assert router._kept.residents is not None
    return router._kept.residents


@dataclass
class Chat:
    """One conversation. `cached` is what the server found of each turn's prompt."""

    router: Router
    name: str
    words: int = 250
    messages: list[dict[str, str]] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    computed: int = 0
    key: bytes = b""
    engine: str | None = None

    async def turn(self) -> httpx.Response:
        said = text(random.Random(f"{self.name} {len(self.messages)}"), self.words)
        self.messages.append({"role": "user", "content": said})
        # Short, since what this model says, which is no words, does not come back as the same tokens.
        body: dict[str, Any] = {"model": MODEL, "messages": self.messages, "max_tokens": 2, "temperature": 0}
        before = self.router.counters.total
        async with httpx.AsyncClient(base_url=self.router.data_url, timeout=120) as client:
            response = await client.post("/v1/chat/completions", json=body, headers={"X-Session-ID": self.name})
        assert response.status_code == 200, response.text
        answer = response.json()
        usage = answer["usage"]
        self.cached.append(usage["prompt_tokens_details"]["cached_tokens"])
        self.computed = usage["prompt_tokens"] + usage["completion_tokens"] - 1
        self.messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"] or "-"})
        await until(lambda: self.router.counters.total > before)
        self.key, pin = next(self.router.pins.newest())
        self.engine = pin.engine
        await until(lambda: (held := self.held()) is not None and held.tokens == self.blocks)
        await self.until_all_know()
        return response

    async def until_all_know(self) -> None:
        """Wait until each worker, where there are some, knows what the supervisor knows."""
        if not isinstance(self.router, Supervisor) or self.router._crew is None:
            return
        body = json.dumps({"model": MODEL, "messages": [*self.messages, {"role": "user", "content": "-"}]}).encode()
        request = "POST", b"/v1/chat/completions", [(b"x-session-id", self.name.encode())], body
        async with asyncio.timeout(30):
            while True:
                found = await self.router._crew.ask("explain", *request, within=10)
                if [[row["live_tokens"] for row in one["warm"]] for one in found] == [[self.live]] * 2:
                    return

    @property
    def blocks(self) -> int:
        """Tokens of the whole blocks that the last turn has filled."""
        return self.computed // BLOCK * BLOCK

    def held(self) -> Held | None:
        """What the router knows of it."""
        (backend,) = self.router.registry.backends
        return residents(self.router).held(self.key, backend, self.engine)

    @property
    def live(self) -> int:
        held = self.held()
        assert held is not None
        return held.live


@pytest.mark.parametrize("workers", [1, 2])
async def test_the_router_knows_what_the_server_finds(vllm_servers: StartServers, workers: int) -> None:
    """A conversation grows, others push it out, and at every return the server finds just what was known to be left."""
    (server,) = await asyncio.to_thread(vllm_servers, 1, "--num-gpu-blocks-override", str(CACHE), *publishes())
    async with routing(server, workers) as router:
        chat = Chat(router, "grows")
        expected = []
        for _ in range(3):
            await chat.turn()
            expected.append(chat.live)
        assert chat.cached == [0, *expected[:-1]]
        assert expected[-1] == chat.blocks

        partly = 0
        for number in range(60):
            lost = chat.blocks - chat.live
            if lost and (lost == chat.blocks or partly < 2):
                await chat.until_all_know()
                before = chat.live
                partly += 0 < before < chat.blocks
                missed = router._kept.ledger.tally.totals(router_name(router))[Outcome.EVICTED]
                await chat.turn()
                assert chat.cached[-1] == before
                now = router._kept.ledger.tally.totals(router_name(router))[Outcome.EVICTED]
                assert now - missed == lost
                if before == 0:
                    break
            await Chat(router, f"other {number}", words=60 + 37 * (number % 5)).turn()
        assert partly == 2
        assert chat.cached[-1] == 0
        held = chat.held()
        assert held is not None
        assert held.whole

        await asyncio.to_thread(server.kill)
        await until(lambda: sync(router) == "off")
        assert chat.held() is None
        await asyncio.to_thread(server.start)
        await until(lambda: sync(router) == "live" and not router.registry.unavailable(), within=60)
        await chat.turn()
        assert (chat.cached[-1], chat.live) == (0, chat.blocks)
    await asyncio.to_thread(server.stop)


async def test_every_engine_tells_of_its_own_cache(vllm_servers: StartServers) -> None:
    (server,) = await asyncio.to_thread(vllm_servers, 1, "--data-parallel-size", "2", *publishes())
    async with routing(server) as router:
        await until(lambda: engines(router) == ["0", "1"])
        chats = [Chat(router, f"chat {number}") for number in range(4)]
        for _ in range(2):
            for chat in chats:
                known = chat.live if chat.key else 0
                await chat.turn()
                assert chat.cached[-1] == known
        assert {chat.engine for chat in chats} == {"0", "1"}
        for chat in chats:
            assert [warm.engine for warm in residents(router).warm(chat.key)] == [chat.engine]


def router_name(router: Router) -> str:
    (name,) = router.registry.backends
    return name
