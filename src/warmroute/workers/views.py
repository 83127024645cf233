"""The backends as the supervisor tells its workers of them: everything that a decision reads, and nothing else."""

from collections.abc import Iterable
from typing import NamedTuple

from ..core.drain import Drain
from ..core.health import Health
from ..core.outlier import Outlier, Rest
from ..fleet.backend import BackendState, EngineState
from ..pins.memory import PinTable


class View(NamedTuple):
    """One backend. `slot`, and those of its engines, are where the rows have its numbers."""

    name: str
    url: str
    slot: int
    up: bool | None
    reason: str
    unproven: bool
    asleep: bool
    rest: tuple[str, int, int, float, str]
    drain: tuple[float | None, bool]
    stalled: bool
    models: frozenset[str] | None
    cards: list[dict[str, object]]
    engines: tuple[tuple[str, int], ...]


class Slots:
    """Which number belongs to which backend and engine, by name; the supervisor gives them out, workers take them over."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str | None], int] = {}

    def __repr__(self) -> str:
        return f"<Slots {len(self._of)} given>"

    def of(self, backend: str, engine: str | None = None) -> int:
        """The slot of a backend or engine; 0 where it has none."""
        return self._of.get((backend, engine), 0)

    def both(self, backend: str, engine: str | None) -> tuple[int, ...]:
        """The slots in which a session or request there counts."""
        slot = self.of(backend)
        inner = self.of(backend, engine) if engine is not None else 0
        return (slot, inner) if inner else (slot,)

    def follow(self, views: Iterable[View]) -> None:
        """Take over what the supervisor has given out."""
        self._of.clear()
        for view in views:
            self._of[view.name, None] = view.slot
            self._of.update(((view.name, engine), slot) for engine, slot in view.engines)


def view(state: BackendState, slot: int, engines: Iterable[tuple[str, int]]) -> View:
    """A backend as it is now."""
    outlier = state.outlier
    return View(
        name=state.name,
        url=state.spec.url,
        slot=slot,
        up=state.health.up,
        reason=state.health.reason,
        unproven=state.unproven,
        asleep=state.asleep,
        rest=(outlier.state.value, outlier.failures, outlier.rests, outlier.until, outlier.reason),
        drain=(state.drain.until, state.drain.over),
        stalled=state.progress.stalled,
        models=state.models,
        cards=state.model_cards,
        engines=tuple(engines),
    )


def take(state: BackendState, told: View, pins: PinTable) -> bool:
    """Put a view into a worker's copy; returns True if the backend's drain is over from now on."""
    over = told.drain[1] and not state.drain.over
    state.health = Health(up=told.up, reason=told.reason)
    rest, failures, rests, until, reason = told.rest
    state.outlier = Outlier(Rest(rest), failures, rests, until, state.outlier.trying, reason)
    state.drain = Drain(*told.drain)
    state.unproven, state.asleep = told.unproven, told.asleep
    state.progress.stalled = told.stalled
    state.models, state.model_cards = told.models, told.cards
    known = {engine.engine: engine for engine in state.engines}
    names = [engine for engine, _ in told.engines]
    if list(known) != names:
        state.engines = [known.get(name) or EngineState(told.name, name, pins) for name in names]
    return over
