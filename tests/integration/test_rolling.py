"""Two routers in processes of their own, HAProxy in front, one store: each is replaced under load, and nobody sees it."""

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path

import pytest
import yaml

from ..serving import COMMAND, until_ready
from .conftest import until
from .scripted import RawClient, Scripted, Talk, free_port, token
from .valkey import Valkey

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
DOCS = Path(__file__).parents[2] / "docs" / "scaling.md"
CLIENTS, SESSIONS = 6, 5
PRE_DRAIN = 1.5

pytestmark = pytest.mark.skipif(HAPROXY is None and not os.environ.get("CI"), reason="HAProxy is not installed")


async def slowly(talk: Talk) -> None:
    """A stream that takes as long as the balancer needs to see that a router ends."""
    talk.stream_head()
    for i in range(8):
        talk.event(token(f"{i}"))
        await talk.drain()
        await asyncio.sleep(0.06)
    talk.event(b"[DONE]")
    talk.end()


@pytest.fixture
async def backends(stack: AsyncExitStack) -> list[Scripted]:
    return [await stack.enter_async_context(Scripted(slowly)) for _ in range(3)]


class OneRouter:
    """A router's place: it keeps its ports while its process is replaced."""

    def __init__(self, config: Path) -> None:
        self.port, self.admin_port = free_port(), free_port()
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["serve", "--config", str(self._config), "--port", str(self.port), "--admin-port", str(self.admin_port)]
        self._process = subprocess.Popen([*COMMAND, *words], stderr=subprocess.DEVNULL)

    async def ready(self) -> None:
        await until_ready(f"http://127.0.0.1:{self.admin_port}", up=3)

    async def stop(self) -> int:
        """SIGTERM, as whatever replaces routers does it; the exit code once it has ended."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self._process.wait, 40)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
async def routers(backends: list[Scripted], stack: AsyncExitStack, tmp_path: Path) -> AsyncIterator[list[OneRouter]]:
    folder = tmp_path / "v"
    folder.mkdir()
    valkey = await stack.enter_async_context(Valkey(folder))
    config = tmp_path / "router.yaml"
    settings = {
        "backends": [backend.url for backend in backends],
        "store": {"redis": valkey.url, "deadline": "500ms"},
        "limits": {"pre_drain": f"{PRE_DRAIN}s"},
        "log": {"format": "off"},
    }
    config.write_text(yaml.safe_dump(settings))
    made = [OneRouter(config) for _ in range(2)]
    try:
        for router in made:
            router.start()
        for router in made:
            await router.ready()
        yield made
    finally:
        for router in made:
            router.kill()


class Balancer:
    """HAProxy as the manual sets it up, with its stats on a socket."""

    def __init__(self, port: int, stats: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._stats = stats

    def states(self) -> list[str]:
        """What it thinks of its servers: UP, DOWN, and so on."""
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(self._stats))
                sock.sendall(b"show stat\n")
                told = b"".join(iter(lambda: sock.recv(65536), b"")).decode()
        except OSError:
            return []
        rows = [line.split(",") for line in told.splitlines() if line.startswith("warmroute,router")]
        return [row[17] for row in rows]


@contextmanager
def haproxy(routers: list[OneRouter], folder: Path) -> Iterator[Balancer]:
    assert HAPROXY is not None, "HAProxy is not installed, and this test is never skipped here (CI is set)"
    found = re.search(r"```haproxy\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert found
    port, text = free_port(), found[1]
    text = text.replace("bind :80", f"bind 127.0.0.1:{port}")
    for i, router in enumerate(routers, start=1):
        text = text.replace(f"10.0.1.{i}:8080", f"127.0.0.1:{router.port}")
    assert "10.0." not in text
    stats = folder / "stats"
    file = folder / "haproxy.cfg"
    file.write_text(f"global\n  stats socket {stats}\n{text}")
    process = subprocess.Popen([HAPROXY, "-db", "-f", str(file)], stdout=sys.stderr)
    try:
        yield Balancer(port, stats)
    finally:
        process.terminate()
        process.wait(10)


class Load:
    """Clients that go on asking; what each got, and which backend each session touched."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = False
        self.wrong: list[str] = []
        self.turns = 0
        self.homes: defaultdict[str, set[str]] = defaultdict(set)

    async def _client(self, number: int) -> None:
        numbers = count()
        while not self._over:
            async with await RawClient.connect(self._url) as client:
                while not self._over and await self._turn(client, f"s{number}-{next(numbers) % SESSIONS}"):
                    pass

    async def _turn(self, client: RawClient, session: str) -> bool:
        """One turn; returns whether its connection can be used again."""
        try:
            reply = await client.chat(session, stream=True)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            self.wrong.append(f"{session}: {error!r}")
            return False
        if reply.status != 200 or not reply.whole or not reply.body.rstrip().endswith(b"data: [DONE]"):
            self.wrong.append(f"{session}: {reply.status} {reply.body[-200:]!r}")
        elif backend := reply.header("x-warmroute-backend"):
            self.homes[session].add(backend)
        self.turns += 1
        return reply.whole and reply.header("connection") != "close"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(self._client(number))
            yield
            self._over = True

    async def more(self, turns: int) -> None:
        wanted = self.turns + turns
        await until(lambda: self.turns >= wanted, within=60)


async def test_routers_are_replaced_one_after_the_other_and_no_client_sees_it(
    routers: list[OneRouter], tmp_path: Path
) -> None:
    with haproxy(routers, tmp_path) as balancer:
        await until(lambda: balancer.states() == ["UP", "UP"])
        load = Load(balancer.url)
        async with load.running():
            await load.more(CLIENTS * SESSIONS)
            for i in (0, 1, 0):
                assert await routers[i].stop() == 0
                await load.more(CLIENTS)
                routers[i].start()
                await routers[i].ready()
                await until(lambda: balancer.states() == ["UP", "UP"])
                await load.more(CLIENTS)
    assert load.wrong == []
    assert len(load.homes) == CLIENTS * SESSIONS
    assert {session: homes for session, homes in load.homes.items() if len(homes) != 1} == {}


async def test_a_router_that_is_killed_costs_no_more_than_what_it_was_answering(
    routers: list[OneRouter], tmp_path: Path
) -> None:
    with haproxy(routers, tmp_path) as balancer:
        await until(lambda: balancer.states() == ["UP", "UP"])
        load = Load(balancer.url)
        async with load.running():
            await load.more(CLIENTS * SESSIONS)
            routers[0].kill()
            await until(lambda: balancer.states()[:1] == ["DOWN"])
            await load.more(2 * CLIENTS)  # so that each has ended the turn that it was in
            broken = len(load.wrong)
            await load.more(CLIENTS * SESSIONS)
            assert load.wrong[broken:] == []
            routers[0].start()
            await routers[0].ready()
            await load.more(CLIENTS)
    assert len(load.wrong) <= CLIENTS, load.wrong
    assert {session: homes for session, homes in load.homes.items() if len(homes) != 1} == {}
