"""Conversations of four kinds in one scripted run, and for each turn what its token ids prove of the missed tokens."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.serving import Serving
from tests.vllm.conversations import text
from tests.vllm.servers import MODEL
from warmroute.core.split import Outcome

BLOCK = 32
MISSED = (Outcome.MOVED, Outcome.EVICTED, Outcome.PROMPT_CHANGED)
BACK = {"paused": 5, "moved": 3}
"""The round in which conversations of these quarters come back, from their pause or elsewhere."""
_DRAINED_S = 30.0

Json = dict[str, Any]


@dataclass
class Proof:
    """One turn as token ids prove it: tokens that were computed here or elsewhere and were not cached, and why."""

    missed: Counter[tuple[Outcome, str]]
    prompt: int
    cached: int


@dataclass
class Chat:
    """A conversation of the quarter "clock", "paused", "moved" or "behaves"; `back` is the turn with which it came back."""

    quarter: str
    number: int
    session: str = field(default_factory=lambda: str(uuid.uuid4()))
    messages: list[Json] = field(default_factory=list)
    proofs: list[Proof] = field(default_factory=list)
    known: list[int] = field(default_factory=list)
    served_by: list[str] = field(default_factory=list)
    back: int | None = None

    def __post_init__(self) -> None:
        self.dice = random.Random(f"{self.quarter} {self.number}")
        self.system = text(self.dice, 90)

    async def turn(self, http: httpx.AsyncClient, url: str, *, again: bool = False) -> None:
        """Ask the next question, or the last one again, and note what its ids prove."""
        if again:
            self.messages.pop()
        else:
            self.messages.append({"role": "user", "content": text(self.dice, 20)})
        turn = len(self.proofs)
        clock = f"It is 2026-09-12 10:{10 + turn}:30. " if self.quarter == "clock" else ""
        system = {"role": "system", "content": f"{clock}You are {self.session}. {self.system}"}
        body = {
            "model": MODEL,
            "messages": [system, *self.messages],
            "max_tokens": 12,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        headers = {"x-session-id": self.session, "x-request-id": f"{self.quarter}-{self.number}-{turn}"}
        response = await http.post(f"{url}/v1/chat/completions", json=body, headers=headers)
        assert response.status_code == 200, response.text
        answer, backend = response.json(), response.headers["x-warmroute-backend"]
        ids, generated = answer["prompt_token_ids"], answer["choices"][0]["token_ids"]
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        moved = bool(self.served_by) and backend != self.served_by[-1]
        self.proofs.append(Proof(self._missed(ids, cached, moved), len(ids), cached))
        self.known = [*ids, *generated[:-1]]  # the last token is never computed
        self.served_by.append(backend)
        self.messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})

    def _missed(self, ids: Sequence[int], cached: int, moved: bool) -> Counter[tuple[Outcome, str]]:
        same = next((i for i, (a, b) in enumerate(zip(self.known, ids, strict=False)) if a != b), None)
        if same is None:
            same = min(len(self.known), len(ids))
        there = min(same, len(ids) - 1) // BLOCK * BLOCK
        missed: Counter[tuple[Outcome, str]] = Counter()
        gone = (Outcome.MOVED, "drain") if moved else (Outcome.EVICTED, "evicted")
        missed[gone] = max(0, there - cached)
        changed = (Outcome.PROMPT_CHANGED, "clock" if self.quarter == "clock" else "answer")
        missed[changed] = max(0, min(len(self.known), len(ids)) - max(same, cached)) if same < len(self.known) else 0
        return +missed


@dataclass
class Sums:
    """Missed tokens of one quarter: as proved, as the router tells them, and those of both that agree, turn by turn.

    `reloads` has, for each conversation that came back, that turn's proof and the tokens told as reloaded.
    """

    turns: int = 0
    proved: Counter[tuple[Outcome, str]] = field(default_factory=Counter)
    told: Counter[tuple[Outcome, str]] = field(default_factory=Counter)
    right: int = 0
    reloaded: int = 0
    reloads: list[tuple[Proof, int]] = field(default_factory=list)


async def quarters(http: httpx.AsyncClient, router: Serving, a: str, b: str, *, again: bool = False) -> list[Chat]:
    """The scripted run: 16 conversations in four quarters; one quarter begins on server `a`, all others on `b`.

    Those that pause miss three rounds in which others fill the cache. After the third round `a` is drained. With `again`, the
    turns after pause and move ask the last question once more.
    """
    chats = [Chat(quarter, n) for quarter in ("moved", "clock", "paused", "behaves") for n in range(4)]
    await _drain(http, router, b)
    for chat in chats[:4]:
        await chat.turn(http, router.data)
    await _undrain(http, router, b)
    await _drain(http, router, a)
    for chat in chats[4:]:
        await chat.turn(http, router.data)
    assert [chat.served_by for chat in chats] == [[a]] * 4 + [[b]] * 12
    dice = random.Random(0)
    for number in range(1, 7):
        if number == 3:
            await _undrain(http, router, a)
            await _drain(http, router, a, deadline=0.05)
            await _until_drained(http, router, a)
        for chat in chats:
            if chat.quarter == "paused" and number in (2, 3, 4):
                continue
            back = BACK.get(chat.quarter) == number
            chat.back = len(chat.proofs) if back else chat.back
            await chat.turn(http, router.data, again=again and back)
        if number in (2, 3, 4):
            await _fill(http, router.data, dice)
    return chats


async def _fill(http: httpx.AsyncClient, url: str, dice: random.Random) -> None:
    """Prompts of others: together with a round of the script less than the cache holds, and in three rounds more."""
    for _ in range(4):
        body = {"model": MODEL, "max_tokens": 2, "prompt": f"{uuid.uuid4()} {text(dice, 350)}"}
        response = await http.post(f"{url}/v1/completions", json=body, headers={"x-session-id": str(uuid.uuid4())})
        assert response.status_code == 200, response.text


async def _drain(http: httpx.AsyncClient, router: Serving, name: str, deadline: float = 3600.0) -> None:
    answer = await http.post(f"{router.admin}/api/backends/{name}/drain", json={"deadline": deadline})
    assert answer.status_code == 200, answer.text


async def _until_drained(http: httpx.AsyncClient, router: Serving, name: str) -> None:
    async with asyncio.timeout(_DRAINED_S):
        while True:
            backends = (await http.get(f"{router.admin}/api/state")).json()["backends"]
            if next(b for b in backends if b["name"] == name)["state"] == "drained":
                return
            await asyncio.sleep(0.05)


async def _undrain(http: httpx.AsyncClient, router: Serving, name: str) -> None:
    assert (await http.post(f"{router.admin}/api/backends/{name}/undrain")).status_code == 200


async def judged(http: httpx.AsyncClient, router: Serving, chats: Sequence[Chat], log: str) -> dict[str, Sums]:
    """The router's account of each turn beside its proof, by quarter; `log` is its access log."""
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    digests = {line["id"].rpartition("-")[0]: line["session"] for line in lines}
    found: dict[str, Sums] = {}
    for chat in chats:
        sums = found.setdefault(chat.quarter, Sums())
        shown = digests[f"{chat.quarter}-{chat.number}"]
        turns = (await http.get(f"{router.admin}/api/sessions/{shown}/turns")).json()["turns"]
        for number, (turn, proof) in enumerate(zip(turns, chat.proofs, strict=True)):
            assert (turn["prompt_tokens"], turn["cached_tokens"]) == (proof.prompt, proof.cached)
            assert sum(turn["outcomes"].values()) == proof.prompt
            said: Counter[tuple[Outcome, str]] = Counter()
            for outcome, tokens in turn["outcomes"].items():
                if outcome in MISSED:
                    said[Outcome(outcome), turn["cause"]] += tokens
            sums.turns += 1
            reloaded = turn["outcomes"].get(Outcome.RELOADED, 0)
            sums.reloaded += reloaded
            if number == chat.back:
                sums.reloads.append((proof, reloaded))
            sums.told += said
            sums.proved += proof.missed
            sums.right += (said & proof.missed).total()
    return found


def table(found: dict[str, Sums]) -> str:
    """The sums for people."""
    rows = [f"{'quarter':9}{'turns':>6}{'missed':>8}{'told':>8}{'agree':>8}{'reloaded':>10}  told as"]
    for name, sums in found.items():
        told_as = ", ".join(f"{outcome}:{cause} {n}" for (outcome, cause), n in sums.told.most_common())
        rows.append(
            f"{name:9}{sums.turns:6}{sums.proved.total():8}{sums.told.total():8}{sums.right:8}{sums.reloaded:10}"
            f"  {told_as or 'nothing'}"
        )
    return "\n".join(rows)
