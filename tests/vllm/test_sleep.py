"""Sleep mode of a real server: it answers its checks and takes requests, and serves none until it is awake."""

import asyncio

import httpx
import pytest

from tests.integration.conftest import until
from tests.vllm.conftest import StartServers
from tests.vllm.servers import MODEL
from warmroute.app import Router
from warmroute.config import Config


async def turn(http: httpx.AsyncClient) -> tuple[str, str]:
    """One turn of one conversation: where it was served, and why."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    answered = await http.post("/v1/chat/completions", json=body, headers={"x-session-id": "s"})
    assert answered.status_code == 200, answered.text
    return answered.headers["x-warmroute-backend"], answered.headers["x-warmroute-decision"]


async def test_its_conversations_move_and_it_is_back_when_it_is_awake(
    vllm_servers: StartServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    servers = await asyncio.to_thread(vllm_servers, 2)
    config = Config.model_validate(
        {"backends": [s.url for s in servers], "listen": {"port": 0, "admin_port": 0}, "log": {"format": "off"}}
    )
    async with Router(config) as router, httpx.AsyncClient(base_url=router.data_url, timeout=60) as http:
        known = router.registry.backends
        await until(lambda: all(b.health.up and b.scrape.at is not None for b in known.values()), within=60)
        home = (await turn(http))[0]
        for level in (0, 1, 2):
            async with httpx.AsyncClient(base_url=known[home].spec.url, timeout=60) as server:
                assert (await server.post(f"/sleep?level={level}")).is_success
                await until(lambda home=home: known[home].state == "sleeping", within=15)  # type: ignore[misc]
                assert (await server.get("/health")).is_success
                other, why = await turn(http)
                assert (other != home, why) == (True, "pin_lost")
                assert (await server.post("/wake_up")).is_success
                await until(lambda home=home: known[home].state == "up", within=15)  # type: ignore[misc]
            assert await turn(http) == (other, "pin_hit")
            home = other
        assert {b.failures for b in known.values()} == {0}
