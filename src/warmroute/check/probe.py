"""Prompts of the checks' own making, within bounds, and what each found in a server's caches."""

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..core import vllm_metrics
from .target import CheckError, Model, Target, block_size, rise
from .words import WORDS

Prompt = list[int] | str

_LAG = 2.0
"""Seconds in which counters that a request has raised are shown."""
_AT_ONCE = 4
"""Filling prompts under way at the same time."""
_SOURCES = "vllm:prompt_tokens_cached_by_source_total"
_OWN_CACHE = "device"


@dataclass
class Bounds:
    """How much a check may ask: prompt tokens, and seconds of `clock`."""

    tokens: int
    seconds: float
    clock: Callable[[], float] = time.monotonic
    used: int = 0
    requests: int = 0
    until: float = field(init=False)

    def __post_init__(self) -> None:
        self.until = self.clock() + self.seconds

    def plan(self, tokens: int, what: str) -> None:
        """Raises CheckError if so many more cannot be asked."""
        if self.used + tokens > self.tokens:
            raise CheckError(
                f"{what} takes about {tokens:,} prompt tokens, and --max-tokens allows {self.tokens:,}:"
                f" allow more with --max-tokens {tokens}"
            )

    def take(self, tokens: int) -> None:
        """Count one request. Raises CheckError if it is one too many."""
        if self.used + tokens > self.tokens:
            raise CheckError(
                f"stopped: {self.used:,} prompt tokens were asked, and --max-tokens allows {self.tokens:,}"
            )
        if self.clock() > self.until:
            raise CheckError(
                f"stopped after {self.seconds:.0f} s and {self.used:,} prompt tokens: the server is slow or busy;"
                " give it longer with --max-time"
            )
        self.used += tokens
        self.requests += 1


@dataclass(frozen=True, slots=True)
class Asked:
    """One prompt: its tokens, those that were in a cache, those of them that came from the tier behind; and seconds.

    `tier_asked` tells whether the server looked for anything in a tier behind its cache, `engines` whose counters rose.
    """

    prompt: int
    cached: int
    reloaded: int
    seconds: float
    tier_asked: bool = False
    engines: tuple[str, ...] = ()

    @property
    def warm(self) -> int:
        """Tokens that the engine's own cache had."""
        return self.cached - self.reloaded


class Prober:
    """Asks one server for one token after prompts of its own making; `computed` counts tokens that took room in the cache.

    The counters are those of the whole server: what others ask meanwhile is in them, and is told as `others`.
    """

    def __init__(self, target: Target, model: Model, bounds: Bounds, dice: random.Random) -> None:
        self.target = target
        self.model = model
        self.bounds = bounds
        self.computed = 0
        self.others = 0
        self._dice = dice
        self._tokens: list[int] = []
        self._values: vllm_metrics.Values = {}

    def __repr__(self) -> str:
        return f"<Prober of {self.target.url}, {self.bounds.used} prompt tokens asked>"

    async def begin(self) -> None:
        """Learn the model's tokens of a few words, and read the counters. Raises CheckError."""
        tokens = await self.target.tokenize(self.model.name, " ".join(WORDS))
        self._tokens = sorted(set(tokens or ()))
        self._values = await self.target.values()
        if vllm_metrics.prefix_cache(self._values) is None:
            raise CheckError(
                f"{self.target.url} shows no prefix cache counters; start vLLM with --enable-prefix-caching,"
                " and without --disable-log-stats"
            )

    @property
    def block_size(self) -> int:
        """Tokens of a block; vLLM's default where the server does not say."""
        return block_size(self._values) or 16

    @property
    def engines(self) -> list[str]:
        return [gauge.engine for gauge in vllm_metrics.engines(self._values)]

    @property
    def values(self) -> vllm_metrics.Values:
        """The counters as they were read last."""
        return self._values

    def length(self, wanted: int) -> int:
        """The length of a prompt nearest to that wanted which the model takes, and that ends within a block."""
        block = self.block_size
        most = (self.model.longest or wanted) - 8
        return max(2 * block, min(wanted, most) // block * block) - block // 2

    def prompt(self, tokens: int) -> Prompt:
        """A prompt of so many tokens that no cache has seen; a text, and so about as many, where there is no /tokenize."""
        if len(self._tokens) > 1:
            return self._dice.choices(self._tokens, k=tokens)
        words = self._dice.choices(WORDS, k=max(1, round(tokens / 1.4)))
        return f"[{uuid.UUID(int=self._dice.getrandbits(128))}] {' '.join(words)}"

    async def ask(self, prompt: Prompt, rank: str | None = None) -> Asked:
        """Ask once, and read the counters. Raises CheckError."""
        length, cached, seconds = await self._send(prompt, rank)
        before, after = self._values, await self._raised_by(length)
        self._values = after
        asked, had = _changes(before, after, vllm_metrics.prefix_cache)
        tier_asked, tier_had = _changes(before, after, vllm_metrics.external_prefix_cache)
        total = rise(asked[0], asked[1])
        self.others += max(0, total - length)
        external = rise(*tier_had)
        cached = min(length, rise(*had) + external) if cached is None else cached
        reloaded = max(0, min(cached, external))
        self.computed += length - cached + reloaded
        return Asked(length, cached, reloaded, seconds, rise(*tier_asked) > 0, _engines(*asked))

    async def fill(self, tokens: int, each: int, rank: str | None = None) -> None:
        """Ask for so many tokens in prompts of at most `each`, a few at once. Raises CheckError."""
        left = [min(each, tokens - start) for start in range(0, tokens, each)]

        async def some() -> None:
            while left:
                length, _, _ = await self._send(self.prompt(max(2, left.pop())), rank)
                self.computed += length

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(_AT_ONCE, len(left))):
                    group.create_task(some())
        except* CheckError as errors:
            raise errors.exceptions[0] from None
        self._values = await self.target.values()

    def source(self, before: vllm_metrics.Values) -> str | None:
        """The tier that gave most since these counters were read, in vLLM's word for it; None if it says of none."""
        old, new = before.get(_SOURCES, {}), self._values.get(_SOURCES, {})
        gave = {vllm_metrics.label(labels, "source") or "": value - old.get(labels, 0) for labels, value in new.items()}
        gave.pop(_OWN_CACHE, None)
        most = max(gave, key=lambda name: gave[name], default="")
        return most if gave.get(most, 0) > 0 and most != "external_unspecified" else None

    async def _send(self, prompt: Prompt, rank: str | None) -> tuple[int, int | None, float]:
        """Tokens of the prompt, those that were cached if the answer says so, and seconds."""
        guess = len(prompt) if isinstance(prompt, list) else round(1.4 * prompt.count(" "))
        self.bounds.take(guess)
        body = {"model": self.model.name, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        started = time.monotonic()
        response = await self.target.post("/v1/completions", body, _rank(rank))
        seconds = time.monotonic() - started
        usage = response.json().get("usage") or {}
        details = usage.get("prompt_tokens_details") or {}
        return int(usage.get("prompt_tokens", guess)), details.get("cached_tokens"), seconds

    async def _raised_by(self, tokens: int) -> vllm_metrics.Values:
        """The counters, once they have risen by so many tokens; as they are if they do not."""
        until = time.monotonic() + _LAG
        while True:
            values = await self.target.values()
            asked, _ = _changes(self._values, values, vllm_metrics.prefix_cache)
            if rise(*asked) >= tokens or time.monotonic() > until:
                return values
            await asyncio.sleep(0.05)


def _rank(rank: str | None) -> Mapping[str, str]:
    return {} if rank is None else {"x-data-parallel-rank": rank}


_Pair = tuple[vllm_metrics.Series | None, vllm_metrics.Series | None]


def _changes(
    before: vllm_metrics.Values,
    after: vllm_metrics.Values,
    read: Callable[[vllm_metrics.Values], tuple[vllm_metrics.Series, vllm_metrics.Series] | None],
) -> tuple[_Pair, _Pair]:
    """Queries and hits, each before and after."""
    old, new = read(before) or (None, None), read(after) or (None, None)
    return (old[0], new[0]), (old[1], new[1])


def _engines(before: vllm_metrics.Series | None, after: vllm_metrics.Series | None) -> tuple[str, ...]:
    """The engines whose counter rose."""
    old = before or {}
    raised = {
        vllm_metrics.label(labels, "engine") or "0"
        for labels, value in (after or {}).items()
        if value > old.get(labels, 0.0)
    }
    return tuple(sorted(raised))


@dataclass(frozen=True, slots=True)
class Speeds:
    """Seconds: of a prompt that no cache has, one that the engine's cache has, and one that was reloaded.

    `prefill` and `reload` are what 1,000 tokens take beyond a hit. None where none was seen. Each is the shortest time of its
    kind: whatever else a server does only adds to it.
    """

    cold_s: float | None
    hit_s: float | None
    back_s: float | None
    prefill: float | None
    reload: float | None


def speeds(cold: list[Asked], hits: list[Asked], reloads: list[Asked]) -> Speeds:
    """Put together what prompts of about one length took."""
    hit = _least([asked.seconds for asked in hits])
    return Speeds(
        cold_s=_least([asked.seconds for asked in cold]),
        hit_s=hit,
        back_s=_least([asked.seconds for asked in reloads]),
        prefill=_per_thousand([(a.seconds, a.prompt - a.cached) for a in cold], hit),
        reload=_per_thousand([(a.seconds, a.reloaded) for a in reloads], hit),
    )


def _least(seconds: list[float]) -> float | None:
    return round(min(seconds), 4) if seconds else None


def _per_thousand(taken: list[tuple[float, int]], hit: float | None) -> float | None:
    return _least([1000 * max(0.0, seconds - (hit or 0.0)) / tokens for seconds, tokens in taken if tokens])


def compared(found: Speeds, tokens: int) -> str:
    """Reload against prefill, in words; the tokens are those of the prompts that were asked."""
    if found.prefill is None or found.reload is None:
        return ""
    times = f"{duration(found.reload)} per 1,000 tokens reloaded, {duration(found.prefill)} computed"
    if found.reload < 0.9 * found.prefill:
        spared = duration((found.prefill - found.reload) * tokens / 1000)
        return f"{times}: a reload of {tokens:,} tokens spares {spared}"
    return f"{times}: at {tokens:,} tokens a reload spares no time here"


def duration(seconds: float | None) -> str:
    """Seconds for people."""
    if seconds is None:
        return "not seen"
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{seconds:.2f} s"
