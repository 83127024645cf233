"""Owns what the router tells about the requests of an agent, turn by turn."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.clients.agents import Ended, Installed
from tests.serving import Serving

_SETTLED_S = 10.0
"""Seconds within which the router is done with a request whose agent has ended."""


@dataclass(frozen=True, slots=True)
class Record:
    """One request as `/api/state` lists it."""

    id: str
    time: float
    path: str
    status: int
    backend: str | None
    decision: str
    key_source: str | None
    session: str | None
    prompt_tokens: int | None
    cached_tokens: int | None

    @classmethod
    def of(cls, row: dict[str, Any]) -> "Record":
        return cls(**{name: row[name] for name in cls.__slots__})

    def __str__(self) -> str:
        tokens = f" prompt {self.prompt_tokens} cached {self.cached_tokens}"
        return f"{self.status} {self.path} -> {self.backend} {self.decision} {self.key_source} {self.session}{tokens}"


@dataclass
class Log:
    """The requests that a router has served, read from its admin listener; each one is told once."""

    router: Serving
    told: set[str] = field(default_factory=set)

    async def fresh(self) -> list[Record]:
        """The requests since the last call in the order of their arrival, when none is running any more."""
        async with asyncio.timeout(_SETTLED_S), httpx.AsyncClient() as http:
            while (state := (await http.get(f"{self.router.admin}/api/state")).json())["fleet"]["in_flight"]:
                await asyncio.sleep(0.05)
        found = sorted((Record.of(row) for row in state["recent"]), key=lambda record: record.time)
        fresh = [record for record in found if record.id not in self.told]
        self.told |= {record.id for record in fresh}
        return fresh

    async def sessions(self) -> list[dict[str, Any]]:
        """The sessions that the router knows, with their source, backend and number of turns."""
        async with httpx.AsyncClient() as http:
            rows: list[dict[str, Any]] = (await http.get(f"{self.router.admin}/api/sessions")).json()["sessions"]
        return rows


@dataclass(frozen=True, slots=True)
class Turn:
    """How an agent's turn ended, its requests beside the conversation, and those of the conversation itself."""

    ended: Ended
    side: tuple[Record, ...]
    own: tuple[Record, ...]


async def two_turns(*conversations: Installed, log: Log) -> list[tuple[Turn, Turn]]:
    """Hold conversations of two turns, one request at a time: all first turns, then all second ones. Raises AgentError."""
    first, second = [], []
    for installed in conversations:
        installed.set_up()
        ended = await installed.begin()
        records = tuple(await log.fresh())
        side = installed.agent.side
        first.append(Turn(ended, records[:side], records[side:]))
    for installed in conversations:
        second.append(Turn(await installed.go_on(), (), tuple(await log.fresh())))
    for installed, turns in zip(conversations, zip(first, second, strict=True), strict=True):
        _show(installed.agent.name, *turns)
    return list(zip(first, second, strict=True))


def _show(agent: str, *turns: Turn) -> None:
    """Every request on a line of its own, for people and for the report of a failure."""
    for number, turn in enumerate(turns, 1):
        for kind, rows in (("beside", turn.side), ("own", turn.own)):
            for row in rows:
                print(f"{agent} turn {number} {kind}: {row}")
        if turn.ended.code:
            print(f"{agent} turn {number} ended with {turn.ended.code}: {turn.ended.output[-500:]}")
