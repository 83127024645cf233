"""The one owner of live backend state: synchronous methods, so each change is whole; no awaits, no HTTP."""

from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf
from types import TracebackType

from ..core.drain import Drain
from ..core.health import Thresholds
from ..core.model import BackendSpec, Decision, Failure, Phase
from ..core.outlier import Outlier, OutlierLimits, Rest
from ..core.policy import Fleet
from ..core.ring import Ring
from ..pins.memory import PinTable
from .backend import BackendState, EngineState
from .changes import Changes

__all__ = ["BackendState", "EngineState", "Lease", "Registry"]


_TRIAL = Rest.TRIAL
_NO_FAULT = ("removed", "asleep")
"""Kinds of failures that say nothing bad of a backend: it was removed, or put to sleep, with requests on their way."""


class Lease:
    """One request in flight at a backend: a place that is taken when this is made, and given back once.

    `give_back`, or the end of a `with` block, on every way out of it.
    """

    __slots__ = ("_engine", "_silent", "_state", "_trial")

    def __init__(self, state: BackendState, engine: EngineState | None) -> None:
        self._state, self._engine = state, engine
        self._silent = False
        self._trial = state.outlier.state is _TRIAL
        state.in_flight += 1
        if self._trial:
            state.outlier.trying = True
        if engine is not None:
            engine.in_flight += 1

    def __enter__(self) -> None:
        self._state.requests += 1

    def may_be_silent(self) -> None:
        """It has begun, and may be quiet for as long as it likes: it is no trial any more, and no sign of a hung backend."""
        self._silent = True
        self._state.silent += 1
        if self._trial:
            self._trial = self._state.outlier.trying = False

    def give_back(self) -> None:
        """The place is free again."""
        self.__exit__(None, None, None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        state = self._state
        state.in_flight -= 1
        if self._silent:
            state.silent -= 1
        if self._trial:
            state.outlier.trying = False
        if self._engine is not None:
            self._engine.in_flight -= 1


class Registry:
    """All backends by name. Times are seconds of the caller's clock."""

    def __init__(
        self,
        specs: Iterable[BackendSpec],
        pins: PinTable,
        limits: Thresholds,
        now: float,
        outliers: OutlierLimits | None = None,
    ) -> None:
        self._limits = limits
        self._outliers = outliers or OutlierLimits()
        self.backends = {spec.name: BackendState(spec, pins, now) for spec in specs}
        self._pins = pins
        self._fleet = Fleet(self.backends, Ring({b.name: b.weight for b in self.backends.values()}))

    def __repr__(self) -> str:
        return f"<Registry {list(self.backends.values())}>"

    def reconfigure(
        self, specs: Iterable[BackendSpec], ring: Ring, limits: Thresholds, outliers: OutlierLimits, now: float
    ) -> Changes:
        """Take other backends, in one step. Those of the same name and URL keep all that is known of them.

        `ring` is over all of them. A backend that is new is used after its first check, if there are others to use till then.
        """
        before, specs = dict(self.backends), tuple(specs)
        kept = {s.name: b for s in specs if (b := before.get(s.name)) is not None and b.spec.url == s.url}
        reweighted = tuple(s.name for s in specs if s.name in kept and kept[s.name].weight != s.weight)
        works = any(b.works for b in kept.values())
        self.backends.clear()
        for spec in specs:
            state = kept.get(spec.name) or BackendState(spec, self._pins, now, unproven=works)
            state.spec, state.weight = spec, spec.weight
            self.backends[spec.name] = state
        self._limits, self._outliers = limits, outliers
        self._fleet = Fleet(self.backends, ring)
        return Changes(
            added=tuple(s.name for s in specs if s.name not in before),
            removed=tuple(name for name in before if name not in self.backends),
            replaced=tuple(s.name for s in specs if s.name in before and s.name not in kept),
            reweighted=reweighted,
        )

    def fleet(self) -> Fleet:
        """What a decision reads. Its backends are live, so it must be used before the next await."""
        return self._fleet

    def lease(self, decision: Decision) -> Lease:
        """Take a place at the decision's backend. Whoever has it gives it back."""
        state = self.backends[decision.backend or ""]
        if decision.engine is None:
            return Lease(state, None)
        return Lease(state, next((e for e in state.engines if e.engine == decision.engine), None))

    def claim(self, decision: Decision, most: int) -> Lease | None:
        """`lease`, where nobody else may have come first; None if a further one has the last of `most` places (0: any number).

        Between decision and claim others come first only where several processes share the backends.
        """
        return self.lease(decision)

    def probed(self, name: str, error: str | None, now: float) -> bool:
        """Take an active check's result; returns True if the backend's state changed."""
        state = self.backends[name]
        changed = state.health.probed(error, self._limits)
        if changed and error is None and state.scrape.began is None:
            state.processes += 1  # its metrics do not tell: a server that was down may have been restarted
        if changed and error is None:  # it was down: what its traffic told was of that
            state.outlier = Outlier()
        return self._flipped(state, changed, now)

    def failed(self, name: str, failure: Failure, now: float) -> bool:
        """Take a request's failure at a backend; returns True if its state changed for everybody.

        A refused connection changes it at once. An exchange that broke may be the fault of its request: whether the backend
        lives is for the next health check to say; after several in a row it rests, if others can do its work.
        """
        state = self.backends.get(name)
        if state is None or failure.stale or failure.own or failure.kind in _NO_FAULT:
            return False
        state.failures += 1
        if failure.phase is Phase.CONNECT:
            return self._flipped(state, state.health.connect_failed(failure.detail), now)
        rests = state.outlier.failed(failure.detail, now, self._outliers, may_rest=self._may_rest(state))
        return self._flipped(state, rests, now)

    def succeeded(self, name: str, now: float) -> bool:
        """Take an answer that was no fault of its backend's; returns True if the backend is back in rotation by it."""
        state = self.backends.get(name)
        return state is not None and state.outlier.succeeded() and self._flipped(state, True, now)

    def sweep(self, heard: Callable[[str], bool], now: float, stall: float) -> list[str]:
        """Let time pass: rests end, and backends that were silent for `stall` seconds with requests waiting begin one.

        `heard` tells whether a backend has sent anything since it was last asked. Returns the names of the silent ones.
        """
        silent = []
        for name, state in self.backends.items():
            state.outlier.tick(now)
            if heard(name) or state.asleep or state.in_flight == state.silent:
                state.heard_at = now
            elif now - state.heard_at >= stall and self._may_rest(state):
                state.outlier.rest(f"it sent nothing for {stall:g} s while requests waited", now, self._outliers)
                state.heard_at = state.since = now
                silent.append(name)
        return silent

    def progressed(self, name: str, steps: float | None, now: float) -> bool:
        """Take the count of its engine's steps; returns True if it has begun or ceased to stall."""
        state = self.backends[name]
        busy = state.in_flight > state.silent and not state.asleep
        return state.progress.observe(steps, busy=busy, now=now, after=self._outliers.stall)

    def slept(self, name: str, asleep: bool, discarded: bool, now: float) -> bool:
        """Take whether it is in sleep mode, and so deeply that its cache was `discarded`; returns True if that has changed."""
        state = self.backends[name]
        if discarded and not state.asleep:
            state.processes += 1  # as after a restart
        changed, state.asleep = asleep != state.asleep, asleep
        return self._flipped(state, changed, now)

    def began(self, name: str, at: float | None) -> None:
        """Take when its engines say that they began, in seconds since 1970; None where they do not say."""
        state = self.backends[name]
        if at is not None and state.scrape.began is not None and at != state.scrape.began:
            state.processes += 1
        state.scrape.began = at if at is not None else state.scrape.began

    def _may_rest(self, state: BackendState) -> bool:
        """Whether a backend may rest: others are in rotation, and no more than half of all rest."""
        others = [b for b in self.backends.values() if b is not state]
        resting = sum(b.outlier.state is not Rest.IN for b in others)
        working = any(b.available and b.outlier.state is Rest.IN for b in others)
        return working and resting < max(1, len(self.backends) // 2)

    def set_models(self, name: str, cards: list[dict[str, object]]) -> None:
        """Note what a backend lists under /v1/models."""
        state = self.backends[name]
        state.model_cards = cards
        state.models = frozenset(str(card["id"]) for card in cards)

    def context(self, model: str | None) -> int | None:
        """The longest prompt and answer together that all backends of a model take; None where one does not say."""
        lengths = [
            card.get("max_model_len")
            for backend in self.backends.values()
            for card in backend.model_cards
            if card.get("id") == model
        ]
        known = [length for length in lengths if isinstance(length, int)]
        return min(known) if known and len(known) == len(lengths) else None

    def set_engines(self, name: str, engines: Sequence[str]) -> None:
        """Note a backend's engines; known ones keep their state. An empty list changes nothing."""
        state = self.backends[name]
        if engines and [e.engine for e in state.engines] != list(engines):
            known = {e.engine: e for e in state.engines}
            state.engines = [known.get(e) or EngineState(name, e, self._pins) for e in engines]

    def drain(self, name: str, on: bool, until: float = inf) -> None:
        """Give a backend no new sessions, and after the time `until` nothing at all; or use it again.

        Raises KeyError for an unknown name.
        """
        state = self.backends[name]
        if on:
            state.drain.begin(until)
        else:
            state.drain.end()

    def let_go(self, names: Collection[str], until: float) -> tuple[str, ...]:
        """Empty these backends, until the time `until` at most, and use those again that were emptied for this and are not
        among them: as they were used before. Returns the names of those whose emptying begins.
        """
        begun = []
        for name, state in self.backends.items():
            if name in names and state.stayed is None:
                state.stayed, state.drain = state.drain, Drain()
                state.drain.begin(until if state.stayed.until is None else min(until, state.stayed.until))
                begun.append(name)
            elif name not in names and state.stayed is not None:
                state.drain, state.stayed = state.stayed, None
        return tuple(begun)

    def gone(self) -> list[str]:
        """Those that are to be removed and of which nothing is lost any more."""
        return [name for name, state in self.backends.items() if state.going and state.emptied]

    def end_drains(self, now: float) -> list[str]:
        """Let time pass; returns the names of the backends whose deadline has just passed."""
        over = [state for state in self.backends.values() if state.drain.tick(now)]
        for state in over:
            state.since = now
        return [state.name for state in over]

    def not_ready(self) -> list[str]:
        """Why no request can be served, one sentence a backend; empty if at least one backend is up."""
        return [] if any(b.works for b in self.backends.values()) else self.unavailable()

    def unavailable(self) -> list[str]:
        """One sentence for each backend that is not known to be up and in rotation."""
        if not self.backends:
            return ["there are no backends: none is configured, and discovery names none"]
        return [
            f"{b.name} is {b.state}" + (f" ({b.reason})" if b.reason else "")
            for b in self.backends.values()
            if not b.works
        ]

    @staticmethod
    def _flipped(state: BackendState, changed: bool, now: float) -> bool:
        if changed:
            state.since = now
            state.asleep = state.asleep and state.health.usable  # what comes up again is awake until it says otherwise
        return changed
