"""Clients that talk, each in a conversation of its own, while something happens to the router."""

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from .scripted import RawClient, Reply, Talk, token

_PAUSE = 0.03
"""Seconds between two turns of one client."""


async def stream(talk: Talk) -> None:
    """A short streamed answer that takes a while."""
    talk.stream_head()
    for word in ("one", " two", " three"):
        talk.event(token(word))
        await asyncio.sleep(0.005)
    talk.event(b"[DONE]")
    talk.end()


@dataclass
class Said:
    """What the clients were answered so far."""

    clients: int
    failures: list[str] = field(default_factory=list)
    turns: Counter[int] = field(default_factory=Counter)
    decisions: Counter[str] = field(default_factory=Counter)
    at: dict[int, str] = field(default_factory=dict)

    def note(self, client: int, reply: Reply) -> None:
        """Take one answer; what is not whole, or not one of a model, is a failure."""
        if reply.status != 200 or not reply.whole or not reply.body.endswith(b"[DONE]\n\n"):
            self.failures.append(f"client {client}: {reply.status} {reply.body[-200:]!r}")
        self.turns[client] += 1
        self.decisions[reply.header("x-warmroute-decision") or ""] += 1
        self.at[client] = reply.header("x-warmroute-backend") or ""

    async def again(self, times: int = 2, within: float = 30.0) -> None:
        """Wait until every client has had so many more answers; the first of them may belong to what was before."""
        goal = {i: self.turns[i] + times for i in range(self.clients)}
        async with asyncio.timeout(within):
            while any(self.turns[i] < turns for i, turns in goal.items()):
                await asyncio.sleep(0.01)


@asynccontextmanager
async def talking(url: str, clients: int = 30, tls: ssl.SSLContext | None = None) -> AsyncIterator[Said]:
    """So many clients, for the length of the block. The backends answer with `stream`."""
    said, ended = Said(clients), asyncio.Event()

    async def client(number: int) -> None:
        async with await RawClient.connect(url, tls=tls) as connection:
            while not ended.is_set():
                said.note(number, await connection.chat(f"client {number}", stream=True))
                await asyncio.sleep(_PAUSE)

    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(number))
        await said.again(1)
        yield said
        ended.set()
