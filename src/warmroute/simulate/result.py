"""What came of one workload under one policy."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .server import Load


class Move(NamedTuple):
    """A conversation's turn began elsewhere than its turn before. `at` is in seconds from the start."""

    at: float
    session: bytes
    before: str
    after: str


@dataclass(slots=True)
class Result:
    """Counts of one run, and the seconds to the first token of each request that had one.

    `most` is the most requests that a backend had in flight. `steady` names the backends that were there from beginning to
    end: the ones whose load is compared. `refused` requests found no backend, or waited too long; `resumed` ones were under
    way where a backend died, `lost` ones died twice.
    """

    loads: dict[str, Load] = field(default_factory=dict)
    steady: set[str] = field(default_factory=set)
    ttfts: list[float] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    decisions: Counter[str] = field(default_factory=Counter)
    sessions: int = 0
    most: int = 0
    refused: int = 0
    resumed: int = 0
    lost: int = 0

    @property
    def total(self) -> Load:
        """The load of all backends together."""
        loads = self.loads.values()
        return Load(
            sum(load.requests for load in loads),
            sum(load.prompt_tokens for load in loads),
            sum(load.cached_tokens for load in loads),
        )

    @property
    def hit_rate(self) -> float:
        """Prompt tokens found in a cache, of all; 0.0 before the first."""
        total = self.total
        return total.cached_tokens / total.prompt_tokens if total.prompt_tokens else 0.0

    def uneven(self, what: str) -> float:
        """The highest load of a steady backend by their mean, of one of `Load`'s numbers; 1.0 where there is none."""
        values = [float(getattr(load, what)) for name, load in self.loads.items() if name in self.steady]
        return max(values) * len(values) / sum(values) if sum(values) else 1.0

    def ttft(self, share: float) -> float:
        """So much of all first tokens came within so many seconds; 0.0 where there is none."""
        return quantile(sorted(self.ttfts), share)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which a share of ordered values lies, one of them (nearest rank); 0.0 of none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
