"""The admin port asks who is there: a token, a cookie for browsers, no page of somebody else, and no start without."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from pydantic import SecretStr

from warmroute.app import Router
from warmroute.cli import main
from warmroute.config import ConfigError, load
from warmroute.web import access

from .browser import browsing, needed
from .conftest import StartRouter
from .scripted import RawClient, Scripted

TOKEN = "a-token-of-some-length"
BEARER = {"authorization": f"Bearer {TOKEN}"}
PATHS = (
    *(
        "/",
        "/metrics",
        "/api/state",
        "/api/history",
        "/api/sessions",
        "/api/sessions/x/turns",
        "/api/events",
        "/api/live",
    ),
    *("/openapi.json", "/login", "/nothing", "//api/state", "/api/../api/state", "/static/../api/state", "/static"),
)
CHANGES = (
    "/api/reload",
    "/api/explain",
    "/api/broadcast/sleep",
    "/api/backends/x/drain",
    "/api/backends/x/undrain",
    "/api/backends",
    "/api/backends/x/remove",
)


@pytest.fixture
async def guarded(backends: list[Scripted], start_router: StartRouter) -> Router:
    return await start_router(backends, listen={"port": 0, "admin_port": 0, "admin_token": TOKEN})


def http(router: Router, **others: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=router.admin_url, trust_env=False, **others)


async def sign_in(client: httpx.AsyncClient, token: str = TOKEN) -> httpx.Response:
    return await client.post("/login", data={"token": token})


async def raw(router: Router, head: str) -> tuple[int, str]:
    async with await RawClient.connect(router.admin_url) as client:
        client.send(f"{head}\r\n\r\n".encode())
        reply = await client.reply(head.partition(" ")[0])
        return reply.status, reply.body.decode()


# Who is let in


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong-token-of-some-length"},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": TOKEN},
        {"authorization": "Bearer"},
        {"authorization": f"Bearer {TOKEN}x"},
        {"x-api-key": TOKEN},
        {"cookie": f"{access.COOKIE}={TOKEN}"},
        {"cookie": f"{access.COOKIE}=9999999999.{'0' * 64}"},
        {"cookie": f"{access.COOKIE}="},
        {"cookie": f"{access.COOKIE}=."},
    ],
    ids=lambda headers: str(headers)[:40],
)
async def test_nobody_without_the_token(guarded: Router, backends: list[Scripted], headers: dict[str, str]) -> None:
    async with http(guarded, headers=headers) as client:
        for path in PATHS:
            answer = await client.get(path)
            assert (answer.status_code, answer.headers.get("www-authenticate")) == (401, "Bearer"), path
            assert "listen.admin_token" in answer.json()["detail"]
        for path in CHANGES:
            assert (await client.post(path)).status_code == 401
        for query in (f"?token={TOKEN}", f"?access_token={TOKEN}"):
            assert (await client.get(f"/api/state{query}")).status_code == 401
    assert not any(backend.posts for backend in backends)


async def test_health_is_told_to_everybody_whatever_the_host(guarded: Router, router: Router) -> None:
    for asked in (guarded, router):
        for path in ("/livez", "/readyz", "/health"):
            assert (await raw(asked, f"GET {path} HTTP/1.1\r\nhost: any.example"))[0] == 200


async def test_who_shows_the_token_may_do_all(guarded: Router, backends: list[Scripted]) -> None:
    async with http(guarded, headers=BEARER) as client:
        for path in ("/", "/metrics", "/api/state", "/openapi.json", "/static/app.js"):
            assert (await client.get(path)).status_code == 200
        assert (await client.post(f"/api/backends/{backends[0].name}/drain")).status_code == 200
        assert (await client.get("/api/state", headers={"authorization": f"bEARER  {TOKEN}"})).status_code == 200
    assert guarded.registry.backends[backends[0].name].draining


@pytest.mark.parametrize("is_open", [False, True])
async def test_prometheus_may_be_let_in_without(
    backends: list[Scripted], start_router: StartRouter, is_open: bool
) -> None:
    listen = {"port": 0, "admin_port": 0, "admin_token": TOKEN, "admin_open_metrics": is_open}
    router = await start_router(backends, listen=listen)
    async with http(router) as client:
        assert (await client.get("/metrics")).status_code == (200 if is_open else 401)
        assert (await client.get("/metrics", headers=BEARER)).status_code == 200
        for path in ("/metrics/", "/metrics/x", "//metrics", "/api/state"):
            assert (await client.get(path)).status_code == 401


async def test_the_servers_keys_are_not_mistaken_for_it(guarded: Router, backends: list[Scripted]) -> None:
    async with http(guarded, headers=BEARER) as client:
        sent = {"x-backend-authorization": "Bearer of-the-servers"}
        assert (await client.post("/api/broadcast/reset_prefix_cache", headers=sent)).status_code == 200
        assert (await client.post("/api/broadcast/reset_prefix_cache")).status_code == 200
    for backend in backends:
        assert [seen.header("authorization") for seen in backend.posts] == ["Bearer of-the-servers", None]


# A browser


async def test_signing_in(guarded: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    page = {"accept": "text/html,application/xhtml+xml"}
    async with http(guarded) as client:
        asked = await client.get("/", headers=page)
        assert (asked.status_code, 'type="password"' in asked.text) == (401, True)
        wrong = await sign_in(client, "another-token-of-that-length")
        assert (wrong.status_code, "That is not the token" in wrong.text, "set-cookie" in wrong.headers) == (
            401,
            True,
            False,
        )
        right = await sign_in(client)
        assert (right.status_code, right.headers["location"]) == (303, "./")
        cookie = right.headers["set-cookie"].lower()
        assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/", "max-age=43200"))
        assert TOKEN not in right.headers["set-cookie"]
        assert (await client.get("/", headers=page)).status_code == 200
        assert (await client.post("/api/reload")).status_code == 409  # let in: this router has nothing to read again
        name, value = next((c.name, c.value) for c in client.cookies.jar)
        monkeypatch.setattr(guarded._admin_app.access, "_wall", lambda: time.time() + access.SIGNED_IN_FOR + 1)
        assert (await client.get("/api/state")).status_code == 401
        monkeypatch.undo()
        until, _, signature = (value or "").partition(".")
    async with http(guarded, headers={"cookie": f"{name}={int(until) + 1}.{signature}"}) as client:
        assert (await client.get("/api/state")).status_code == 401


async def test_a_huge_form_is_refused(guarded: Router) -> None:
    async with http(guarded) as client:
        assert (await sign_in(client, "x" * 5000)).status_code == 413
        assert (await client.post("/login", content=b"&" * 4000)).status_code == 401


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
async def test_another_page_neither_signs_in_nor_uses_the_cookie(guarded: Router, origin: str) -> None:
    async with http(guarded) as client:
        assert (await client.post("/login", data={"token": TOKEN}, headers={"origin": origin})).status_code == 403
        assert (await sign_in(client)).status_code == 303
        assert (await client.post("/api/reload", headers={"origin": origin})).status_code == 403


async def test_another_token_ends_what_was_signed_in(guarded: Router) -> None:
    async with http(guarded) as client:
        await sign_in(client)
        assert (await client.get("/api/state")).status_code == 200
        listen = guarded.config.listen.model_copy(update={"admin_token": SecretStr("b" * 16)})
        guarded._read = lambda: guarded.config.model_copy(update={"listen": listen})
        await guarded.reload()
        assert (await client.get("/api/state")).status_code == 401
        assert (await client.get("/api/state", headers={"authorization": f"Bearer {'b' * 16}"})).status_code == 200


@pytest.mark.parametrize("path", ["/", "/login", "/static/app.js", "/api/state", "/nothing", "/metrics", "/livez"])
async def test_every_answer_is_hardened(guarded: Router, router: Router, path: str) -> None:
    for asked in (guarded, router):
        for headers in ({}, BEARER, {"accept": "text/html"}):
            async with http(asked, headers=headers) as client:
                answer = await client.get(path)
            policy = answer.headers["content-security-policy"]
            assert "unsafe" not in policy
            assert policy.startswith("default-src 'none'; script-src 'self';")
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["x-frame-options"] == "DENY"


def signed_in_by_hand(url: str, profile: Path) -> tuple[str, str, list[str]]:
    with browsing(profile) as page:
        page.open(f"{url}/")
        asked = str(page.js("document.body.innerText"))
        page.js(f"document.querySelector('#token').value = {json.dumps(TOKEN)}")
        page.click("button")
        page.until("document.querySelector('#readiness')?.textContent === 'ready'")
        return asked, str(page.js("document.cookie")), [e for e in page.errors if "401" not in e]


@pytest.mark.skipif(needed(), reason="Chromium is not installed")
async def test_a_browser_signs_in_and_the_dashboard_runs(guarded: Router, tmp_path: Path) -> None:
    asked, cookies, errors = await asyncio.to_thread(signed_in_by_hand, guarded.admin_url, tmp_path)
    assert "Token of this router's admin port" in asked
    assert cookies == ""
    assert errors == []


# Without a token: this machine alone


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:8081", 200), ("localhost", 200), ("[::1]:1", 200), ("evil.example", 403), ("evil.example:8081", 403),
     ("127.0.0.1.evil.example", 403), ("localhost.evil.example", 403), ("10.0.0.1", 403), ("", 403), ("127.0.0.1@evil", 403)],
)  # fmt: skip
async def test_a_name_of_somebody_else_reads_nothing(router: Router, host: str, status: int) -> None:
    for path in ("/api/state", "/metrics", "/", "/api/sessions", "/openapi.json"):
        found, body = await raw(router, f"GET {path} HTTP/1.1\r\nhost: {host}")
        assert found == status
        assert status == 200 or "none of this machine's own" in json.loads(body)["detail"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "router.example", "192.168.1.1"])
def test_others_are_not_let_near_it_without_a_token(host: str) -> None:
    flags = {"backends": ["gpu:8000"], "listen": {"admin_host": host}}
    with pytest.raises(
        ConfigError, match=f"^listen: others can reach the admin port at {host}, so it needs a token"
    ) as caught:
        load(flags=flags, environment={})
    assert "\n" not in str(caught.value)
    assert load(flags=flags, environment={"WARMROUTE_LISTEN__ADMIN_TOKEN": "1" * 16}).listen.admin_token is not None


def test_the_program_does_not_start_without_and_says_so_in_one_line() -> None:
    command = [sys.executable, "-m", "warmroute", "serve", "http://127.0.0.1:1", "--admin-host", "0.0.0.0"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith(
        "warmroute: listen: others can reach the admin port at 0.0.0.0, so it needs a token: set"
    )
    assert found.stderr.count("\n") == 1


def test_the_token_may_stand_elsewhere_and_is_shown_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    monkeypatch.setenv("OF_THE_ROUTER", TOKEN)
    for given in (f"file:{tmp_path}/token", "env:OF_THE_ROUTER", TOKEN):
        config = load(flags={"backends": ["gpu:8000"], "listen": {"admin_token": given}}, environment={})
        assert config.listen.admin_token is not None
        assert config.listen.admin_token.get_secret_value() == TOKEN
        assert TOKEN not in repr(config) + config.model_dump_json() + repr(access.Access(TOKEN, False, time.time))


# The commands


COMMANDS = (["status"], ["sessions"], ["undrain", "NAME"], ["reload"], ["broadcast", "reset_prefix_cache"])


async def run(arguments: list[str], environment: dict[str, str]) -> tuple[int, str]:
    found = await asyncio.to_thread(
        CliRunner().invoke, main, arguments, env={"WARMROUTE_ADMIN_TOKEN": None, **environment}
    )
    return found.exit_code, found.output


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
async def test_the_commands_show_the_token(guarded: Router, backends: list[Scripted], command: list[str]) -> None:
    words = [backends[0].name if word == "NAME" else word for word in command]
    asked = [*words, "--admin", guarded.admin_url]
    without = await run(asked, {})
    assert without[0] == 1
    assert "wants a token: give it in WARMROUTE_ADMIN_TOKEN" in without[1]
    wrong = await run([*asked, "--token", "wrong"], {})
    assert wrong[0] == 1
    assert "does not know this token" in wrong[1]
    for arguments, environment in (([*asked, "--token", TOKEN], {}), (asked, {"WARMROUTE_ADMIN_TOKEN": TOKEN})):
        code, output = await run(arguments, environment)
        assert TOKEN not in output
        assert code == (1 if command == ["reload"] else 0), output
    assert (await run([*asked, "--token", "two words"], {}))[0] == 2


async def test_check_shows_it_too(guarded: Router) -> None:
    asked = ["check", guarded.data_url, "--admin", guarded.admin_url]
    code, output = await run(asked, {})
    assert code == 1
    assert "wants the router's admin token: give it in WARMROUTE_ADMIN_TOKEN" in output
    _, output = await run(asked, {"WARMROUTE_ADMIN_TOKEN": TOKEN})
    assert "admin token" not in output


# What the dashboard says of the model API


@pytest.mark.parametrize(("keys", "said"), [([], True), (["a-key"], False)])
async def test_that_everybody_can_use_the_models_is_said(
    backends: list[Scripted], start_router: StartRouter, keys: list[str], said: bool
) -> None:
    router = await start_router(
        backends, listen={"host": "0.0.0.0", "port": 0, "admin_port": 0, "keys": keys}, wait=False
    )
    told = [advice for advice in router.state()["advice"] if "listen.keys" in advice["text"]]  # type: ignore[attr-defined]
    assert [advice["level"] for advice in told] == (["bad"] if said else [])
