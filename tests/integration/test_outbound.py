"""What the router asks for itself goes straight to where it should: by no proxy, after no redirect, with no cookie."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest

from warmroute import control
from warmroute.app import Router
from warmroute.check import turns
from warmroute.check.target import CheckError, new_client

from ..serving import COMMAND, serving, until_ready
from .conftest import StartRouter, until, up
from .scripted import RawClient, Scripted, Talk

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


class Trap:
    """A listener that nobody should come to."""

    def __init__(self) -> None:
        self.visits: list[bytes] = []

    async def __aenter__(self) -> "Trap":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visits.append(await reader.readuntil(b"\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()


@pytest.fixture
async def trap() -> AsyncIterator[Trap]:
    async with Trap() as trap:
        yield trap


async def command(*words: str) -> int:
    """Run a command of warmroute in this test's environment; returns its exit code."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    async with asyncio.timeout(60):
        return await process.wait()


async def broadcast(admin: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=admin, trust_env=False) as http:
        return await http.post("/api/broadcast/reset_prefix_cache")


# Proxies


async def test_proxies_of_the_environment_are_not_asked(trap: Trap, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.setenv(name, trap.url)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    probe = httpx.AsyncClient()
    async with probe:
        assert (await probe.get("http://127.0.0.1:1/")).text == "{}", "whoever reads the environment falls into it"
    seen = len(trap.visits)
    async with Scripted(metrics="vllm:num_requests_running 1\n") as backend:
        with serving(backend.url) as router:
            await until_ready_directly(router.admin)
            async with await RawClient.connect(router.data) as client:
                assert (await client.chat("s")).status == 200
            assert (await broadcast(router.admin)).status_code == 200
            assert await command("status", "--admin", router.admin) == 0
            await command("check", backend.url)
        asked = {seen.path for seen in backend.requests}
    assert {"/health", "/v1/models", "/metrics", "/v1/chat/completions", "/reset_prefix_cache"} <= asked
    assert trap.visits[seen:] == []


async def until_ready_directly(admin: str) -> None:
    """As `until_ready`, which would ask the proxies of the environment."""
    kept = {name: os.environ.pop(name) for name in PROXIES}
    try:
        await until_ready(admin)
    finally:
        os.environ.update(kept)


# Redirects


async def test_no_redirect_is_followed(trap: Trap, backends: list[Scripted], start_router: StartRouter) -> None:
    async def away(talk: Talk) -> None:
        talk.json({}, "307 Temporary Redirect", f"location: {trap.url}{talk.seen.path}\r\n")

    backend = backends[0]
    router = await start_router([backend])
    backend.script = backend.metrics_script = backend.models_script = away
    (state,) = router.registry.backends.values()
    await until(lambda: state.scrape.error == "/metrics answered 307")
    async with await RawClient.connect(router.data_url) as client:
        reply = await client.chat("s")
    assert (reply.status, reply.header("location")) == (307, f"{trap.url}/v1/chat/completions")
    told = await broadcast(router.admin_url)
    assert (told.status_code, told.json()["backends"][backend.name]["status"]) == (502, 307)
    await until(lambda: state.models_error != "", within=1.0)
    backend.health = away
    await until(lambda: state.health.up is False)
    assert state.reason == "/health answered 307"
    with pytest.raises(CheckError, match="answered 307"):
        await turns.run(backend.url, admin=None, model="m", say=lambda _: None)
    with pytest.raises(control.ControlError, match="not warmroute's admin listener"):
        await asyncio.to_thread(control.call, backend.url, "/api/state")
    assert trap.visits == []


# Cookies


async def test_no_cookie_is_kept(stack: AsyncExitStack, backends: list[Scripted], start_router: StartRouter) -> None:
    """Neither by what the router asks for itself, nor from one client's request to the next one's on one connection."""
    backend, cookie = backends[0], "set-cookie: sid=of-somebody; Path=/\r\n"

    async def baker(talk: Talk) -> None:
        found = {"data": [{"id": "m"}]} if talk.seen.path == "/v1/models" else {}
        talk.json(found, headers=cookie)

    backend.script = backend.health = backend.models_script = backend.metrics_script = baker
    router: Router = await start_router([backend], forward={"pass_headers": ["Cookie"]})
    (state,) = router.registry.backends.values()
    for _ in range(2):
        async with await RawClient.connect(router.data_url) as client:
            assert (await client.chat("s")).header("set-cookie") == "sid=of-somebody; Path=/"
        assert (await broadcast(router.admin_url)).status_code == 200
    for path in ("/health", "/metrics"):
        await until(lambda path=path: [s.path for s in backend.requests].count(path) > 2)  # type: ignore[misc]
    router._prober.nudge(state.name)
    async with new_client() as http:
        for _ in range(2):
            assert "set-cookie" in (await http.get(f"{backend.url}/health")).headers
    assert up(router) == 1
    assert len(backend.requests) > 10
    assert [s.head for s in backend.requests if s.header("cookie") is not None] == []
    assert json.dumps(router.state()).find("of-somebody") == -1
