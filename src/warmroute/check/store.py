"""`--store`: does a prompt that one server has computed come back from a shared store on another one?"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass

from .probe import Asked, Bounds, Prober, Prompt, Speeds, compared, duration, speeds
from .target import CheckError, new_client, one_server

PROMPTS = 3
WAIT = 10.0
"""Seconds that a store gets to take what was computed, once nothing of it has come."""
_SOON = 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """The prompts of one run: `back` on the second server after the first had computed them, then `hits`; `cold` ones."""

    expected: int
    cold: list[Asked]
    back: list[Asked]
    hits: list[Asked]


@dataclass(frozen=True, slots=True)
class Report:
    """Two servers, what the second got of what the first had computed, and how fast."""

    first: str
    second: str
    model: str
    prompt_tokens: int
    expected_tokens: int
    reloaded_tokens: tuple[int, ...]
    source: str | None
    speeds: Speeds
    passed: bool
    verdict: str
    findings: tuple[str, ...]


async def run(
    first: str,
    second: str,
    *,
    model: str | None,
    key: str | None,
    prompt_tokens: int,
    bounds: Bounds,
    say: Callable[[str], None],
    dice: random.Random,
    wait: float = WAIT,
) -> Report:
    """Make the check. Raises CheckError where it cannot be made."""
    async with new_client() as http:
        targets = [await one_server(http, url, key, "--store") for url in (first, second)]
        if targets[0].url == targets[1].url:
            raise CheckError("the two addresses are the same: give --store the address of another server")
        name = (await targets[0].model(model)).name
        one, other = [Prober(target, await target.model(name), bounds, dice) for target in targets]
        await one.begin()
        await other.begin()
        length = min(one.length(prompt_tokens), other.length(prompt_tokens))
        need = 4 * PROMPTS * length
        bounds.plan(need, "checking the store")
        say(f"checking {one.target.url} and {other.target.url}, model {name}: {need:,} prompt tokens will be asked")
        before = other.values
        seen = await _look(one, other, length, wait)
    found = speeds(seen.cold, seen.hits, [asked for asked in seen.back if asked.reloaded])
    passed, verdict, findings = judge(seen, found, length)
    return Report(
        first=one.target.url,
        second=other.target.url,
        model=name,
        prompt_tokens=length,
        expected_tokens=seen.expected,
        reloaded_tokens=tuple(asked.reloaded for asked in seen.back),
        source=other.source(before),
        speeds=found,
        passed=passed,
        verdict=verdict,
        findings=tuple(findings),
    )


async def _look(one: Prober, other: Prober, length: int, wait: float) -> Seen:
    block = other.block_size
    seen = Seen((length - 1) // block * block, [], [], [])
    prompts: list[Prompt] = [one.prompt(length) for _ in range(PROMPTS)]
    ranks = [prober.engines[0] if len(prober.engines) > 1 else None for prober in (one, other)]
    for prompt in prompts:
        await one.ask(prompt, ranks[0])
    for _ in prompts:
        seen.cold.append(await other.ask(other.prompt(length), ranks[1]))
    await asyncio.sleep(min(wait, _SOON))
    for number, prompt in enumerate(prompts):
        seen.back.append(await other.ask(prompt, ranks[1]))
        seen.hits.append(await other.ask(prompt, ranks[1]))
        if number == 0 and not seen.back[0].reloaded:
            await asyncio.sleep(wait)
    return seen


def judge(seen: Seen, found: Speeds, length: int) -> tuple[bool, str, list[str]]:
    """Whether the second server got what the first had computed, in words, and what to change."""
    could = len(seen.back) * seen.expected
    reloaded, warm = sum(a.reloaded for a in seen.back), sum(a.warm for a in seen.back)
    if warm >= could // 2:
        return (
            False,
            f"the second server had {warm:,} of {could:,} tokens in its own cache: it is the first one by another name",
            ["give the addresses of two servers, not of what stands in front of them"],
        )
    words = compared(found, length)
    timed = [words] if words else []
    if reloaded >= could * 3 // 4:
        verdict = f"shared: the second server reloaded {reloaded:,} of {could:,} tokens that the first had computed"
        return True, verdict, [*timed, "a conversation that moves between these servers costs a reload, not a prefill"]
    if reloaded:
        verdict = (
            f"partly shared: the second server reloaded {reloaded:,} of {could:,} tokens that the first had computed"
        )
        return (
            False,
            verdict,
            [*timed, "give the store more room, or time: prompts come into it some while after their end"],
        )
    if any(asked.tier_asked for asked in seen.back):
        return (
            False,
            "not shared: the second server asked the tier behind its cache, which had nothing that the first had computed",
            [
                "name the same store on both servers in --kv-transfer-config; --kv-offloading-size alone is host memory"
                " of one server",
                "give both the same model, --block-size, --kv-cache-dtype and --prefix-caching-hash-algo"
                " (with xxhash, PYTHONHASHSEED too)",
            ],
        )
    return (
        False,
        "not shared: the second server has no tier behind its cache, and computed all that the first had computed",
        ["start both servers with --kv-transfer-config and the same store, to move conversations without a prefill"],
    )


def as_text(report: Report) -> str:
    """The report for people."""
    times = report.speeds
    rows = [
        ("prompts of", f"{report.prompt_tokens:,} tokens, in whole blocks {report.expected_tokens:,}"),
        ("reloaded by the second server", ", ".join(f"{tokens:,}" for tokens in report.reloaded_tokens)),
        ("new", duration(times.cold_s)),
        ("in its own cache", duration(times.hit_s)),
        ("from the store", duration(times.back_s)),
        ("the store is", report.source or "not named by vLLM"),
    ]
    lines = [f"{name:34}{value}" for name, value in rows]
    return "\n".join([*lines, report.verdict, *(f"- {finding}" for finding in report.findings)])


def as_dict(report: Report) -> dict[str, object]:
    return asdict(report)
