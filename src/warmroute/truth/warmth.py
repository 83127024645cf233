"""How long a paused conversation stays warm: hits by idle time, from a backend's own turns."""

from bisect import bisect_right
from dataclasses import dataclass, field

BOUNDS = (5.0, 15.0, 30.0, 60.0, 120.0, 240.0, 480.0, 900.0, 1800.0, 3600.0, 7200.0)
"""Seconds of idle time that part the buckets; the first one holds what came sooner, the last one what came later."""
WARM = 0.9
"""The share of the expected tokens that must be there for conversations to count as warm."""
_ENOUGH = 4
"""Turns in a bucket before it says anything."""


@dataclass(slots=True)
class Bucket:
    """Turns that came after such a time, the tokens expected of the cache, and those it had."""

    turns: int = 0
    expected: int = 0
    had: int = 0

    @property
    def share(self) -> float | None:
        return self.had / self.expected if self.turns >= _ENOUGH and self.expected else None


@dataclass(slots=True)
class Warmth:
    """One backend's curve."""

    buckets: list[Bucket] = field(default_factory=lambda: [Bucket() for _ in range(len(BOUNDS) + 1)])

    def observe(self, idle: float, expected: int, had: int) -> None:
        """A conversation came back after `idle` seconds to the engine that had `expected` tokens of its prompt."""
        bucket = self.buckets[bisect_right(BOUNDS, idle)]
        bucket.turns += 1
        bucket.expected += expected
        bucket.had += min(had, expected)

    def warm_for(self) -> float | None:
        """Seconds up to which conversations are warm; None if nothing says so, 0.0 if not even the shortest pause is."""
        until = None
        for bound, bucket in zip((*BOUNDS, float("inf")), self.buckets, strict=True):
            if bucket.share is None:
                continue
            if bucket.share < WARM:
                return until or 0.0
            until = bound
        return until
