"""The end of a router's life: not ready at once, serving until the balancer knows, whole answers or visible ends."""

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import cycle
from pathlib import Path

import httpx
import pytest
import yaml

from warmroute.app import Router
from warmroute.config import Config, ConfigError, load
from warmroute.observe.reloads import ReloadError
from warmroute.proxy.server import DataProtocol

from ..serving import Serving, serving, until_ready
from .conftest import FAST, StartRouter, until, up
from .scripted import RawClient, Scripted, Talk, token

SOON = 15.0
"""Seconds in which what should happen at once has happened on a busy machine too; what is not to be waited for is longer."""

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"

BEGINNINGS: dict[str, list[dict[str, object]]] = {
    CHAT: [token("one")],
    COMPLETIONS: [{"id": "c", "choices": [{"index": 0, "text": "one", "finish_reason": None}]}],
    MESSAGES: [
        {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": []}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "one"}},
    ],
    RESPONSES: [
        {"type": "response.created", "sequence_number": 0, "response": {"id": "resp_1", "status": "in_progress"}},
        {"type": "response.output_text.delta", "sequence_number": 1, "delta": "one"},
    ],
}
"""How a stream of each protocol begins."""

FALSE_ENDS = (b"[DONE]", b"message_stop", b"response.completed")


class Held:
    """A script of streams that begin, and end when they may."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def __call__(self, talk: Talk) -> None:
        talk.stream_head()
        for event in BEGINNINGS[talk.seen.path]:
            named = f"event: {event['type']}\n" if "type" in event else ""
            talk.chunk(f"{named}data: {json.dumps(event)}\n\n".encode())
        await talk.drain()
        await self.go_on.wait()
        talk.event(b"[DONE]")
        talk.end()


@pytest.fixture
def held(backends: list[Scripted]) -> Iterator[Held]:
    """All backends answer by this script."""
    script = Held()
    for backend in backends:
        backend.script = script
    yield script
    script.go_on.set()


async def stop(router: Router) -> None:
    """Stop a router as SIGTERM does."""
    await router.pre_drain()
    await router.__aexit__(None, None, None)


@asynccontextmanager
async def stopping(router: Router) -> AsyncIterator[asyncio.Future[None]]:
    """A router that is being stopped; what is left of it when the block ends is ended at once."""
    task = asyncio.ensure_future(stop(router))
    await until(lambda: router.stopping)
    try:
        yield task
    finally:
        router.hurry()
        async with asyncio.timeout(SOON):
            await task


@asynccontextmanager
async def stream(url: str, path: str = CHAT) -> AsyncIterator[RawClient]:
    """A stream whose first event is there."""
    async with await RawClient.connect(url) as client:
        client.post({"model": "m", "stream": True, "messages": [], "prompt": "p", "input": "i"}, path=path)
        assert (await client.head())[0] == 200
        await client.chunk()
        yield client


async def rest(client: RawClient) -> bytes:
    """The rest of a body whose framing says that it is whole."""
    body = b""
    while part := await client.chunk():
        body += part
    return body


async def status(url: str, path: str) -> int:
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        return (await http.get(path)).status_code


async def refused(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except (ConnectionRefusedError, ConnectionResetError):  # the latter where the listener closes at that moment
        return True
    writer.close()
    return False


async def becomes(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(15):
        while not await true():
            await asyncio.sleep(0.01)


# Before the port closes


async def test_not_ready_at_once_on_both_ports_but_alive_and_serving(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    router = await start_router(backends, limits={"pre_drain": "60s"})
    urls = (router.data_url, router.admin_url)
    assert [await status(url, "/readyz") for url in urls] == [200, 200]
    async with stopping(router) as end:
        for url in urls:
            async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
                for path in ("/readyz", "/health"):
                    answer = await http.get(path)
                    told = {"status": "not ready", "reasons": ["the router is stopping"]}
                    assert (answer.status_code, answer.json()) == (503, told)
                    assert (await http.head(path)).status_code == 503
                assert (await http.get("/livez")).status_code == 200
        for number in range(3):
            async with await RawClient.connect(router.data_url) as client:
                assert (await client.chat(f"s{number}")).status == 200
        assert not end.done()


async def test_a_kept_connection_is_served_once_more_and_told_to_move(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    router = await start_router(backends, limits={"pre_drain": "60s"})
    async with await RawClient.connect(router.data_url) as client, await RawClient.connect(router.data_url) as idle:
        for connection in (client, idle):
            assert (await connection.chat("s")).header("connection") is None
        async with stopping(router):
            reply = await client.chat("s")
            assert (reply.status, reply.whole) == (200, True)
            assert [value for name, value in reply.headers if name == "connection"] == ["close"]
            async with asyncio.timeout(SOON):
                assert await client.reader.read() == b""
            assert not idle.reader.at_eof()
            assert (await idle.chat("s")).status == 200


async def test_an_error_says_so_once_and_a_stream_too(backends: list[Scripted], start_router: StartRouter) -> None:
    held = Held()
    router = await start_router(backends, limits={"pre_drain": "60s", "body": 100})
    async with stopping(router):
        for body, wanted in ((b"x" * 101, 413), (b'{"model": "nobody"}', 404)):
            async with await RawClient.connect(router.data_url) as client:
                client.post(body)
                reply = await client.reply()
                assert reply.status == wanted
                assert [value for name, value in reply.headers if name == "connection"] == ["close"]
        for backend in backends:
            backend.script = held
        async with await RawClient.connect(router.data_url) as client:
            client.post({"model": "m", "stream": True})
            assert ("connection", "close") in (await client.head())[1]
            held.go_on.set()
            assert (await rest(client)).endswith(b"[DONE]\n\n")


async def test_requests_that_wait_behind_another_are_answered(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    """Only the last one says that the connection ends: what stands behind it would be lost."""
    router = await start_router(backends, limits={"pre_drain": "60s"})
    turns = {name: asyncio.Event() for name in ("asked", "begin", "end", "answer")}

    async def slow(talk: Talk) -> None:
        place = json.loads(talk.seen.body)["place"]
        if place == 1:
            turns["asked"].set()
            await turns["begin"].wait()
            talk.stream_head()
            talk.event({})
            await turns["end"].wait()
            talk.end()
        else:
            await turns["answer"].wait()
            talk.json({})

    for backend in backends:
        backend.script = slow
    async with await RawClient.connect(router.data_url) as client:
        client.post({"model": "m", "place": 1})
        client.post({"model": "m", "place": 2})
        await turns["asked"].wait()
        async with stopping(router):
            turns["begin"].set()
            first = dict((await client.head())[1])
            client.post({"model": "m", "place": 3})
            turns["end"].set()
            await rest(client)
            await until(lambda: sum(len(b.posts) for b in backends) == 2)
            await until(lambda: any(guest.pipeline for guest in router._door.guests if isinstance(guest, DataProtocol)))
            turns["answer"].set()
            replies = [await client.reply(), await client.reply()]
    assert first.get("connection") is None
    assert [(reply.status, reply.header("connection")) for reply in replies] == [(200, None), (200, "close")]


async def test_a_balancer_that_looks_at_readyz_loses_nothing(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    """No request fails and no connection is refused, though the balancer sees that a router stops only some time later."""
    routers = [await start_router(backends, limits={"pre_drain": 3.0}) for _ in range(2)]
    ready = [True, True]
    over = False
    answered = [0, 0]
    ended: list[asyncio.Future[None]] = []

    async def look() -> None:
        while not over:
            for number, router in enumerate(routers):
                # Once out, it is out; its address is asked no more, as a pod's that has gone.
                ready[number] = ready[number] and await status(router.data_url, "/readyz") == 200
            await asyncio.sleep(0.1)

    async def user(name: str) -> None:
        kept: dict[int, RawClient] = {}
        for number in cycle((0, 1)):
            if over:
                break
            if not ready[number]:
                continue
            client = kept.pop(number, None) or await RawClient.connect(routers[number].data_url)
            reply = await client.chat(name)
            assert (reply.status, reply.whole) == (200, True)
            answered[number] += 1
            if reply.header("connection") == "close":
                client.writer.close()
            else:
                kept[number] = client
            await asyncio.sleep(0.01)
        for client in kept.values():
            client.writer.close()

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(look())
        for i in range(5):
            group.create_task(user(f"s{i}"))
        await until(lambda: min(answered) > 20)
        before = answered[0]
        ended.append(group.create_task(stop(routers[0])))
        await ended[0]
        assert await refused(routers[0].data_url)
        after = answered[1]
        await until(lambda: answered[1] > after + 20)
        over = True
    assert answered[0] > before
    assert ready == [False, True]


# When the port has closed


async def test_then_nobody_is_let_in_and_what_runs_ends_whole(
    held: Held, backends: list[Scripted], start_router: StartRouter
) -> None:
    router = await start_router(backends, limits={"pre_drain": "60s", "shutdown": "60s"})
    async with stream(router.data_url) as before:
        waiting = asyncio.ensure_future(router.pre_drain())
        await until(lambda: router.stopping)
        async with stream(router.data_url) as within:
            waiting.cancel()
            end = asyncio.ensure_future(router.__aexit__(None, None, None))
            await becomes(lambda: refused(router.data_url))
            assert not end.done()
            assert (await status(router.admin_url, "/readyz"), await status(router.admin_url, "/livez")) == (503, 200)
            held.go_on.set()
            for client in (before, within):
                assert (await rest(client)).endswith(b"[DONE]\n\n")
            async with asyncio.timeout(SOON):
                await end


@pytest.mark.parametrize("path", BEGINNINGS)
async def test_a_stream_that_is_too_long_ends_with_an_error_of_its_protocol(
    held: Held, backends: list[Scripted], start_router: StartRouter, path: str
) -> None:
    router = await start_router(backends, limits={"pre_drain": 0.2, "shutdown": 0.3})
    async with stream(router.data_url, path) as client:
        began = time.monotonic()
        async with asyncio.timeout(SOON):
            await stop(router)
        assert time.monotonic() - began >= 0.5
        body = await rest(client)
    assert not any(false_end in body for false_end in FALSE_ENDS)
    last = body.removesuffix(b"\n\n").split(b"\n\n")[-1].decode()
    lines = dict(line.split(": ", 1) for line in last.splitlines())
    told = json.loads(lines["data"])
    error = told.get("error", told)
    assert "the router is stopping" in error["message"]
    if path == MESSAGES:
        assert (lines["event"], told["type"], error["type"]) == ("error", "error", "overloaded_error")
    else:
        assert (error["type"], error["code"]) == ("server_error", "router_unavailable")
    if path == RESPONSES:
        assert (lines["event"], told["type"], told["code"]) == ("error", "error", "router_unavailable")


async def test_what_waits_for_a_full_backend_is_told_in_time(
    held: Held, backends: list[Scripted], start_router: StartRouter
) -> None:
    """It must not begin in the place of what was ended, and then run on."""
    router = await start_router(
        backends[:1], limits={"pre_drain": 0.1, "shutdown": 0.3}, queue={"in_flight": 1, "timeout": "60s"}
    )
    async with stream(router.data_url) as client, await RawClient.connect(router.data_url) as waiting:
        waiting.post({"model": "m", "stream": True})
        await until(lambda: router._kept.queue.waiting == 1)
        began = time.monotonic()
        await stop(router)
        assert time.monotonic() - began < 5.0
        assert b"the router is stopping" in await rest(client)
        reply = await waiting.reply()
        assert b"the router is stopping" in reply.body
        assert not any(false_end in reply.body for false_end in FALSE_ENDS)


async def test_to_hurry_ends_the_wait_and_every_stream(
    held: Held, backends: list[Scripted], start_router: StartRouter
) -> None:
    router = await start_router(backends, limits={"pre_drain": "60s", "shutdown": "60s"})
    async with stream(router.data_url) as client:
        async with stopping(router) as end:
            router.hurry()
            async with asyncio.timeout(SOON):
                await end
        assert b"the router is stopping" in await rest(client)


# Reloads


async def test_a_reload_that_is_being_read_when_the_end_comes_changes_nothing(backends: list[Scripted]) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def config(*used: Scripted) -> Config:
        return Config.model_validate({**FAST, "limits": {"pre_drain": 0.2}, "backends": [b.url for b in used]})

    def read() -> Config:
        reading.set()
        go_on.wait(15)
        return config(*backends)

    async with Router(config(backends[0]), read=read) as router:
        await until(lambda: up(router) == 1)
        reload = asyncio.ensure_future(router.reload())
        await until(reading.is_set)
        async with stopping(router):
            go_on.set()
            with pytest.raises(ReloadError, match="the router is stopping"):
                await reload
            assert list(router.registry.backends) == [backends[0].name]
            async with await RawClient.connect(router.data_url) as client:
                assert (await client.chat("s")).status == 200


# As a process


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "stderr"


def configure(file: Path, backends: list[Scripted], **limits: object) -> None:
    file.write_text(yaml.safe_dump({"backends": [b.url for b in backends], "limits": limits}))


def said(log: Path) -> str:
    return log.read_text()


@asynccontextmanager
async def process(log: Path, file: Path, backends: list[Scripted], **limits: object) -> AsyncIterator[Serving]:
    """`warmroute serve` out of a file, with all backends up."""
    configure(file, backends, **limits)
    with log.open("w") as stderr, serving("--config", str(file), stderr=stderr.fileno()) as router:
        await until_ready(router.admin, up=len(backends))
        yield router
    assert "Traceback" not in said(log)


async def ended(router: Serving) -> int:
    """The exit code of a process that has been told to end now."""
    return await asyncio.to_thread(router.process.wait, SOON)


async def test_sigterm_serves_on_and_a_second_one_ends_it_now(
    held: Held, backends: list[Scripted], log: Path, tmp_path: Path
) -> None:
    limits = {"pre_drain": "60s", "shutdown": "60s"}
    async with process(log, tmp_path / "c.yaml", backends, **limits) as router, stream(router.data) as before:
        router.process.send_signal(signal.SIGTERM)

        async def not_ready() -> bool:
            return await status(router.data, "/readyz") == 503

        await becomes(not_ready)
        assert await status(router.admin, "/readyz") == 503
        async with stream(router.data) as within:
            router.process.send_signal(signal.SIGTERM)
            for client in (before, within):
                assert b"the router is stopping" in await rest(client)
            assert await ended(router) == 0
    assert "SIGTERM: requests are taken for 60 s more, then those that run have 60 s to end" in said(log)


async def test_sigterm_closes_the_port_after_pre_drain_and_lets_streams_end(
    held: Held, backends: list[Scripted], log: Path, tmp_path: Path
) -> None:
    async with process(log, tmp_path / "c.yaml", backends, pre_drain="500ms") as router, stream(router.data) as client:
        began = time.monotonic()
        router.process.send_signal(signal.SIGTERM)
        await becomes(lambda: refused(router.data))
        assert time.monotonic() - began >= 0.5
        assert router.process.poll() is None
        held.go_on.set()
        assert (await rest(client)).endswith(b"[DONE]\n\n")
        assert await ended(router) == 0


async def test_ctrl_c_does_not_wait(backends: list[Scripted], log: Path, tmp_path: Path) -> None:
    async with process(log, tmp_path / "c.yaml", backends, pre_drain="60s", shutdown="60s") as router:
        router.process.send_signal(signal.SIGINT)
        assert await ended(router) == 0
    assert "SIGINT: those that run have 60 s to end" in said(log)


async def test_sighup_while_it_stops_does_no_harm(backends: list[Scripted], log: Path, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    async with process(log, file, backends[:1], pre_drain="60s") as router:
        router.process.send_signal(signal.SIGTERM)
        configure(file, backends, pre_drain="60s")
        async with httpx.AsyncClient(base_url=router.admin, trust_env=False) as http:

            async def told() -> bool:
                return (await http.get("/readyz")).status_code == 503

            await becomes(told)
            for _ in range(3):
                router.process.send_signal(signal.SIGHUP)
            answer = await http.post("/api/reload")
            assert (answer.status_code, answer.json()) == (409, {"detail": "the router is stopping"})
            assert len((await http.get("/api/state")).json()["backends"]) == 1
        async with await RawClient.connect(router.data) as client:
            assert (await client.chat("s")).status == 200
        router.process.send_signal(signal.SIGTERM)
        assert await ended(router) == 0


async def test_sigterm_while_a_reload_reads_its_file(backends: list[Scripted], log: Path, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    async with process(log, file, backends[:1], pre_drain="60s") as router:
        file.unlink()
        os.mkfifo(file)
        router.process.send_signal(signal.SIGHUP)
        # Opened for writing only once somebody reads.
        pipe = await asyncio.to_thread(file.open, "w")
        router.process.send_signal(signal.SIGTERM)

        async def told() -> bool:
            return await status(router.admin, "/readyz") == 503

        await becomes(told)
        with pipe:
            pipe.write(yaml.safe_dump({"backends": [b.url for b in backends]}))
        await until(lambda: "the configuration of before stays in force: the router is stopping" in said(log))
        router.process.send_signal(signal.SIGTERM)
        assert await ended(router) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_while_it_starts(
    stack: AsyncExitStack, backends: list[Scripted], log: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """A start waits for a silent store; who ends it then need not wait for anything more."""
    connected = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        with suppress(ConnectionError):
            while await reader.read(1024):
                pass
        writer.close()

    store = await asyncio.start_server(silent, "127.0.0.1", 0)
    stack.callback(store.close)
    url = f"redis://127.0.0.1:{store.sockets[0].getsockname()[1]}"
    file = tmp_path / "c.yaml"
    configure(file, backends, pre_drain="60s")
    words = ("--config", str(file), "--redis", url)
    with log.open("w") as stderr, serving(*words, stderr=stderr.fileno()) as router:
        async with asyncio.timeout(20):
            await connected.wait()
        router.process.send_signal(number)
        assert await ended(router) == 0
    assert "Traceback" not in said(log)
    assert "dashboard at" not in said(log)


# Configuration


def test_there_need_be_no_pre_drain() -> None:
    assert Config.model_validate({"backends": ["http://a"], "limits": {"pre_drain": "0s"}}).limits.pre_drain == 0


@pytest.mark.parametrize("value", [-1, "-1s", "soon", float("inf")])
def test_a_pre_drain_that_is_no_time_is_refused(value: object, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump({"backends": ["http://a"], "limits": {"pre_drain": value}}))
    with pytest.raises(ConfigError, match=r"limits\.pre_drain"):
        load(file, environment={})


def test_by_default_all_of_it_fits_into_the_half_minute_of_kubernetes() -> None:
    limits = Config.from_urls(["http://a"]).limits
    assert limits.pre_drain + limits.shutdown + 5 <= 30
