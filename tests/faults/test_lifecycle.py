"""Starting with half of everything missing, stopping under load, and settings that are wrong."""

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from warmroute.app import Router
from warmroute.cli import main
from warmroute.config import Config
from warmroute.listeners import StartError

from ..integration.conftest import until, up
from ..integration.scripted import RawClient, Talk, free_port, token
from ..integration.valkey import Valkey
from ..serving import Serving, serving, until_ready
from .backend import FaultyBackend, everywhere, turn
from .conftest import FAST, LONG, StartRouter


class Held:
    """A script of streams that begin, and end when they may."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def __call__(self, talk: Talk) -> None:
        talk.stream_head()
        talk.event(token("one"))
        await talk.drain()
        await self.go_on.wait()
        talk.event(b"[DONE]")
        talk.end()


@asynccontextmanager
async def streams(url: str, count: int) -> AsyncIterator[list[RawClient]]:
    """So many streams that have begun."""
    clients = [await RawClient.connect(url) for _ in range(count)]
    try:
        for i, client in enumerate(clients):
            client.post({"model": "m", "stream": True}, {"x-session-id": f"s{i}"})
        for client in clients:
            await client.head()
        yield clients
    finally:
        for client in clients:
            client.writer.close()


async def rest(client: RawClient) -> bytes:
    body = b""
    while part := await client.chunk():
        body += part
    return body


async def ended(router: Serving, within: float) -> int:
    """The exit code, once the process has ended."""
    return await asyncio.to_thread(router.process.wait, within)


def all_up(router: Router) -> bool:
    return up(router) == len(router.registry.backends)


async def balanced(ports: list[int], number: int) -> str:
    """A turn of one of ten sessions through the next router, or through the other one where nobody listens."""
    for port in (ports[number % 2], ports[(number + 1) % 2]):
        try:
            reply = await turn(f"http://127.0.0.1:{port}", f"s{number // 2 % 10}")
        except ConnectionRefusedError:
            continue
        assert reply.status == 200
        return reply.header("x-warmroute-backend") or ""
    raise AssertionError("no router answers")


class TestStopping:
    async def test_sigterm_lets_every_stream_end(self, backends: list[FaultyBackend]) -> None:
        held = Held()
        everywhere(backends, held)
        with serving(*(b.url for b in backends)) as router:
            await until_ready(router.admin, up=3)
            async with streams(router.data, 20) as clients:
                router.process.send_signal(signal.SIGTERM)
                async with httpx.AsyncClient(base_url=router.admin, trust_env=False) as http:
                    async with asyncio.timeout(5 * LONG):
                        while (await http.get("/readyz")).status_code != 503:
                            await asyncio.sleep(0.02)
                    assert (await http.get("/livez")).status_code == 200
                assert router.process.poll() is None
                held.go_on.set()
                assert all([(await rest(client)).endswith(b"[DONE]\n\n") for client in clients])
            assert await ended(router, 5 * LONG) == 0
            assert "Traceback" not in (router.process.stderr.read() if router.process.stderr else "")

    async def test_a_second_signal_ends_it_at_once_and_visibly(self, backends: list[FaultyBackend]) -> None:
        everywhere(backends, Held())
        with serving(*(b.url for b in backends)) as router:
            await until_ready(router.admin, up=3)
            async with streams(router.data, 3) as clients:
                router.process.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.3)
                assert router.process.poll() is None
                router.process.send_signal(signal.SIGINT)
                bodies = [await rest(client) for client in clients]
                began = time.monotonic()
                assert await ended(router, 10 * LONG) == 0
                assert time.monotonic() - began < 1 * LONG
        assert all(b"the router is stopping" in body and b"[DONE]" not in body for body in bodies)

    async def test_a_stream_longer_than_the_limit_is_ended_visibly_and_in_time(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        everywhere(backends, Held())
        router = await start_router(backends, limits={"shutdown": 0.5})
        async with streams(router.data_url, 2) as clients:
            began = time.monotonic()
            await router.__aexit__(None, None, None)
            assert 0.5 <= time.monotonic() - began < 0.5 + 1 * LONG
            for client in clients:
                body = await rest(client)
                assert (b"the router is stopping" in body, b"[DONE]" in body) == (True, False)

    async def test_requests_are_taken_until_the_balancer_knows(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        router = await start_router(backends, limits={"pre_drain": 1.0})

        async def stop() -> None:
            await router.pre_drain()
            await router.__aexit__(None, None, None)

        stopping = asyncio.ensure_future(stop())
        await until(lambda: router.stopping)
        async with httpx.AsyncClient(base_url=router.data_url, trust_env=False) as http:
            assert (await http.get("/readyz")).status_code == 503
        assert (await turn(router.data_url)).status == 200
        await stopping
        with pytest.raises(ConnectionRefusedError):
            await turn(router.data_url)

    async def test_a_new_configuration_is_read_and_a_broken_one_is_not(
        self, backends: list[FaultyBackend], tmp_path: Path
    ) -> None:
        file = tmp_path / "warmroute.yaml"
        file.write_text(f"backends: [{backends[0].url}]\n")
        with serving("--config", str(file)) as router:
            await until_ready(router.admin)
            async with httpx.AsyncClient(base_url=router.admin, trust_env=False) as http:
                for text, known in (("backends: [\n", 1), (f"backends: [{backends[0].url}, {backends[1].url}]\n", 2)):
                    file.write_text(text)
                    router.process.send_signal(signal.SIGHUP)
                    async with asyncio.timeout(2 * LONG):
                        while len((await http.get("/api/state")).json()["backends"]) != known:
                            await asyncio.sleep(0.02)
                    assert (await turn(router.data, "s")).status == 200

    async def test_routers_replaced_one_after_another_fail_nobody(
        self, backends: list[FaultyBackend], valkey: Valkey
    ) -> None:
        """A balancer goes on with the other router while one is replaced; no conversation moves."""
        ports = [free_port(), free_port()]
        section = {"store": {"redis": valkey.url, "deadline": "500ms"}, "backends": [b.url for b in backends]}

        def config(port: int) -> Config:
            return Config.model_validate({**FAST, **section, "listen": {"port": port, "admin_port": 0}})

        touched: dict[int, set[str]] = {}
        number, over = 0, False

        async def traffic() -> None:
            nonlocal number
            while not over:
                touched.setdefault(number // 2 % 10, set()).add(await balanced(ports, number))
                number += 1
                await asyncio.sleep(0.005)

        def enough(wanted: int) -> bool:
            return number >= wanted or running.done()

        routers = [Router(config(port)) for port in ports]
        for router in routers:
            await router.__aenter__()
        await until(lambda: all(map(all_up, routers)))
        running = asyncio.ensure_future(traffic())
        for i, port in enumerate(ports):
            wanted = number + 20
            await until(partial(enough, wanted))
            await routers[i].__aexit__(None, None, None)
            routers[i] = Router(config(port))
            await routers[i].__aenter__()
            await until(partial(all_up, routers[i]))
        over = True
        await running
        for router in routers:
            await router.__aexit__(None, None, None)
        assert all(len(found) == 1 for found in touched.values())


class TestStarting:
    async def test_with_no_backend_and_with_one_of_four(self, start_router: StartRouter, valkey: Valkey) -> None:
        valkey.kill()
        fleet = [FaultyBackend(port=free_port()) for _ in range(4)]
        router = await start_router(fleet, wait=False, store={"redis": valkey.url})
        await until(lambda: all(b.health.up is False for b in router.registry.backends.values()))
        async with httpx.AsyncClient(base_url=router.data_url, trust_env=False) as http:
            ready = await http.get("/readyz")
            assert (ready.status_code, len(ready.json()["reasons"])) == (503, 4)
            assert all(b.name in reason for b, reason in zip(fleet, ready.json()["reasons"], strict=True))
            assert (await turn(router.data_url)).status == 503
            async with fleet[2]:
                await until(lambda: up(router) == 1)
                assert (await http.get("/readyz")).status_code == 200
                replies = [await turn(router.data_url, f"s{i}") for i in range(8)]
                assert {(r.status, r.header("x-warmroute-backend")) for r in replies} == {(200, fleet[2].name)}
                await router.__aexit__(None, None, None)

    async def test_an_address_that_cannot_be_had_is_one_line(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            wrong = {
                f"cannot listen on 127.0.0.1:{port}": {"port": port},
                f"cannot listen on 127.0.0.1:{port}: ": {"port": 0, "admin_port": port},
                "cannot listen on 192.0.2.1:": {"host": "192.0.2.1", "port": 0},
            }
            for said, listen in wrong.items():
                config = {**FAST, "backends": ["http://127.0.0.1:9"], "listen": {"port": 0, "admin_port": 0, **listen}}
                with pytest.raises(StartError) as error:
                    await Router(Config.model_validate(config)).__aenter__()
                assert str(error.value).startswith(said)
                assert "\n" not in str(error.value)


BROKEN = {
    "backends: [": "",
    "": "backends",
    "backends: []": "backends",
    "backends: 7": "backends",
    "backends: [ftp://x]": "http://127.0.0.1:8000",
    "backends: [http://a:99999]": "backends",
    "backends: [http://user:secret@a]": "backends",
    "backends: [http://a, http://a]": "two backends are named",
    "backends: [{url: http://a, weight: -1}]": "weight",
    "backends: [{url: http://a, wieght: 1}]": "weight",
    "backends: [http://a]\nlisten: {port: 70000}": "port",
    "backends: [http://a]\nlisten: {prot: 80}": "port",
    "backends: [http://a]\nhealth: {interval: soon}": "2s",
    "backends: [http://a]\nhealth: {interval: -1}": "interval",
    "backends: [http://a]\nhealth: {fall: 0}": "fall",
    "backends: [http://a]\nlimits: {body: big}": "64MiB",
    "backends: [http://a]\nupstream: {keepalive_expiry: 10}": "keepalive_expiry",
    "backends: [http://a]\naffinity: {key_sources: [nothing]}": "header:NAME",
    "backends: [http://a]\nlog: {format: xml}": "json",
    "backends: [http://a]\nstore: {redis: 'http://a'}": "redis://",
    "backends: [http://a]\nnothing: 1": "nothing",
    "- http://a": "",
    "backends: &a [*a]": "",
}
"""Files that are wrong -> a word that the error must say."""


def test_a_broken_file_is_told_by_name_and_key_and_opens_no_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_port(*_: object) -> None:
        raise AssertionError("a port was opened")

    monkeypatch.setattr(socket.socket, "bind", no_port)
    for number, (text, said) in enumerate(BROKEN.items()):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text)
        result = CliRunner().invoke(main, ["config", "check", str(file)])
        assert (text, result.exit_code) == (text, 2), result.output
        assert str(file) in result.output
        assert said in result.output, (text, result.output)
        assert "Traceback" not in result.output


def test_a_password_in_a_backends_url_is_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("backends: [http://user:secret@a]")
    result = CliRunner().invoke(main, ["config", "check", str(file)])
    assert (result.exit_code, "secret" in result.output) == (2, False)


async def test_few_file_descriptors_are_told_and_survived(backends: list[FaultyBackend]) -> None:
    """Connections beyond what the system gives wait or fail; nothing crashes, and all is well when they have gone."""
    with serving(*(b.url for b in backends), stderr=subprocess.DEVNULL) as router:
        await until_ready(router.admin, up=3)
        used = len(os.listdir(f"/proc/{router.process.pid}/fd"))
        resource.prlimit(router.process.pid, resource.RLIMIT_NOFILE, (used + 20, used + 20))
        clients = [await RawClient.connect(router.data) for _ in range(60)]
        for client in clients:
            client.post({"model": "m"})
        await asyncio.sleep(0.5)
        assert router.process.poll() is None
        for client in clients:
            client.writer.transport.abort()
        async with asyncio.timeout(5 * LONG):
            while True:
                try:
                    async with asyncio.timeout(1):
                        if (await turn(router.data, "s")).status == 200:
                            break
                except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
                    continue
        async with httpx.AsyncClient(base_url=router.admin, trust_env=False) as http:
            state = json.loads((await http.get("/api/state")).text)
        assert [b["state"] for b in state["backends"]] == ["up"] * 3
