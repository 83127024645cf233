"""Backends over TLS: whom the router believes, what it shows them, and that all it asks them goes by the same rules."""

import asyncio
import logging
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from click.testing import CliRunner
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_websockets
from websockets.http11 import Request, Response

from warmroute.app import Router
from warmroute.cli import main
from warmroute.config import Config, ConfigError, load, read_certificates
from warmroute.core.model import SYSTEM
from warmroute.listeners import StartError
from warmroute.settings import backend as found_backend

from ..authority import Authority
from .conftest import FAST, until, up
from .scripted import RawClient, Scripted, Talk


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def routing(backend: Scripted, **upstream: object) -> AsyncIterator[Router]:
    """A router before one backend, which may or may not come up."""
    sections = {**FAST, "upstream": {**FAST["upstream"], **upstream}}
    config = Config.model_validate({**sections, "backends": [backend.url]})
    async with Router(config) as router:
        yield router


async def reason(router: Router) -> str:
    """Why the one backend is down."""
    (state,) = router.registry.backends.values()
    await until(lambda: state.health.up is False)
    return state.reason or ""


async def chat(router: Router) -> int:
    async with await RawClient.connect(router.data_url) as client:
        return (await client.chat("s")).status


async def test_everything_that_is_asked_goes_by_the_authority_of_the_configuration(
    stack: AsyncExitStack, authority: Authority
) -> None:
    backend = await stack.enter_async_context(Scripted(tls=authority.server(), metrics="vllm:num_requests_running 1\n"))
    router = await stack.enter_async_context(routing(backend, ca=authority.ca))
    (state,) = router.registry.backends.values()
    await until(lambda: bool(up(router) and state.models and state.scrape.at))
    assert await chat(router) == 200
    async with httpx.AsyncClient(base_url=router.admin_url) as http:
        told = await http.post("/api/broadcast/reset_prefix_cache")
    assert told.status_code == 200
    assert {seen.path for seen in backend.requests} == {
        "/health", "/v1/models", "/metrics", "/v1/chat/completions", "/reset_prefix_cache",
    }  # fmt: skip


async def test_whom_nobody_vouches_for_is_not_believed_and_gets_no_request(
    stack: AsyncExitStack, authority: Authority
) -> None:
    backend = await stack.enter_async_context(Scripted(tls=authority.server()))
    router = await stack.enter_async_context(routing(backend))
    why = await reason(router)
    assert why.startswith("TLS failed: ")
    assert "certificate" in why
    assert why.endswith("; upstream.ca says whose certificates are believed")
    assert await chat(router) == 503
    assert backend.requests == []


async def test_another_authority_is_not_believed_by_the_data_path_either(
    stack: AsyncExitStack, authority: Authority, tmp_path: Path
) -> None:
    """The backend changes its certificate between a check and a request."""
    backend = await stack.enter_async_context(Scripted(tls=authority.server()))
    slow = {**FAST, "health": {"interval": 3600, "unsettled_interval": 3600}}
    config = {**slow, "upstream": {"ca": authority.ca}, "backends": [backend.url]}
    router = await stack.enter_async_context(Router(Config.model_validate(config)))
    await until(lambda: up(router) == 1)
    asked = len(backend.requests)
    await backend.stop()
    backend.tls = Authority(tmp_path, "stranger").server()
    await backend.start()
    async with await RawClient.connect(router.data_url) as client:
        reply = await client.chat("s")
    assert reply.status == 503
    assert "TLS failed: " in reply.body.decode()
    assert len(backend.requests) == asked


async def test_the_name_in_the_certificate_must_be_the_backends(stack: AsyncExitStack, authority: Authority) -> None:
    backend = await stack.enter_async_context(Scripted(tls=authority.server("gpu-a.internal")))
    router = await stack.enter_async_context(routing(backend, ca=authority.ca))
    why = await reason(router)
    assert "IP address mismatch" in why
    assert why.endswith("; backends.server_name says whom its certificate must name")


async def test_a_backend_that_is_added_by_hand_is_known_by_what_is_said_of_all(
    stack: AsyncExitStack, authority: Authority
) -> None:
    first = await stack.enter_async_context(Scripted())
    later = await stack.enter_async_context(Scripted(tls=authority.server()))
    router = await stack.enter_async_context(routing(first, ca=authority.ca))
    async with httpx.AsyncClient(base_url=router.admin_url) as http:
        answer = await http.post("/api/backends", json={"url": later.url})
    assert answer.status_code == 200, answer.text
    await until(lambda: up(router) == 2)
    for number in range(8):
        async with await RawClient.connect(router.data_url) as client:
            assert (await client.chat(f"s{number}")).status == 200
    assert later.posts


def test_one_that_is_found_has_no_authority_of_its_own() -> None:
    with pytest.raises(ValueError, match=r"^ca: only backends of the configuration can have one"):
        found_backend({"url": "https://a", "ca": "/etc/a.pem"})


async def test_a_server_name_of_its_own(stack: AsyncExitStack, authority: Authority, tmp_path: Path) -> None:
    """Also an authority of its own: that of all others does not count for it."""
    backend = await stack.enter_async_context(Scripted(tls=authority.server("gpu-a.internal")))
    one = {"url": backend.url, "server_name": "gpu-a.internal", "ca": authority.ca}
    config = {**FAST, "upstream": {"ca": Authority(tmp_path, "other").ca}, "backends": [one]}
    router = await stack.enter_async_context(Router(Config.model_validate(config)))
    await until(lambda: up(router) == 1)
    assert await chat(router) == 200
    assert backend.posts[0].header("host") == backend.name


async def test_a_backend_that_wants_a_certificate_of_ours(stack: AsyncExitStack, authority: Authority) -> None:
    backend = await stack.enter_async_context(Scripted(tls=authority.server(wants_client=True)))
    router = await stack.enter_async_context(routing(backend, ca=authority.ca))
    assert await reason(router)
    assert backend.requests == []
    files = authority.issue("router", file="client")
    router = await stack.enter_async_context(routing(backend, ca=authority.ca, cert=files.cert, cert_key=files.key))
    await until(lambda: up(router) == 1)
    assert await chat(router) == 200


async def test_belief_without_a_look_is_told_everywhere(
    stack: AsyncExitStack, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    backend = await stack.enter_async_context(Scripted(tls=authority.server("elsewhere")))
    with caplog.at_level(logging.WARNING, "warmroute"):
        router = await stack.enter_async_context(routing(backend, verify=False))
    await until(lambda: up(router) == 1)
    assert await chat(router) == 200
    assert f"upstream.verify is off: whoever answers in the place of {backend.name} is believed" in caplog.text
    advice = router.state()["advice"]
    assert isinstance(advice, list)
    assert any("remove upstream.verify" in str(entry) for entry in advice)


async def test_verify_off_says_nothing_where_there_is_no_tls(
    stack: AsyncExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    backend = await stack.enter_async_context(Scripted())
    router = await stack.enter_async_context(routing(backend, verify=False))
    assert "verify" not in caplog.text
    assert "verify" not in str(router.state()["advice"])


async def test_a_websocket_over_tls_at_the_backend(stack: AsyncExitStack, authority: Authority) -> None:
    async def echo(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)

    def pages(connection: ServerConnection, request: Request) -> Response | None:
        if request.path.startswith("/v1/realtime"):
            return None
        return connection.respond(200, '{"data":[{"id":"m"}]}' if "models" in request.path else "")

    server = await stack.enter_async_context(
        serve_websockets(echo, "127.0.0.1", 0, process_request=pages, ssl=authority.server())
    )
    port = next(iter(server.sockets)).getsockname()[1]
    config = {**FAST, "upstream": {"ca": authority.ca}, "backends": [f"https://127.0.0.1:{port}"]}
    router = await stack.enter_async_context(Router(Config.model_validate(config)))
    await until(lambda: up(router) == 1)
    async with connect(f"{router.data_url.replace('http', 'ws')}/v1/realtime", proxy=None) as socket:
        for text in ("one", "two" * 50_000):
            await socket.send(text)
            assert await socket.recv() == text


# Other files at a reload


async def reloaded(router: Router) -> None:
    async with httpx.AsyncClient(base_url=router.admin_url, timeout=30) as http:
        answer = await http.post("/api/reload")
        assert answer.status_code == 200, answer.text


async def test_files_are_read_again_at_a_reload(stack: AsyncExitStack, authority: Authority, tmp_path: Path) -> None:
    """First the authority's file holds another one. What streams meanwhile goes on; what is idle is not used again."""
    second = Authority(tmp_path, "second")
    backend = await stack.enter_async_context(Scripted(tls=authority.server()))
    file, ca, go_on = tmp_path / "router.yaml", tmp_path / "trusted.pem", asyncio.Event()
    ca.write_text(authority.text)
    file.write_text(yaml.safe_dump({**FAST, "upstream": {"ca": str(ca)}, "backends": [backend.url]}))
    read = partial(load, file, environment={})
    router = await stack.enter_async_context(Router(read(), read=read))
    await until(lambda: up(router) == 1)

    async def wait(talk: Talk) -> None:
        talk.stream_head()
        talk.event({"choices": [{"index": 0, "delta": {"content": "a"}}]})
        await go_on.wait()
        talk.event(b"[DONE]")
        talk.end()

    assert await chat(router) == 200
    before = router._pools[backend.name]
    await reloaded(router)
    assert router._pools[backend.name] is before, "the files hold what they held"
    backend.script = wait
    client = await stack.enter_async_context(await RawClient.connect(router.data_url))
    client.post({"model": "m", "messages": [], "stream": True})
    await client.head()
    assert b'"a"' in await client.chunk()
    ca.write_text(second.text)
    await reloaded(router)
    assert before.retired
    assert "certificate" in await reason(router)
    go_on.set()
    assert b"[DONE]" in await client.chunk()
    ca.write_text(authority.text + second.text)
    await reloaded(router)
    await until(lambda: up(router) == 1)


async def test_a_reload_with_a_file_that_cannot_be_used_changes_nothing(
    stack: AsyncExitStack, authority: Authority, tmp_path: Path
) -> None:
    backend = await stack.enter_async_context(Scripted(tls=authority.server()))
    file = tmp_path / "router.yaml"
    file.write_text(yaml.safe_dump({**FAST, "upstream": {"ca": authority.ca}, "backends": [backend.url]}))
    read = partial(load, file, environment={})
    router = await stack.enter_async_context(Router(read(), read=read))
    await until(lambda: up(router) == 1)
    authority.forget()
    async with httpx.AsyncClient(base_url=router.admin_url, timeout=30) as http:
        answer = await http.post("/api/reload")
    assert (answer.status_code, answer.json()) == (
        400,
        {"detail": f"upstream.ca {authority.ca}: No such file or directory"},
    )
    assert await chat(router) == 200


# What cannot be used


def broken(authority: Authority, folder: Path) -> dict[str, tuple[dict[str, Any], str]]:
    """Keys of `upstream` and what is said of them."""
    files, others = authority.issue("router", file="a"), authority.issue("router", file="b")
    text, empty, nowhere = folder / "text.pem", folder / "empty.pem", folder / "nowhere.pem"
    text.write_text("hello\n")
    empty.write_text("")
    locked = folder / "locked.key"
    subprocess.run(
        ["openssl", "pkey", "-in", files.key, "-aes256", "-passout", "pass:x", "-out", locked],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    good = {"ca": authority.ca, "cert": files.cert}
    return {
        "no ca": ({"ca": str(nowhere)}, rf"upstream\.ca {nowhere}: No such file"),
        "ca is a folder": ({"ca": str(folder)}, rf"upstream\.ca {folder}: Is a directory"),
        "ca is text": ({"ca": str(text)}, rf"{text}: there is no certificate in it"),
        "ca is empty": ({"ca": str(empty)}, rf"{empty}: there is no certificate in it"),
        "no cert": ({"cert": str(nowhere)}, rf"upstream\.cert {nowhere}: No such file"),
        "no key": ({**good, "cert_key": str(nowhere)}, rf"upstream\.cert_key {nowhere}: No such file"),
        "key is text": ({**good, "cert_key": str(text)}, rf"{files.cert} with {text}: no certificate and key in PEM"),
        "no key in the certificate": (good, rf"{files.cert}: no certificate and key in PEM"),
        "key of another": (
            {**good, "cert_key": others.key},
            rf"{files.cert} with {others.key}: the key does not belong to the certificate",
        ),
        "locked key": ({**good, "cert_key": str(locked)}, rf"{locked}: the key is locked by a passphrase"),
    }


CASES = ["no ca", "ca is a folder", "ca is text", "ca is empty", "no cert", "no key", "key is text",
         "no key in the certificate", "key of another", "locked key"]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
async def test_a_file_that_cannot_be_used_is_one_clear_line(case: str, authority: Authority, tmp_path: Path) -> None:
    upstream, said = broken(authority, tmp_path)[case]
    config = Config.model_validate({**FAST, "upstream": upstream, "backends": ["https://127.0.0.1:9"]})
    with pytest.raises(ConfigError) as caught:
        read_certificates(config)
    assert re.match(said, str(caught.value))
    assert "\n" not in str(caught.value)
    with pytest.raises(StartError):
        await Router(config).__aenter__()
    file = tmp_path / "router.yaml"
    file.write_text(yaml.safe_dump({"upstream": upstream, "backends": ["https://127.0.0.1:9"]}))
    checked = CliRunner().invoke(main, ["config", "check", str(file)])
    assert (checked.exit_code, re.search(said, checked.output) is not None) == (2, True)


def test_every_broken_case_is_tried(authority: Authority, tmp_path: Path) -> None:
    assert list(broken(authority, tmp_path)) == CASES


def test_the_systems_authorities_are_read_when_they_are_wanted() -> None:
    contexts = read_certificates(Config.model_validate({"backends": ["http://127.0.0.1:9"]})).backends
    assert len(contexts) == 0
    assert contexts[SYSTEM] is contexts[SYSTEM]
    assert contexts.get(SYSTEM._replace(verify=False)) is None


def test_an_authority_of_one_backend_is_named_by_it() -> None:
    config = Config.model_validate({"backends": [{"url": "https://a:1", "ca": "/nowhere"}]})
    with pytest.raises(ConfigError, match=r"^ca of backend a:1 /nowhere: No such file or directory$"):
        read_certificates(config)
