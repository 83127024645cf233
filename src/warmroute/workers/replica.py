"""A worker's copy of the backends: what the supervisor tells of them, what all workers have in flight, and own failures."""

from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any

from ..core.model import Decision, Failure
from ..core.outlier import Rest
from ..core.policy import Fleet
from ..fleet.backend import BackendState, EngineState
from ..fleet.registry import Lease, Registry
from .rows import Cell, Rows
from .views import Slots, View, take


class SharedLease(Lease):
    """A place that the other workers see to be taken."""

    __slots__ = ("_rows", "_slots")

    def __init__(self, state: BackendState, engine: EngineState | None, rows: Rows, slots: tuple[int, ...]) -> None:
        super().__init__(state, engine)
        self._rows, self._slots = rows, slots
        for slot in slots:
            rows.add(slot, Cell.IN_FLIGHT, 1)
        if self._trial:
            rows.add(slots[0], Cell.TRYING, 1)

    def __enter__(self) -> None:
        super().__enter__()
        self._rows.add(self._slots[0], Cell.REQUESTS, 1)

    def may_be_silent(self) -> None:
        self._rows.add(self._slots[0], Cell.SILENT, 1)
        if self._trial:
            self._rows.add(self._slots[0], Cell.TRYING, -1)
        super().may_be_silent()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for slot in self._slots:
            self._rows.add(slot, Cell.IN_FLIGHT, -1)
        if self._silent:
            self._rows.add(self._slots[0], Cell.SILENT, -1)
        if self._trial:
            self._rows.add(self._slots[0], Cell.TRYING, -1)
        super().__exit__(kind, error, trace)


class Replica(Registry):
    """`tell` tells the supervisor what requests find out about a backend; what becomes of it comes back as a view."""

    def __init__(self, rows: Rows, slots: Slots, tell: Callable[..., None], *of: Any) -> None:
        """`of` is what every registry is made of."""
        self.rows, self.slots, self.tell = rows, slots, tell
        self._in_flight: list[tuple[BackendState, int, list[tuple[EngineState, int]]]] = []
        super().__init__(*of)

    def fleet(self) -> Fleet:
        """What a decision reads, with what all workers have in flight now."""
        workers = self.rows.workers
        for state, at, engines in self._in_flight:
            state.in_flight = sum([row[at] for row in workers])
            if state.outlier.state is Rest.TRIAL:
                state.outlier.trying = self.rows.sum(self.slots.of(state.name), Cell.TRYING) > 0
            for engine, inner in engines:
                engine.in_flight = sum([row[inner] for row in workers])
        return self._fleet

    def lease(self, decision: Decision) -> Lease:
        state = self.backends[decision.backend or ""]
        engine = next((e for e in state.engines if e.engine == decision.engine), None)
        return SharedLease(state, engine, self.rows, self.slots.both(state.name, decision.engine))

    def claim(self, decision: Decision, most: int) -> Lease | None:
        """Take a place, then count: of two workers that take the last one at the same time none keeps it."""
        lease = self.lease(decision)
        if most and self.rows.sum(self.slots.of(decision.backend or ""), Cell.IN_FLIGHT) > most:
            lease.give_back()
            return None
        return lease

    def failed(self, name: str, failure: Failure, now: float) -> bool:
        """Nobody here goes there again from now on; whether that is so for all the supervisor decides."""
        if not failure.stale:
            self.tell("failed", name, failure)
        return super().failed(name, failure, now)

    def succeeded(self, name: str, now: float) -> bool:
        """Told only where it changes something: after failures."""
        state = self.backends.get(name)
        if state is not None and (state.outlier.failures or state.outlier.state is not Rest.IN):
            self.tell("succeeded", name)
        return super().succeeded(name, now)

    def take(self, views: Collection[View]) -> list[str]:
        """Take over what the supervisor tells; returns the backends whose drain is over from now on."""
        self.slots.follow(views)
        over = []
        self._in_flight.clear()
        for one in views:
            state = self.backends.get(one.name)
            if state is None or state.spec.url != one.url:
                continue
            if take(state, one, self._pins):
                over.append(one.name)
            slots = dict(one.engines)
            engines = [(engine, Rows.place(slots[engine.engine], Cell.IN_FLIGHT)) for engine in state.engines]
            self._in_flight.append((state, Rows.place(one.slot, Cell.IN_FLIGHT), engines))
        return over
