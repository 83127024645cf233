"""Counters that restart -> increases, and hit ratios over windows of time."""

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

WINDOWS: Mapping[str, float] = {"1m": 60.0, "5m": 300.0, "1h": 3600.0}
"""The windows that hit ratios are published for, in seconds."""

_SLACK = 15.0
"""Seconds that a window may reach further back, so that it still has a sample before its start."""


@dataclass(slots=True)
class CounterTrack:
    """One counter of one process, accumulated over its restarts.

    The first value counts as it is. A smaller value than the last one means that the process restarted: everything it
    shows has happened since then (Prometheus treats resets the same way).
    """

    last: float = 0.0
    total: float = 0.0

    def observe(self, value: float) -> None:
        self.total += value - self.last if value >= self.last else value
        self.last = value


@dataclass(slots=True)
class CounterGroup:
    """The same counter of several engines and models, each with resets of its own, summed."""

    tracks: dict[str, CounterTrack] = field(default_factory=dict)

    def observe(self, values: Mapping[str, float]) -> float:
        """Take one scrape's values by series; return the accumulated total of all series ever seen."""
        for series, value in values.items():
            self.tracks.setdefault(series, CounterTrack()).observe(value)
        return self.total

    @property
    def total(self) -> float:
        return sum(track.total for track in self.tracks.values())


@dataclass(frozen=True, slots=True)
class Hits:
    """Tokens asked of a prefix cache, and those it had."""

    queries: float = 0.0
    hits: float = 0.0

    @property
    def ratio(self) -> float | None:
        """hits / queries. None where nothing was asked (0/0 is no sample), or where the counters contradict each other."""
        return self.hits / self.queries if 0 < self.queries >= self.hits else None

    def __add__(self, other: "Hits") -> "Hits":
        return Hits(self.queries + other.queries, self.hits + other.hits)

    def __sub__(self, other: "Hits") -> "Hits":
        return Hits(self.queries - other.queries, self.hits - other.hits)


class HitHistory:
    """The accumulated hits of one cache at each scrape, over a little more than the longest window.

    Times are seconds of one clock that does not jump, ascending.
    """

    def __init__(self, keep: float = max(WINDOWS.values())) -> None:
        self._keep = keep + 2 * _SLACK
        self._times: deque[float] = deque()
        self._values: deque[Hits] = deque()

    def __repr__(self) -> str:
        return f"<HitHistory {len(self._times)} samples, {self.total}>"

    @property
    def total(self) -> Hits:
        return self._values[-1] if self._values else Hits()

    def add(self, now: float, total: Hits) -> None:
        self._times.append(now)
        self._values.append(total)
        while self._times[0] < now - self._keep:
            self._times.popleft()
            self._values.popleft()

    def between(self, start: float, end: float) -> Hits:
        """What came between two times: from the last sample at or before each (or the first one there is)."""
        if not self._times:
            return Hits()
        return self._at(end) - self._at(start)

    def window(self, now: float, seconds: float) -> Hits:
        """What came in the last so many seconds; less while the history is younger than that."""
        return self.between(now - seconds, now)

    def _at(self, when: float) -> Hits:
        return self._values[max(0, bisect_right(self._times, when) - 1)]
