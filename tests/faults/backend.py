"""A scripted backend that also notes what a fault leaves behind: who came, who left and when, how much ran at once."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..integration.scripted import RawClient, Reply, Script, Scripted, Seen, Talk, answer, token


@dataclass
class FaultyBackend(Scripted):
    """Scripted, with more of a memory. `idle_close`: seconds after which it closes a connection that nobody uses."""

    idle_close: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.begun: list[Seen] = []  # heads, from the moment they are there; `requests` has them with their bodies
        self.answered = 0  # POSTs whose script has run to its end
        self.running = 0
        self.most_running = 0
        self.closed_at: dict[int, float] = {}  # connection number -> time.monotonic() of its end
        self._idle: dict[int, asyncio.TimerHandle] = {}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number, place = self.connections, 0
        self._writers.add(writer)
        try:
            while not writer.is_closing():
                seen = Seen(await reader.readuntil(b"\r\n\r\n"), b"", number, place)
                if writer.is_closing():  # it had given the connection up before the request came
                    break
                self._busy(number)
                self.begun.append(seen)
                place += 1
                length = int(seen.header("content-length") or 0)
                seen.body = await reader.readexactly(length) if length else b""
                self.requests.append(seen)
                await self._answer(Talk(seen, reader, writer))
                await writer.drain()
                self._at_rest(number, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._busy(number)
            self.closed_at[number] = time.monotonic()
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, talk: Talk) -> None:
        if not talk.seen.line.startswith("POST"):
            await super()._answer(talk)
            return
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await super()._answer(talk)
            self.answered += 1
        finally:
            self.running -= 1

    def _busy(self, number: int) -> None:
        if (timer := self._idle.pop(number, None)) is not None:
            timer.cancel()

    def _at_rest(self, number: int, writer: asyncio.StreamWriter) -> None:
        if self.idle_close is not None:
            self._idle[number] = asyncio.get_running_loop().call_later(self.idle_close, writer.close)

    def sessions(self) -> set[str]:
        """The x-session-id of everything that was posted here."""
        return {seen.header("x-session-id") or "" for seen in self.posts}


def everywhere(backends: Iterable[Scripted], script: Script) -> None:
    """Let all backends answer by this script."""
    for backend in backends:
        backend.script = script


def posts(backends: Iterable[Scripted]) -> list[Seen]:
    return [seen for backend in backends for seen in backend.posts]


def by_name(backends: Iterable[FaultyBackend], name: str | None) -> FaultyBackend:
    return next(b for b in backends if b.name == name)


def raw_answer(data: bytes) -> Script:
    """A script that sends exactly these bytes."""

    async def script(talk: Talk) -> None:
        talk.send(data)

    return script


def after(seconds: float, then: Script = answer) -> Script:
    """A script that works for a while first."""

    async def script(talk: Talk) -> None:
        await asyncio.sleep(seconds)
        await then(talk)

    return script


async def stream(talk: Talk) -> None:
    """A short ordinary stream."""
    talk.stream_head()
    for word in ("one", "two"):
        talk.event(token(word))
    talk.event(b"[DONE]")
    talk.end()


async def silence(talk: Talk) -> None:
    """Say nothing until the router gives up; where it never does, until the test is over."""
    await talk.peer_closed(within=30)


def cut_stream(end: Callable[[Talk], Awaitable[None]]) -> Script:
    """A stream with one whole event and half of another one; `end` ends it."""

    async def script(talk: Talk) -> None:
        talk.stream_head()
        talk.event({"i": 1})
        await talk.drain()
        await asyncio.sleep(0.05)
        talk.chunk(b'data: {"i":')
        await talk.drain()
        await end(talk)

    return script


async def reset(talk: Talk) -> None:
    talk.reset()


async def hang_up(talk: Talk) -> None:
    talk.close()


@contextmanager
def deaf_port() -> Iterator[int]:
    """A port whose full accept queue answers no SYN, as a host does that has gone."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        try:
            yield full.getsockname()[1]
        finally:
            for filler in fillers:
                filler.close()


async def connect(url: str) -> RawClient:
    """A client connection, which leaves nothing behind where it is refused."""
    host, port = url.removeprefix("http://").split(":")
    return RawClient(*await asyncio.open_connection(host, int(port)))


async def turn(url: str, session: str | None = None, **fields: object) -> Reply:
    """One chat request on a connection of its own."""
    async with await connect(url) as client:
        return await client.chat(session, **fields)


async def raw(url: str, data: bytes, method: str = "POST") -> Reply:
    """Send these bytes on a connection of their own; the answer to the first request in them."""
    async with await RawClient.connect(url) as client:
        client.send(data)
        return await client.reply(method)


async def homes(url: str, sessions: Iterable[str], **fields: object) -> dict[str, str]:
    """One turn of each session, one after another; session -> name of the backend that served it."""
    found = {}
    async with await RawClient.connect(url) as client:
        for session in sessions:
            reply = await client.chat(session, **fields)
            assert reply.status == 200, (session, reply)
            found[session] = reply.header("x-warmroute-backend") or ""
    return found
