"""Owns what steady clients ask, the same in every run, and the judgement whether an answer came whole."""

import asyncio
import json
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx

from tests.vllm.servers import MODEL

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_WORDS = ["alpha", "beta", "gamma", "delta", "river", "stone", "ünïcode", "日本", "привет", "😀"]
TURNS = 5
"""Turns of a conversation; then its client begins another one, under another id."""
_TIMEOUT_S = 300.0


class Ask(NamedTuple):
    """One request, and all that its text depends on: kind is a key of PATHS, tokens how many the answer has."""

    kind: str
    stream: bool
    client: int
    chat: int
    turn: int
    tokens: int

    @property
    def session(self) -> str:
        return f"client-{self.client}-chat-{self.chat}"

    @property
    def label(self) -> str:
        return f"{self.kind} {'stream' if self.stream else 'JSON'}, client {self.client}, turn {self.turn + 1}"

    def body(self) -> dict[str, Any]:
        """At temperature 0. Earlier answers are from the script too, so that a turn asks the same whatever came before."""
        dice = random.Random(f"{self.client} {self.chat}")
        said = [" ".join(dice.choices(_WORDS, k=40)) for _ in range(2 * self.turn + 1)]
        asked = {"model": MODEL, "max_tokens": self.tokens, "temperature": 0, "ignore_eos": True}
        if self.stream:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.kind == "completions":
            return {**asked, "prompt": "\n".join(said)}
        roles = ("user", "assistant")
        return {**asked, "messages": [{"role": roles[n % 2], "content": text} for n, text in enumerate(said)]}


@dataclass
class Answer:
    """What came back; `events` counts while it streams, `at` is when it was asked, in seconds of the monotonic clock."""

    at: float = 0.0
    seconds: float = 0.0
    events: int = 0
    text: str = ""
    failure: str | None = None
    status: int = 0
    retry_after: str | None = None


@dataclass
class _Heard:
    """What makes an answer whole: it was finished, told its usage, and a stream said [DONE] last."""

    done: int = 0
    finish: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    error: object = None

    def take(self, event: dict[str, Any], into: Answer) -> None:
        into.events += 1
        if "error" in event:
            self.error = event["error"]
            return
        for choice in event["choices"]:
            said = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
            into.text += said.get("content") or ""
            if choice["finish_reason"]:
                self.finish.append(choice["finish_reason"])
        if event.get("usage"):
            self.tokens.append(event["usage"]["completion_tokens"])

    def failure(self, ask: Ask) -> str | None:
        if self.error is not None:
            return f"error event: {str(self.error)[:150]}"
        if ask.stream and self.done != 1:
            return "no [DONE]"
        if self.finish != ["length"] or self.tokens != [ask.tokens]:
            return f"not whole: finished {self.finish}, tokens {self.tokens} of {ask.tokens}"
        return None


async def answer_to(http: httpx.AsyncClient, url: str, ask: Ask, into: Answer | None = None) -> Answer:
    """Ask once, without another try; whatever goes wrong is told in the answer's `failure`."""
    got = into or Answer()
    got.at, heard = time.monotonic(), _Heard()
    headers = {"x-session-id": ask.session}
    try:
        async with http.stream("POST", url + PATHS[ask.kind], json=ask.body(), headers=headers) as response:
            got.status, got.retry_after = response.status_code, response.headers.get("retry-after")
            if response.status_code != 200:
                got.failure = f"HTTP {response.status_code}: {(await response.aread())[:150]!r}"
            elif ask.stream:
                async for line in response.aiter_lines():
                    heard.done += line == "data: [DONE]"
                    if line.startswith("data: {"):
                        heard.take(json.loads(line[6:]), got)
            else:
                heard.take(json.loads(await response.aread()), got)
            got.failure = got.failure or heard.failure(ask)
    except (httpx.HTTPError, ValueError) as error:
        got.failure = f"cut: {error!r}"
    got.seconds = time.monotonic() - got.at
    return got


def new_client() -> httpx.AsyncClient:
    """An HTTP client that may be used by many conversations at once and has no proxy."""
    return httpx.AsyncClient(timeout=_TIMEOUT_S, limits=httpx.Limits(max_connections=None), trust_env=False)


class Clients:
    """Closed loops: each client asks, takes the answer, and asks again, until `stop` or until its asks are through.

    Between two asks it waits for `pause` seconds and, while servers start (`yielding`), at least as long as the last answer
    took, so that those get a share of a busy CPU.
    """

    def __init__(self, url: str, clients: Iterable[Iterable[Ask]], *, pause: float, yielding: bool = False) -> None:
        self.answers: dict[Ask, Answer] = {}
        self.stop = False
        self._url, self._clients = url, list(clients)
        self._pause, self._yielding = pause, yielding

    def __repr__(self) -> str:
        return f"<Clients of {self._url}: {len(self._clients)}, {len(self.answers)} answers, {len(self.failed)} failed>"

    @property
    def failed(self) -> dict[Ask, Answer]:
        return {ask: answer for ask, answer in self.answers.items() if answer.failure}

    async def run(self) -> None:
        async with new_client() as http, asyncio.TaskGroup() as group:
            for asks in self._clients:
                group.create_task(self._loop(http, asks))

    async def _loop(self, http: httpx.AsyncClient, asks: Iterable[Ask]) -> None:
        for ask in asks:
            if self.stop:
                return
            answer = await answer_to(http, self._url, ask)
            self.answers[ask] = answer
            await asyncio.sleep(max(self._pause, answer.seconds if self._yielding else 0.0))
