"""What the workers hold and have counted, added up: as if one process had done it all."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..observe.counters import RequestCounters
from ..pins.link import IGNORED, QUESTIONS, RECALLED, Op, none_yet
from ..recognition.memory import Memory

Counts = Mapping[tuple[str, ...], int]


class Holds(NamedTuple):
    """What a worker holds: entries of its memory by kind, tasks, its store (up, and why not), what its guards have told."""

    entries: Mapping[str, int]
    tasks: int
    store: tuple[bool, str] | None
    told: Mapping[tuple[str, str], str]


@dataclass(slots=True)
class StoreFigures:
    """The shared store as all workers use it: up if it is for each of them. `holds` has what each of them holds."""

    holds: Mapping[int, Holds]
    errors: Counter[str] = field(default_factory=lambda: none_yet(Op))
    dropped: Counter[str] = field(default_factory=lambda: none_yet(QUESTIONS))

    @property
    def reason(self) -> str:
        told = [holds.store[1] for holds in self.holds.values() if holds.store is not None and not holds.store[0]]
        return told[0] if told else "" if self.holds else "no worker has told of it yet"

    @property
    def up(self) -> bool:
        return bool(self.holds) and all(holds.store is not None and holds.store[0] for holds in self.holds.values())


@dataclass(slots=True)
class SharedFigures:
    """The same for what came of it."""

    store: StoreFigures
    ignored: Counter[str] = field(default_factory=lambda: none_yet(IGNORED))
    adopted: int = 0


class Figures:
    """Takes what workers tell of themselves into the supervisor's counters and memory."""

    def __init__(self, counters: RequestCounters) -> None:
        self.holds: dict[int, Holds] = {}
        self.shared = SharedFigures(StoreFigures(self.holds))
        self._counters = counters
        self.memory: Counter[str] = Counter()
        self.recalled = none_yet(RECALLED)

    def __repr__(self) -> str:
        return f"<Figures of {len(self.holds)} workers>"

    def take(self, worker: int, counts: Counts, holds: Holds, memory: Memory) -> None:
        """What a worker holds now, and what it has counted since it told that last."""
        self.holds[worker] = holds = Holds(*holds)
        memory.guards.told.update(holds.told)
        counters, shared = self._counters, self.shared
        where: dict[str, Counter[str]] = {
            "timeout": counters.client_timeouts,
            "internal": counters.internal_errors,
            "errors": shared.store.errors,
            "dropped": shared.store.dropped,
            "ignored": shared.ignored,
            "memory": self.memory,
            "recalled": self.recalled,
        }
        for (kind, *label), count in counts.items():
            match kind:
                case "refused":
                    counters.connections_refused += count
                case "handshakes":
                    counters.handshakes_failed += count
                case "adopted":
                    shared.adopted += count
                case _:
                    where[kind][label[0]] += count

    def forget(self, worker: int) -> None:
        """A worker has ended, and what it held is gone; what it had counted stays."""
        self.holds.pop(worker, None)

    def tasks(self, own: int) -> int:
        """asyncio tasks of all processes."""
        return own + sum(holds.tasks for holds in self.holds.values())


@dataclass(frozen=True, slots=True)
class SummedMemory(Memory):
    """The supervisor's memory, which has nothing to recognise: its entries are those of all workers."""

    figures: Figures = field(kw_only=True)

    @property
    def recalled(self) -> Counter[str]:
        return self.figures.recalled

    @property
    def evicted(self) -> int:
        return self.figures.memory["evicted"]

    @property
    def unknown_owners(self) -> int:
        return self.figures.memory["unknown_owners"]

    def entries(self) -> dict[str, int]:
        """How much all workers remember, by kind; what they share each has."""
        found = Counter(dict.fromkeys(Memory.entries(self), 0))
        for holds in self.figures.holds.values():
            found.update(holds.entries)
        return dict(found)
