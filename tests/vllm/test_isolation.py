"""With salts a prompt that another tenant has asked is computed anew, in every API; without them it is not, which shows."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.integration.conftest import until
from tests.vllm.conftest import StartServers
from tests.vllm.servers import MODEL
from warmroute.app import Router
from warmroute.config import Config

TOKENS = 4000
TEXT = " ".join(f"word{n}" for n in range(1300))
KEYS = [{"key": "key-a", "tenant": "a"}, {"key": "key-b", "tenant": "b"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXT}]},
    "/v1/completions": {"prompt": TEXT},
    "/v1/messages": {"messages": [{"role": "user", "content": TEXT}]},
    "/v1/responses": {"input": TEXT},
}
LONGEST = {"/v1/responses": "max_output_tokens"}


async def ask(http: httpx.AsyncClient, path: str, key: str, start: str) -> tuple[int, int]:
    """Prompt tokens, and those of them that were cached."""
    body: dict[str, Any] = {"model": MODEL, LONGEST.get(path, "max_tokens"): 4, **BODIES[path]}
    if path == "/v1/completions":
        body["prompt"] = start + TEXT
    elif path == "/v1/responses":
        body["input"] = start + TEXT
    else:
        body["messages"] = [{"role": "user", "content": start + TEXT}]
    answered = await http.post(path, json=body, headers={"x-api-key": key})
    assert answered.status_code == 200, answered.text
    usage = answered.json()["usage"]
    if path == "/v1/messages":
        cached = usage.get("cache_read_input_tokens") or 0
        return usage["input_tokens"] + cached + (usage.get("cache_creation_input_tokens") or 0), cached
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return usage.get("prompt_tokens") or usage["input_tokens"], details.get("cached_tokens") or 0


@pytest.mark.parametrize("mode", ["off", "tenant"])
async def test_whether_another_tenants_prompt_hits(vllm_servers: StartServers, mode: str) -> None:
    servers = await asyncio.to_thread(vllm_servers, 1)
    config = Config.model_validate(
        {
            "backends": [server.url for server in servers],
            "listen": {"port": 0, "admin_port": 0, "keys": KEYS},
            "isolation": {"cache_salt": mode},
            "log": {"format": "off"},
        }
    )
    async with Router(config) as router, httpx.AsyncClient(base_url=router.data_url, timeout=120) as http:
        await until(lambda: all(b.health.up and b.models for b in router.registry.backends.values()), within=60)
        for path in BODIES:
            prompt, first = await ask(http, path, "key-a", f"{path} {mode} ")
            _, again = await ask(http, path, "key-a", f"{path} {mode} ")
            _, other = await ask(http, path, "key-b", f"{path} {mode} ")
            assert prompt >= TOKENS
            assert first < prompt / 10, path  # what all requests of an API begin with
            assert again > 0.9 * prompt, path
            if mode == "off":
                assert other > 0.9 * prompt, path
            else:
                assert other == 0, path
    for server in servers:
        server.stop()
