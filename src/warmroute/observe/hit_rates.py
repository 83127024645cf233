"""Hit ratios of backends and of the fleet, over the windows that are published."""

from collections.abc import Iterable
from typing import Literal

from ..core.rates import WINDOWS, Hits
from ..fleet.registry import BackendState
from ..fleet.scrape import CacheCounters

Tier = Literal["local", "external"]

STEP = 30.0
"""Seconds of one step of the history that the dashboard draws."""


def tier_of(backend: BackendState, tier: Tier) -> CacheCounters:
    return backend.scrape.local if tier == "local" else backend.scrape.external


def windowed(backend: BackendState, tier: Tier, now: float) -> dict[str, Hits]:
    """What came in each window: window name -> tokens."""
    history = tier_of(backend, tier).history
    return {name: history.window(now, seconds) for name, seconds in WINDOWS.items()}


def fleet_windowed(backends: Iterable[BackendState], tier: Tier, now: float) -> dict[str, Hits]:
    """The same for all backends together: sums of tokens, never a mean of ratios."""
    total = dict.fromkeys(WINDOWS, Hits())
    for backend in backends:
        for name, hits in windowed(backend, tier, now).items():
            total[name] += hits
    return total


def ratio(backend: BackendState, hits: Hits) -> float | None:
    """The ratio in a window; servers of the V0 engine have only a gauge of their own, which stands for every window."""
    return backend.scrape.hit_rate_gauge if not backend.scrape.local.seen else hits.ratio


def steps(now: float, seconds: float = WINDOWS["1h"]) -> list[float]:
    """The ends of the history's steps, the last one now."""
    count = int(seconds / STEP)
    return [now - STEP * (count - 1 - i) for i in range(count)]


def history(backend: BackendState, ends: list[float]) -> list[Hits]:
    """What came in each step."""
    samples = backend.scrape.local.history
    return [samples.between(end - STEP, end) for end in ends]
