"""`warmroute check URL`: does the second turn of a conversation find the first one in the cache?"""

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx

from .core import vllm_metrics
from .core.exposition import parse

_WORDS = [
    "river",
    "stone",
    "cloud",
    "lamp",
    "garden",
    "window",
    "paper",
    "bridge",
    "copper",
    "winter",
    "market",
    "letter",
    "engine",
    "forest",
    "silver",
    "harbor",
]
_PROMPT_TOKENS = 2000
_TOKENS_PER_WORD = 1.4
_ANSWER_TOKENS = 16
_PATIENCE = 30.0
"""Seconds to wait for a router to have read its backends' counters again."""


class CheckError(Exception):
    """The check could not be made; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: who served it, its tokens by the answer's usage, and what the servers' counters rose by meanwhile."""

    backend: str | None
    decision: str | None
    prompt_tokens: int
    cached_tokens: int | None
    queries: int | None
    hits: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """Two turns, what the second should have found at least, and the verdict."""

    url: str
    model: str
    router: bool
    block_size: int | None
    turns: tuple[Turn, Turn]
    expected_hits: int | None
    found: int | None
    passed: bool
    verdict: str


def judge(turns: tuple[Turn, Turn], block_size: int | None, router: bool) -> tuple[int | None, int | None, bool, str]:
    """What turn 2 should have found (whole blocks of turn 1's prompt), what it found, whether that is enough, in words.

    The answer's own `cached_tokens` are believed before the counters, which other people's requests raise too.
    """
    first, second = turns
    found = second.cached_tokens if second.cached_tokens is not None else second.hits
    if found is None:
        return (
            None,
            None,
            False,
            (
                "nothing to judge by: the server shows neither prefix cache counters nor cached_tokens;"
                " start vLLM with --enable-prefix-caching and --enable-prompt-tokens-details"
            ),
        )
    if block_size is None:
        passed = found > 0
        return (
            None,
            found,
            passed,
            f"turn 2 found {found} tokens in the cache; the block size is not known, so no more can be said",
        )
    blocks = first.prompt_tokens // block_size
    expected = blocks * block_size
    if found >= expected:
        verdict = f"warm: turn 2 found {found} tokens, at least the {blocks} whole blocks ({expected} tokens) of turn 1"
        return expected, found, True, verdict
    if router and first.backend != second.backend:
        verdict = (
            f"cold: turn 1 was served by {first.backend} and turn 2 by {second.backend},"
            f" which found {found} of {expected} tokens"
        )
    elif found == 0:
        verdict = (
            f"cold: turn 2 found nothing of {expected} tokens;"
            " is prefix caching on, and does one server answer at this URL?"
        )
    else:
        verdict = (
            f"partly warm: turn 2 found {found} of {expected} tokens; blocks were evicted (too little KV cache for the load),"
            " or the chat template does not repeat earlier turns as they were"
        )
    return expected, found, False, verdict


class _Target:
    """A vLLM server, or a router with several behind it, as the check sees it."""

    def __init__(self, http: httpx.AsyncClient, url: str, admin: str | None) -> None:
        self._http = http
        self.url = url.rstrip("/")
        self._admin = admin.rstrip("/") if admin else None
        self.router = False

    async def find_out(self) -> None:
        """Learn whether this is a router, and where its admin listener is."""
        try:
            answer = await self._http.get(f"{self.url}/")
            self.router = answer.is_success and answer.json().get("name") == "warmroute"
        except (httpx.HTTPError, ValueError, AttributeError):
            self.router = False
        if self.router and self._admin is None:
            parts = urlsplit(self.url)
            host = parts.hostname or ""
            self._admin = urlunsplit((parts.scheme, f"[{host}]:8081" if ":" in host else f"{host}:8081", "", "", ""))

    async def get(self, url: str) -> httpx.Response:
        try:
            response = await self._http.get(url)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            hint = (
                "; give the router's admin address with --admin" if self._admin and url.startswith(self._admin) else ""
            )
            raise CheckError(
                f"GET {url} failed: {error or type(error).__name__}{hint or '; is a server running at this address?'}"
            ) from None
        if not response.is_success:
            raise CheckError(f"GET {url} answered {response.status_code}: {response.text[:200]}")
        return response

    async def model(self, wanted: str | None) -> str:
        names = [card["id"] for card in (await self.get(f"{self.url}/v1/models")).json().get("data", [])]
        if wanted is not None and wanted not in names:
            raise CheckError(f"no model {wanted!r} there; it has {', '.join(names) or 'none'}")
        if not names:
            raise CheckError(f"{self.url} lists no models; wait until a server there is ready, and try again")
        return wanted or names[0]

    async def values(self, after: float | None = None) -> vllm_metrics.Values:
        """vLLM's numbers by name; from a router, not before it has read them anew after the given time."""
        if not self.router:
            return parse((await self.get(f"{self.url}/metrics")).text, "it").values
        deadline = time.monotonic() + _PATIENCE
        while after is not None and not await self._read_since(after):
            if time.monotonic() > deadline:
                raise CheckError(
                    f"the router has not read its backends' metrics for {_PATIENCE:.0f} s; see its dashboard"
                )
            await asyncio.sleep(0.25)
        return parse((await self.get(f"{self._admin}/metrics")).text, "it").values

    async def _read_since(self, after: float) -> bool:
        asked = time.monotonic()
        state = (await self.get(f"{self._admin}/api/state")).json()
        ages = [b["scrape"]["age_s"] for b in state["backends"] if b["state"] != "down"]
        return all(age is not None and age < asked - after - 0.1 for age in ages)

    async def tokens(self, model: str, text: str) -> int | None:
        """How many tokens a text is, where the server has /tokenize."""
        try:
            answer = await self._http.post(f"{self.url}/tokenize", json={"model": model, "prompt": text})
            return int(answer.json()["count"]) if answer.is_success else None
        except (httpx.HTTPError, ValueError, KeyError):
            return None

    async def turn(
        self, model: str, messages: list[dict[str, str]], session: str
    ) -> tuple[dict[str, Any], httpx.Headers, float]:
        body = {"model": model, "messages": messages, "max_tokens": _ANSWER_TOKENS, "temperature": 0}
        started = time.monotonic()
        try:
            answer = await self._http.post(
                f"{self.url}/v1/chat/completions", json=body, headers={"x-session-id": session}
            )
        except httpx.HTTPError as error:
            raise CheckError(f"the chat request failed: {error or type(error).__name__}") from None
        if not answer.is_success:
            raise CheckError(f"the chat request was answered {answer.status_code}: {answer.text[:300]}")
        return answer.json(), answer.headers, time.monotonic() - started


async def run(url: str, *, admin: str | None, model: str | None, say: Callable[[str], None]) -> Report:
    """Make the check. Raises CheckError where it cannot be made."""
    async with httpx.AsyncClient(trust_env=False, timeout=httpx.Timeout(300, connect=5)) as http:
        target = _Target(http, url, admin)
        await target.find_out()
        name = await target.model(model)
        say(f"checking {target.url} ({'a warmroute router' if target.router else 'one server'}), model {name}")
        messages = [{"role": "user", "content": await _opening(target, name)}]
        session = f"check-{uuid.uuid4()}"
        turns: list[Turn] = []
        values = await target.values(time.monotonic())
        for question in (None, "And what follows from that?"):
            if question is not None:
                messages.append({"role": "user", "content": question})
            turn, answer, values = await _turn(target, name, messages, session, values)
            turns.append(turn)
            messages.append({"role": "assistant", "content": answer})
    block_size = _block_size(values)
    pair = (turns[0], turns[1])
    expected, found, passed, verdict = judge(pair, block_size, target.router)
    return Report(target.url, name, target.router, block_size, pair, expected, found, passed, verdict)


async def _turn(
    target: _Target, model: str, messages: list[dict[str, str]], session: str, before: vllm_metrics.Values
) -> tuple[Turn, str, vllm_metrics.Values]:
    """One turn, the text of its answer, and the counters after it."""
    answer, headers, seconds = await target.turn(model, messages, session)
    after = await target.values(time.monotonic())
    queries, hits = _rise(before, after)
    usage = answer.get("usage") or {}
    turn = Turn(
        backend=headers.get("x-warmroute-backend"),
        decision=headers.get("x-warmroute-decision"),
        prompt_tokens=int(usage.get("prompt_tokens", 0)),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        queries=queries,
        hits=hits,
        seconds=round(seconds, 3),
    )
    return turn, answer["choices"][0]["message"].get("content") or "", after


async def _opening(target: _Target, model: str) -> str:
    """A message of about 2,000 tokens that no cache has seen."""
    dice = random.Random(uuid.uuid4().int)
    text = " ".join(dice.choices(_WORDS, k=round(_PROMPT_TOKENS / _TOKENS_PER_WORD)))
    count = await target.tokens(model, text)
    if count:
        words = text.split()
        text = " ".join((words * 2)[: round(len(words) * _PROMPT_TOKENS / count)])
    return f"[{uuid.uuid4()}] {text}"


def _rise(before: vllm_metrics.Values, after: vllm_metrics.Values) -> tuple[int | None, int | None]:
    old, new = vllm_metrics.prefix_cache(before), vllm_metrics.prefix_cache(after)
    if new is None:
        return None, None
    queries, hits = (sum(series.values()) for series in new)
    past_queries, past_hits = (sum(series.values()) for series in old) if old else (0.0, 0.0)
    return int(queries - past_queries), int(hits - past_hits)


def _block_size(values: vllm_metrics.Values) -> int | None:
    """The largest block size that the servers name, so that what is expected is expected of all of them."""
    sizes = [vllm_metrics.label(labels, "block_size") for labels in values.get("vllm:cache_config_info", {})]
    known = [int(size) for size in sizes if size and size.isdigit()]
    return max(known) if known else None


def as_text(report: Report) -> str:
    """The report for people."""
    first, second = report.turns
    rows: list[tuple[str, object, object]] = [
        ("served by", first.backend or "-", second.backend or "-"),
        ("decision", first.decision or "-", second.decision or "-"),
        ("prompt tokens", first.prompt_tokens, second.prompt_tokens),
        ("cached_tokens of the answer", _shown(first.cached_tokens), _shown(second.cached_tokens)),
        ("counter of queries rose by", _shown(first.queries), _shown(second.queries)),
        ("counter of hits rose by", _shown(first.hits), _shown(second.hits)),
        ("hits expected at least", 0, _shown(report.expected_hits)),
        ("seconds", first.seconds, second.seconds),
    ]
    if not report.router:
        rows = rows[2:]
    wide = max(len(str(row[1])) for row in rows) + 2
    wide = max(wide, 10)
    lines = [f"{'':30}{'turn 1':>{wide}}{'turn 2':>{wide}}"]
    lines += [f"{name:30}{left!s:>{wide}}{right!s:>{wide}}" for name, left, right in rows]
    block = "unknown" if report.block_size is None else f"{report.block_size} tokens"
    return "\n".join([*lines, f"block size: {block}", report.verdict])


def as_dict(report: Report) -> Mapping[str, object]:
    return asdict(report)


def _shown(value: int | None) -> object:
    return "no data" if value is None else value
