"""The ways of placing requests that are compared; those that decide do it with the code that serves."""

from collections.abc import Callable, Collection
from dataclasses import replace
from enum import StrEnum
from typing import Protocol

from ..core.model import Decision, PinChange, Reason
from ..core.policy import Bounds, Wishes, decide
from ..fleet.registry import Registry
from ..pins.memory import PinTable
from ..proxy.placement import Placed, Placement
from .recognise import Turn


class Policy(StrEnum):
    """Where a request goes."""

    ROUND_ROBIN = "round_robin"  # to the next backend, whosever turn it is
    RING = "ring"  # to the conversation's home on the ring, whatever runs there
    PINS = "pins"  # where the router sends it; conversations of a full backend wait for it
    PINS_SPILL = (
        "pins_spill"  # where the router sends it; conversations of a full backend are served elsewhere this once
    )

    @property
    def remembers(self) -> bool:
        """Whether it remembers where conversations are."""
        return self in (Policy.PINS, Policy.PINS_SPILL)


class Chooser(Protocol):
    """Places one request after the other."""

    def place(self, turn: Turn, wishes: Wishes, exclude: Collection[str]) -> Placed | Decision:
        """Choose a backend and take a place there, or say why there is none. `exclude` has failed this request already."""

    def confirm(self, turn: Turn, decision: Decision) -> None:
        """The backend has begun to answer."""

    def withdraw(self, turn: Turn, decision: Decision) -> None:
        """The backend failed before it answered."""


def chooser(policy: Policy, registry: Registry, pins: PinTable, bounds: Bounds) -> Chooser:
    """A way of placing requests over these backends."""
    if policy is Policy.ROUND_ROBIN:
        return _Stateless(registry, _RoundRobin(registry))
    if policy is Policy.RING:
        return _Stateless(registry, _Home(registry))
    return _Pinned(registry, pins, replace(bounds, spill=policy is Policy.PINS_SPILL))


class _Pinned:
    def __init__(self, registry: Registry, pins: PinTable, bounds: Bounds) -> None:
        self._placement = Placement(registry, pins, bounds)

    def place(self, turn: Turn, wishes: Wishes, exclude: Collection[str]) -> Placed | Decision:
        return self._placement.place(turn.session, None, turn.session.key, exclude, wishes, size=turn.size)

    def confirm(self, turn: Turn, decision: Decision) -> None:
        self._placement.confirm(turn.session, decision)

    def withdraw(self, turn: Turn, decision: Decision) -> None:
        self._placement.withdraw(turn.session, decision)


class _Stateless:
    """Remembers of no conversation where it was."""

    def __init__(self, registry: Registry, choose: Callable[[Turn, Collection[str]], Decision]) -> None:
        self._registry = registry
        self._choose = choose

    def place(self, turn: Turn, wishes: Wishes, exclude: Collection[str]) -> Placed | Decision:
        decision = self._choose(turn, exclude)
        if decision.backend is None:
            return decision
        return Placed(decision, decision.backend, self._registry.lease(decision))

    def confirm(self, turn: Turn, decision: Decision) -> None:
        """Nothing is noted."""

    def withdraw(self, turn: Turn, decision: Decision) -> None:
        """Nothing was noted."""


class _RoundRobin:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._asked = 0

    def __call__(self, turn: Turn, exclude: Collection[str]) -> Decision:
        candidates = [b for b in self._registry.fleet().serving(None, exclude) if b.accepts_new]
        if not candidates:
            return Decision(Reason.NONE_AVAILABLE)
        self._asked += 1
        return Decision(Reason.NO_SESSION, candidates[(self._asked - 1) % len(candidates)].name)


class _Home:
    """The first backend in ring order: `decide` for a session that never has a pin, under bounds that nothing exceeds."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._bounds = Bounds(sessions=1e9, even=0, size=1e9, in_flight=1e9)

    def __call__(self, turn: Turn, exclude: Collection[str]) -> Decision:
        decision = decide(
            self._registry.fleet(),
            session=turn.session,
            pin=None,
            model=None,
            request_key=turn.session.key,
            exclude=exclude,
            bounds=self._bounds,
        )
        return decision._replace(change=PinChange.NONE)
