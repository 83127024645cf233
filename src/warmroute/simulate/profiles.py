"""Workloads that are made up: chats, agents, and what makes routers look bad; the same ones for the same seed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from math import exp, log, sqrt
from random import Random

from ..core.identity import CONTENT, DEFAULT_SOURCES
from ..core.model import Session
from .workload import Request, Workload

_FIRST_TOKEN_S, _ANSWER_TOKENS_PER_S = 0.5, 40.0
"""What a client is taken to wait for an answer before its user thinks: when requests come is the same for every policy."""
_90 = 1.2816
"""The standard normal's 90 % quantile."""


class Profile(StrEnum):
    """Kinds of workload. The distributions and where they are from are in docs/simulate.md."""

    CHAT = "chat"
    AGENT = "agent"
    HOSTILE = "hostile"


@dataclass(frozen=True, slots=True)
class _Shape:
    """How many sessions there are by default, how many begin a second, and how many tokens a block has."""

    sessions: int
    per_s: float
    block_size: int
    talk: "Callable[[_Talk], Iterator[Request]]"


def make(profile: Profile, *, seed: int = 0, sessions: int | None = None, block_size: int | None = None) -> Workload:
    """A workload of so many sessions. Those of one seed begin alike, however many there are."""
    shape = _SHAPES[profile]
    size = block_size or shape.block_size
    random = Random(f"{profile}:{seed}")
    requests: list[Request] = []
    start = 0.0
    for number in range(shape.sessions if sessions is None else sessions):
        start += random.expovariate(shape.per_s)
        requests += shape.talk(_Talk(Random(random.getrandbits(64)), number, start, size))
    return Workload(f"{profile}, seed {seed}", size, sorted(requests, key=lambda request: request.at))


class _Talk:
    """One session being written: the time, and the prompt so far as names of whole blocks, without its words."""

    def __init__(self, random: Random, number: int, start: float, block_size: int) -> None:
        self.random = random
        self.number = number
        self.at = start
        self._size = block_size
        self._said = self._anew = 0
        self.clear()

    def clear(self) -> None:
        """Begin another prompt."""
        self.tokens = 0
        self._blocks: list[bytes] = []
        self._chain = b""

    def sum_up(self) -> None:
        """Begin another prompt whose history is new, so that nobody can see which conversation it goes on with."""
        self.clear()
        self._anew += 1

    def say(self, tokens: int, what: str | None = None) -> None:
        """Add so many tokens: those that `what` names, which others may say too, or new ones."""
        self._said += 1
        named = (what if what is not None else f"{self.number}/{self._said}").encode()
        for end in range(self._size - self.tokens % self._size, tokens + 1, self._size):
            self._blocks.append(blake2b(self._chain + named + b"@%d" % end, digest_size=8).digest())
        self.tokens += tokens
        self._chain = blake2b(self._chain + named + b"#%d" % tokens, digest_size=16).digest()

    def ask(self, answer: int, *, named: bool = False, think: float = 0.0) -> Request:
        """Send what was said, hear an answer of so many tokens, and think; with `named` the client sends an id.

        Without one the router tells conversations apart by their messages, which it sees and a trace does not.
        """
        at, prompt, blocks = self.at, self.tokens, tuple(self._blocks)
        self.say(answer)
        self.at += _FIRST_TOKEN_S + answer / _ANSWER_TOKENS_PER_S + think
        key = self.number.to_bytes(8, "big") + (0 if named else self._anew).to_bytes(8, "big")
        session = Session(key, DEFAULT_SOURCES[0] if named else CONTENT)
        return Request(at, prompt, answer, blocks, tuple(self._blocks[len(blocks) :]), session)

    # Numbers

    def mean(self, mean: float, deviation: float, least: float, most: float) -> float:
        """Lognormal, by its mean and standard deviation, within limits."""
        sigma2 = log(1 + (deviation / mean) ** 2)
        drawn = self.random.lognormvariate(log(mean) - sigma2 / 2, sqrt(sigma2))
        return min(most, max(least, drawn))

    def median(self, median: float, p90: float, least: float, most: float) -> float:
        """Lognormal, by its median and 90 % quantile, within limits."""
        drawn = median * exp(self.random.gauss(0, 1) * log(p90 / median) / _90)
        return min(most, max(least, drawn))


def _opens_chat(talk: _Talk) -> None:
    """The system prompt: a part that all have, and one of the tenant's."""
    tenant = talk.random.randrange(_TENANTS)
    of_tenant = _Talk(Random(tenant), tenant, 0, 1).mean(4000, 2500, 500, 15_000)
    talk.say(1000, "everybody")
    talk.say(round(of_tenant), f"tenant {tenant}")


_TENANTS = 20


def _turn_of_chat(talk: _Talk, *, first: bool) -> Request:
    talk.say(round(talk.mean(184, 250, 4, 4000) if first else talk.mean(86, 120, 2, 4000)))
    answer = round(min(2000, max(8, talk.random.gauss(323, 150))))
    return talk.ask(answer, think=talk.mean(45, 40, 5, 300))


def _chat(talk: _Talk) -> Iterator[Request]:
    _opens_chat(talk)
    turns = 1 if talk.random.random() < 0.25 else round(1 + talk.mean(3, 2.5, 1, 14))
    for turn in range(turns):
        yield _turn_of_chat(talk, first=turn == 0)


def _agent(talk: _Talk) -> Iterator[Request]:
    turns = round(talk.median(42, 144, 5, 500))
    changes_tools = talk.random.randrange(turns) if talk.random.random() < 0.11 else -1
    tools, said = 0, 20_000
    for turn in range(turns):
        reset = turn and talk.random.random() < 0.025
        if not turn or turn == changes_tools or reset or talk.tokens > 180_000:
            tools += turn == changes_tools
            # Tools stand before all else. What was said before is said anew, or summed up.
            kept = said if turn == changes_tools else 20_000
            talk.clear()
            talk.say(20_000, f"tools {tools}")
            talk.say(kept)
        growth = round(talk.median(639, 3250, 32, 40_000))
        answer = min(growth, round(talk.median(223, 937, 10, 8000)))
        yield talk.ask(answer, named=True, think=talk.median(11, 175, 0.5, 1800))
        talk.say(max(16, growth - answer))
        said = talk.tokens - 20_000


def _hostile(talk: _Talk) -> Iterator[Request]:
    kind = talk.number % 10
    if kind < 6:  # one question, of which a quarter is what everybody sends: round robin loses little
        talk.say(1000, "everybody")
        talk.say(round(talk.mean(2850, 1500, 200, 12_000)))
        yield talk.ask(round(talk.mean(300, 150, 8, 2000)))
    elif kind < 9:  # a chat that sums itself up every few turns
        talk.say(1000, "everybody")
        for turn in range(12):
            if turn and turn % 5 == 0:
                talk.sum_up()
                talk.say(1000, "everybody")
                talk.say(600)
            yield _turn_of_chat(talk, first=turn == 0)
    else:  # one conversation that is gone on with in 24 ways at once
        for _ in range(24):
            talk.clear()
            talk.say(1000, "everybody")
            talk.say(5000, f"history {talk.number}")
            talk.say(200)
            request = talk.ask(200, named=True)
            talk.at = request.at
            yield request


_SHAPES = {
    Profile.CHAT: _Shape(400, 0.5, 64, _chat),
    Profile.AGENT: _Shape(40, 0.05, 512, _agent),
    Profile.HOSTILE: _Shape(300, 0.5, 64, _hostile),
}
