"""A lively chat workload against one URL: users with conversations, pauses and second thoughts."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import httpx

from warmroute.sim.chatter import PERSONAS, follow_up, opening, pasted_notes, system_prompt

_KEPT_LATENCIES: Final = 2000
_RETRY_PAUSE_S: Final = 1.0


@dataclass(frozen=True)
class Habits:
    """How the users behave. Times in seconds; shares between 0 and 1; ranges include both ends.

    `leaving` is the share of answers that a user does not wait for to end. `long` conversations begin with pasted
    notes of `note_sentences` sentences.
    """

    think_s: tuple[float, float] = (0.5, 4.0)
    turns: tuple[int, int] = (2, 12)
    answer_tokens: tuple[int, int] = (16, 80)
    leaving: float = 0.05
    long: float = 0.3
    note_sentences: tuple[int, int] = (20, 60)


@dataclass(eq=False)
class Turn:
    """One request of a conversation, and how it went.

    `answer` is what was received, whole when `complete`; `stopped` says that the model ended it by itself.
    """

    session: str
    messages: Sequence[dict[str, str]]
    max_tokens: int
    leave_after: int | None
    answer: str = ""
    complete: bool = False
    stopped: bool = False
    error: str | None = None


class Listener(Protocol):
    """Is told of each request."""

    def started(self, turn: Turn) -> None:
        """The request is about to be sent."""

    def ended(self, turn: Turn) -> None:
        """Nothing more comes of it: it is complete, was left by its user, or failed."""


@dataclass(slots=True)
class WorkloadStats:
    """Totals so far. `left` requests were ended by their user and are no errors; the first token time is in seconds."""

    requests: int = 0
    errors: int = 0
    left: int = 0
    conversations: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    ttft_p50: float | None = None
    last_error: str | None = None


class Workload:
    """`users` people who talk, each in one conversation after the other, each with its own ``X-Session-ID``.

    What they say and how long they think follows from `seed`; what is answered does not change it. `clock` and `sleep`
    tell and spend seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        users: int,
        model: str | None = None,
        seed: int = 0,
        habits: Habits | None = None,
        listener: Listener | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        if users < 1:
            raise ValueError(f"users is {users}; give at least 1")
        self._url = url
        self._users = users
        self._model = model
        self._seed = seed
        self._habits = habits or Habits()
        self._listener = listener
        self._clock = clock
        self._sleep = sleep
        self._first_tokens: deque[float] = deque(maxlen=_KEPT_LATENCIES)
        self._stats = WorkloadStats()

    async def run(self, duration_s: float | None = None) -> None:
        """Talk for so long, or until cancelled. Requests that run at the end are broken off and not counted."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self._users)
        async with httpx.AsyncClient(base_url=self._url, trust_env=False, timeout=60, limits=limits) as client:
            try:
                async with asyncio.timeout(duration_s), asyncio.TaskGroup() as group:
                    for number in range(self._users):
                        group.create_task(self._user(client, number))
            except TimeoutError:
                return

    def stats(self) -> WorkloadStats:
        """Totals so far; a copy."""
        found = self._stats
        p50 = statistics.median(self._first_tokens) if self._first_tokens else None
        return WorkloadStats(
            requests=found.requests,
            errors=found.errors,
            left=found.left,
            conversations=found.conversations,
            prompt_tokens=found.prompt_tokens,
            cached_tokens=found.cached_tokens,
            completion_tokens=found.completion_tokens,
            ttft_p50=p50,
            last_error=found.last_error,
        )

    async def _user(self, client: httpx.AsyncClient, number: int) -> None:
        rng = random.Random(f"{self._seed}/{number}")  # nosec B311  # of made-up chats
        await self._sleep(rng.uniform(0, self._habits.think_s[1]))
        for conversation in range(1_000_000_000):
            self._stats.conversations += 1
            await self._conversation(client, Script(rng, self._habits), f"user-{number}-{conversation}")

    async def _conversation(self, client: httpx.AsyncClient, script: Script, session: str) -> None:
        messages = [{"role": "system", "content": script.system}]
        for planned in script.turns:
            messages.append({"role": "user", "content": planned.message})
            turn = Turn(session, list(messages), planned.max_tokens, planned.leave_after)
            await self._take_turn(client, turn)
            if turn.error is not None:
                await self._sleep(_RETRY_PAUSE_S)
                return
            messages.append({"role": "assistant", "content": turn.answer})
            await self._sleep(planned.think_s)

    async def _take_turn(self, client: httpx.AsyncClient, turn: Turn) -> None:
        if self._listener is not None:
            self._listener.started(turn)
        try:
            await self._ask(client, turn)
        except (httpx.HTTPError, json.JSONDecodeError, _BadAnswer) as error:
            turn.error = str(error) or type(error).__name__
        finally:
            if self._listener is not None:
                self._listener.ended(turn)
        self._stats.requests += 1
        if turn.error is not None:
            self._stats.errors += 1
            self._stats.last_error = turn.error
        elif not turn.complete:
            self._stats.left += 1

    async def _ask(self, client: httpx.AsyncClient, turn: Turn) -> None:
        body: dict[str, Any] = {
            "messages": turn.messages,
            "max_tokens": turn.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._model is not None:
            body["model"] = self._model
        asked, pieces = self._clock(), 0
        headers = {"X-Session-ID": turn.session}
        async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
            if answer.status_code != httpx.codes.OK:
                raise _BadAnswer(
                    f"status {answer.status_code}: {(await answer.aread())[:200].decode(errors='replace')}"
                )
            async for chunk in _chunks(answer):
                if not self._note(turn, chunk):
                    continue
                pieces += 1
                if pieces == 1:
                    self._first_tokens.append(self._clock() - asked)
                if pieces == turn.leave_after:
                    return
        turn.complete = True

    def _note(self, turn: Turn, chunk: dict[str, Any]) -> bool:
        """Take in one chunk; True when it has text."""
        usage = chunk.get("usage")
        if usage:
            self._stats.prompt_tokens += usage["prompt_tokens"]
            self._stats.completion_tokens += usage["completion_tokens"]
            details = usage.get("prompt_tokens_details") or {}
            self._stats.cached_tokens += details.get("cached_tokens") or 0
        text = ""
        for choice in chunk["choices"]:
            text += choice["delta"].get("content") or ""
            turn.stopped = choice.get("finish_reason") == "stop"
        turn.answer += text
        return bool(text)

    def __repr__(self) -> str:
        return f"Workload({self._url}, users={self._users}, {self.stats()!r})"


@dataclass(frozen=True)
class PlannedTurn:
    """What a user says, how long an answer may be, after how many pieces the user leaves it, and the pause after."""

    message: str
    max_tokens: int
    leave_after: int | None
    think_s: float


@dataclass(init=False)
class Script:
    """One conversation as a user will hold it, whatever is answered."""

    system: str
    turns: Sequence[PlannedTurn] = field(default_factory=list)

    def __init__(self, rng: random.Random, habits: Habits) -> None:
        self.system = system_prompt(rng.randrange(PERSONAS))
        is_long = rng.random() < habits.long
        first = pasted_notes(rng, rng.randint(*habits.note_sentences)) if is_long else opening(rng)
        count = rng.randint(*habits.turns)
        messages = [first, *(follow_up(rng) for _ in range(count - 1))]
        self.turns = [self._plan(rng, habits, message) for message in messages]

    @staticmethod
    def _plan(rng: random.Random, habits: Habits, message: str) -> PlannedTurn:
        max_tokens = rng.randint(*habits.answer_tokens)
        leave_after = rng.randint(1, max(1, max_tokens // 4)) if rng.random() < habits.leaving else None
        return PlannedTurn(message, max_tokens, leave_after, rng.uniform(*habits.think_s))


class _BadAnswer(Exception):
    """An answer that is no whole answer."""


async def _chunks(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each event up to the end mark. Raises _BadAnswer for an error event or a missing end mark."""
    async for line in answer.aiter_lines():
        if not line.startswith("data: "):
            continue
        data = line[len("data: ") :]
        if data == "[DONE]":
            return
        chunk = json.loads(data)
        if "error" in chunk:
            raise _BadAnswer(f"error in the stream: {chunk['error']}")
        yield chunk
    raise _BadAnswer("the stream ended without [DONE]")
