"""`--eviction`: after how many tokens of others is a conversation gone from the cache, and does it come back by reload?"""

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from ..core import vllm_metrics
from .probe import Asked, Bounds, Prober, Prompt, Speeds, compared, duration, speeds
from .target import CheckError, new_client, one_server

STEPS = (0.25, 0.5, 0.75, 0.875, 1.0, 1.125, 1.25)
"""Shares of the cache that others have filled when a prompt comes back."""
_ENOUGH = 3
"""Prompts that were gone, after which nothing more is filled."""
_PART = 16
"""A prompt is at most this part of the cache."""


class Back(StrEnum):
    """How prompts that were evicted came back."""

    RELOAD = "reload"
    PARTLY = "partly"  # some of it by reload
    PREFILL = "prefill"
    NEVER_GONE = "never_gone"
    NO_CACHE = "no_cache"


@dataclass(frozen=True, slots=True)
class Return:
    """A prompt that came back after so many tokens of others (`pressure`), and what it found of `expected`."""

    pressure: int
    asked: Asked
    expected: int

    @property
    def gone(self) -> bool:
        return self.asked.warm < self.expected / 2


@dataclass(frozen=True, slots=True)
class Seen:
    """All that the check saw: prompts when they were new, again at once, and after pressure; the tier by vLLM's word."""

    cache_tokens: int
    expected: int
    cold: list[Asked] = field(default_factory=list)
    hits: list[Asked] = field(default_factory=list)
    returns: list[Return] = field(default_factory=list)
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Tokens of others up to which prompts were warm, and from which on they were gone; how they came back, how fast."""

    url: str
    model: str
    cache_tokens: int
    prompt_tokens: int
    asked_tokens: int
    requests: int
    back: Back
    warm_up_to: int | None
    gone_from: int | None
    reloaded_tokens: int
    source: str | None
    speeds: Speeds
    passed: bool
    verdict: str
    findings: tuple[str, ...]


async def run(
    url: str,
    *,
    model: str | None,
    key: str | None,
    prompt_tokens: int,
    bounds: Bounds,
    say: Callable[[str], None],
    dice: random.Random,
) -> Report:
    """Make the check. Raises CheckError where it cannot be made."""
    async with new_client() as http:
        target = await one_server(http, url, key, "--eviction")
        prober = Prober(target, await target.model(model), bounds, dice)
        await prober.begin()
        cache = capacity(prober.values)
        if cache is None:
            raise CheckError(f"{target.url} does not say how large its KV cache is (vllm:cache_config_info)")
        length = prober.length(min(prompt_tokens, cache // _PART))
        if length * _PART > 2 * cache:
            raise CheckError(f"the KV cache of {cache} tokens is too small for this check; give vLLM more")
        need = 2 * (len(STEPS) + 1) * length + round(STEPS[-1] * cache)
        bounds.plan(need, f"filling the cache of {cache:,} tokens")
        say(
            f"checking {target.url}, model {prober.model.name}: about {need:,} prompt tokens will be asked; they push what"
            f" others have there out of its cache of {cache:,} tokens"
        )
        seen = await _look(prober, cache, length, say)
    if prober.others > need // 10:
        say(f"others asked {prober.others:,} prompt tokens meanwhile, which blurs these figures")
    return _report(prober, seen, length)


async def _look(prober: Prober, cache: int, length: int, say: Callable[[str], None]) -> Seen:
    block = prober.block_size
    rank = prober.engines[0] if len(prober.engines) > 1 else None
    seen = Seen(cache, (length - 1) // block * block)
    placed: list[tuple[Prompt, int]] = []
    before = prober.values
    for _ in range(len(STEPS) + 1):
        prompt = prober.prompt(length)
        seen.cold.append(await prober.ask(prompt, rank))
        placed.append((prompt, prober.computed))
    seen.hits.append(await prober.ask(placed.pop()[0], rank))
    filled = 0
    for step, (prompt, at) in zip(STEPS, placed, strict=True):
        if seen.hits[0].cached < seen.expected // 2 or sum(back.gone for back in seen.returns) >= _ENOUGH:
            break
        await prober.fill(round(step * cache) - filled, max(block, min(prober.length(4096), cache // _PART)), rank)
        filled = round(step * cache)
        pressure = prober.computed - at
        back = Return(pressure, await prober.ask(prompt, rank), seen.expected)
        seen.returns.append(back)
        how = "reloaded" if back.asked.reloaded else "computed anew" if back.gone else "warm"
        say(f"after {pressure:,} tokens of others: {how}")
        if not back.gone:
            seen.hits.append(back.asked)
    return Seen(cache, seen.expected, seen.cold, seen.hits, seen.returns, prober.source(before))


def capacity(values: vllm_metrics.Values) -> int | None:
    """Tokens that the cache of one engine holds; None where the server does not say."""
    info = values.get("vllm:cache_config_info") or {}
    for labels in info:
        tokens = vllm_metrics.label(labels, "kv_cache_size_tokens")
        if tokens is not None and tokens.isdigit() and int(tokens) > 0:
            return int(tokens)
        blocks, size = (vllm_metrics.label(labels, name) for name in ("num_gpu_blocks", "block_size"))
        if blocks and size and blocks.isdigit() and size.isdigit():
            return int(blocks) * int(size) // max(1, len(info))  # the blocks are those of all engines
    return None


def _report(prober: Prober, seen: Seen, length: int) -> Report:
    gone = [back for back in seen.returns if back.gone]
    found = speeds(seen.cold, seen.hits, [back.asked for back in gone if back.asked.reloaded])
    back = how(seen)
    verdict, findings = judge(seen, back, found, length)
    return Report(
        url=prober.target.url,
        model=prober.model.name,
        cache_tokens=seen.cache_tokens,
        prompt_tokens=length,
        asked_tokens=prober.bounds.used,
        requests=prober.bounds.requests,
        back=back,
        warm_up_to=max((r.pressure for r in seen.returns if not r.gone), default=None),
        gone_from=min((r.pressure for r in gone), default=None),
        reloaded_tokens=sum(r.asked.reloaded for r in gone),
        source=seen.source,
        speeds=found,
        passed=back is not Back.NO_CACHE and not (back is Back.PREFILL and any(r.asked.tier_asked for r in gone)),
        verdict=verdict,
        findings=tuple(findings),
    )


def how(seen: Seen) -> Back:
    """How the prompts that were gone came back."""
    if not seen.hits or seen.hits[0].cached < seen.expected // 2:
        return Back.NO_CACHE
    gone = [back.asked for back in seen.returns if back.gone]
    if not gone:
        return Back.NEVER_GONE
    reloaded, could = sum(a.reloaded for a in gone), len(gone) * seen.expected
    if not reloaded:
        return Back.PREFILL
    return Back.RELOAD if reloaded >= could * 3 // 4 else Back.PARTLY


_LONGER = (
    "to keep paused conversations longer: more KV cache (--gpu-memory-utilization, --kv-cache-memory-bytes,"
    " --kv-cache-dtype fp8), or fewer conversations on this server"
)
_TIER = (
    "what is evicted is computed again: --kv-offloading-size GIB keeps it in host memory, and a store by"
    " --kv-transfer-config lets other servers have it too"
)


def judge(seen: Seen, back: Back, found: Speeds, length: int) -> tuple[str, list[str]]:
    """The verdict, and what to change."""
    gone = [back.asked for back in seen.returns if back.gone]
    match back:
        case Back.NO_CACHE:
            return (
                f"no cache: a prompt of {length:,} tokens asked twice found {seen.hits[0].cached if seen.hits else 0}"
                " the second time",
                ["start vLLM with --enable-prefix-caching, and without --no-enable-prefix-caching"],
            )
        case Back.NEVER_GONE:
            most = max((r.pressure for r in seen.returns), default=0)
            return f"not evicted: prompts were warm after {most:,} tokens of others", []
        case Back.PREFILL:
            verdict = f"evicted, and back by prefill: {_range(seen)}; the tier behind the cache gave nothing"
            cost = [f"{duration(found.prefill)} per 1,000 tokens computed"] if found.prefill is not None else []
            if any(asked.tier_asked for asked in gone):
                advice = "the tier behind the cache has nothing of it: raise --kv-offloading-size, or look at the store"
                return verdict, [*cost, advice, _LONGER]
            return f"evicted, and back by prefill: {_range(seen)}", [*cost, _TIER, _LONGER]
        case Back.RELOAD | Back.PARTLY:
            tokens = sum(asked.reloaded for asked in gone)
            part = "" if back is Back.RELOAD else f", {tokens:,} of {len(gone) * seen.expected:,} tokens"
            source = f" from {seen.source}" if seen.source else ""
            verdict = f"evicted, and back by reload{source}{part}: {_range(seen)}"
            findings = [words] if (words := compared(found, length)) else []
            if found.reload is not None and found.prefill is not None and found.reload >= found.prefill:
                findings.append(
                    "try longer prompts (--prompt-tokens); if reloads stay slow, a faster tier, or none"
                    " (leave out --kv-offloading-size and --kv-transfer-config)"
                )
            if back is Back.PARTLY:
                findings.append(
                    "the tier has not kept all of it: raise --kv-offloading-size, or give the store more room"
                )
            return verdict, findings


def _range(seen: Seen) -> str:
    """From how many tokens of others on prompts were gone."""
    gone = min(r.pressure for r in seen.returns if r.gone)
    warm = max((r.pressure for r in seen.returns if not r.gone and r.pressure < gone), default=None)
    since = f"warm up to {warm:,} tokens of others, " if warm is not None else ""
    return f"{since}gone after {gone:,} (the cache holds {seen.cache_tokens:,})"


def as_text(report: Report) -> str:
    """The report for people."""
    times = report.speeds
    rows = [
        ("prompt tokens asked", f"{report.asked_tokens:,} in {report.requests} requests"),
        ("a prompt of", f"{report.prompt_tokens:,} tokens"),
        ("new", duration(times.cold_s)),
        ("again at once", duration(times.hit_s)),
        ("again after eviction, by reload", duration(times.back_s)),
    ]
    lines = [f"{name:34}{value}" for name, value in rows]
    return "\n".join([*lines, report.verdict, *(f"- {finding}" for finding in report.findings)])


def as_dict(report: Report) -> dict[str, object]:
    return asdict(report)
