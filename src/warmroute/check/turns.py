"""The plain check: does the second turn of a conversation find the first one in the cache?"""

import random
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..core import vllm_metrics
from .target import CheckError, Target, block_size, new_client, rise
from .words import WORDS

_PROMPT_TOKENS = 2000
_TOKENS_PER_WORD = 1.4
_ANSWER_TOKENS = 16


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


def judge(
    turns: tuple[Turn, Turn], block_size: int | None, router: bool, engines: int = 1
) -> tuple[int | None, int | None, bool, str]:
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
    return expected, found, False, _cold(turns, found, expected, router, engines)


def _cold(turns: tuple[Turn, Turn], found: int, expected: int, router: bool, engines: int) -> str:
    first, second = turns
    if router and first.backend != second.backend:
        return (
            f"cold: turn 1 was served by {first.backend} and turn 2 by {second.backend},"
            f" which found {found} of {expected} tokens"
        )
    if found:
        return (
            f"partly warm: turn 2 found {found} of {expected} tokens; blocks were evicted (too little KV cache for the load),"
            " or the chat template does not repeat earlier turns as they were"
        )
    if not router and engines > 1:
        return (
            f"cold: turn 2 found nothing of {expected} tokens; the server has {engines} engines with a cache each,"
            " and picks one for each request that names none: send X-data-parallel-rank, or put warmroute in front"
        )
    return f"cold: turn 2 found nothing of {expected} tokens; is prefix caching on, and does one server answer at this URL?"


async def run(
    url: str,
    *,
    admin: str | None,
    model: str | None,
    say: Callable[[str], None],
    key: str | None = None,
    token: str | None = None,
) -> Report:
    """Make the check. Raises CheckError where it cannot be made."""
    async with new_client() as http:
        target = Target(http, url, admin, key, token)
        await target.find_out()
        name = (await target.model(model)).name
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
    size, engines = block_size(values), len(vllm_metrics.engines(values))
    pair = (turns[0], turns[1])
    expected, found, passed, verdict = judge(pair, size, target.router, engines)
    return Report(target.url, name, target.router, size, pair, expected, found, passed, verdict)


async def _turn(
    target: Target, model: str, messages: list[dict[str, str]], session: str, before: vllm_metrics.Values
) -> tuple[Turn, str, vllm_metrics.Values]:
    """One turn, the text of its answer, and the counters after it."""
    body = {"model": model, "messages": messages, "max_tokens": _ANSWER_TOKENS, "temperature": 0}
    started = time.monotonic()
    response = await target.post("/v1/chat/completions", body, {"x-session-id": session})
    seconds, answer = time.monotonic() - started, response.json()
    after = await target.values(time.monotonic())
    queries, hits = _rises(before, after)
    usage: dict[str, Any] = answer.get("usage") or {}
    turn = Turn(
        backend=response.headers.get("x-warmroute-backend"),
        decision=response.headers.get("x-warmroute-decision"),
        prompt_tokens=int(usage.get("prompt_tokens", 0)),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        queries=queries,
        hits=hits,
        seconds=round(seconds, 3),
    )
    try:
        return turn, answer["choices"][0]["message"].get("content") or "", after
    except (KeyError, IndexError, AttributeError):
        raise CheckError(f"{target.url} gave an answer without a message: {response.text[:200]}") from None


async def _opening(target: Target, model: str) -> str:
    """A message of about 2,000 tokens that no cache has seen."""
    dice = random.Random(uuid.uuid4().int)  # nosec B311  # of prompts, not of secrets
    words = dice.choices(WORDS, k=round(_PROMPT_TOKENS / _TOKENS_PER_WORD))
    tokens = await target.tokenize(model, " ".join(words))
    if tokens:
        words = (words * 2)[: round(len(words) * _PROMPT_TOKENS / len(tokens))]
    return f"[{uuid.uuid4()}] {' '.join(words)}"


def _rises(before: vllm_metrics.Values, after: vllm_metrics.Values) -> tuple[int | None, int | None]:
    old, new = vllm_metrics.prefix_cache(before), vllm_metrics.prefix_cache(after)
    if new is None:
        return None, None
    return rise(old and old[0], new[0]), rise(old and old[1], new[1])


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
    wide = max(10, *(len(str(row[1])) + 2 for row in rows))
    lines = [f"{'':30}{'turn 1':>{wide}}{'turn 2':>{wide}}"]
    lines += [f"{name:30}{left!s:>{wide}}{right!s:>{wide}}" for name, left, right in rows]
    block = "unknown" if report.block_size is None else f"{report.block_size} tokens"
    return "\n".join([*lines, f"block size: {block}", report.verdict])


def as_dict(report: Report) -> Mapping[str, object]:
    return asdict(report)


def _shown(value: int | None) -> object:
    return "no data" if value is None else value
