"""What is known of a backend from its own /metrics."""

from dataclasses import dataclass, field

from ..core.exposition import Family
from ..core.rates import CounterGroup, HitHistory


@dataclass(slots=True)
class CacheCounters:
    """One tier of a backend's prefix cache: its counters over restarts, and their history."""

    queries: CounterGroup = field(default_factory=CounterGroup)
    hits: CounterGroup = field(default_factory=CounterGroup)
    history: HitHistory = field(default_factory=HitHistory)
    seen: bool = False


@dataclass(slots=True)
class Scrape:
    """What the last read of a backend's /metrics gave. `at` is None until one has succeeded.

    `began`, `reloaded`, `block_size` and `prefill` are as core.vllm_metrics has them.
    """

    at: float | None = None
    error: str | None = None
    local: CacheCounters = field(default_factory=CacheCounters)
    external: CacheCounters = field(default_factory=CacheCounters)
    hit_rate_gauge: float | None = None
    families: dict[str, Family] = field(default_factory=dict)
    began: float | None = None
    reloaded: float | None = None
    block_size: int | None = None
    prefill: tuple[float, float] | None = None
