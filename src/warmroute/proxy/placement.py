"""Decide, reserve and lease in one synchronous step, so that two requests never take the same last place.

Where pins are shared with other routers, the step is repeated until they agree with it, or can not be asked.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from ..core.model import Decision, PinChange, Place, Reason, Session
from ..core.policy import NO_WISHES, Bounds, Wishes, decide
from ..fleet.registry import Lease, Registry
from ..fleet.residents import Residents
from ..pins.memory import Pin, PinTable
from ..pins.shared import SharedPins

_TRIES = 8
"""So often is a place looked for that somebody else has taken between the decision and its lease."""
_ROUNDS = 4
"""So often is a session placed anew in one request that other routers place elsewhere at the same time."""
_PIN_SPILL = Reason.PIN_SPILL


@dataclass(slots=True)
class Placed:
    """A decision that named a backend, with the place that was taken there: to be given back by a `with` block."""

    decision: Decision
    backend: str
    lease: Lease


class Placement:
    """Where requests go. `place` is followed by `confirm` at the first content or by `withdraw`."""

    def __init__(
        self,
        registry: Registry,
        pins: PinTable,
        bounds: Bounds,
        shared: SharedPins | None = None,
        residents: Residents | None = None,
    ) -> None:
        self._registry = registry
        self._pins = pins
        self._residents = residents
        self._bounds = bounds
        # Bounds that nothing exceeds: what each router counts differs, its ring does not, so they agree without asking.
        self._ring_alone = replace(bounds, sessions=1e9, even=0, size=1e9, in_flight=1e9)
        self._shared = shared

    def model_of(self, named: str | None) -> str | None:
        """The model a request means: the one it names, or the only one there is."""
        if named is not None:
            return named
        models = self._registry.fleet().models()
        return next(iter(models)) if len(models) == 1 else None

    def look(
        self,
        session: Session | None,
        model: str | None,
        request_key: bytes,
        exclude: Collection[str],
        wishes: Wishes = NO_WISHES,
        bounds: Bounds | None = None,
        size: int = 0,
        elsewhere: Place | None = None,
    ) -> Decision:
        """Where the request would go now. `size` is its prompt's, in KiB; `elsewhere` is where other routers have its session,
        for one that has no pin here."""
        pin = self._pins.get(session.key) if session else None
        if pin is None and elsewhere is not None and session is not None:
            pin = Pin(*elsewhere, session.source, used=0.0)
        residents = self._residents
        cold = (
            residents is not None
            and pin is not None
            and session is not None
            and residents.cold(session.key, pin.backend, pin.engine)
        )
        fleet = self._registry.fleet()
        return decide(fleet, session, pin, model, request_key, exclude, bounds or self._bounds, wishes, size, cold)

    def place(
        self,
        session: Session | None,
        model: str | None,
        request_key: bytes,
        exclude: Collection[str],
        wishes: Wishes = NO_WISHES,
        bounds: Bounds | None = None,
        size: int = 0,
    ) -> Placed | Decision:
        """Choose a backend and take a place there, or return the decision that says why none can be had."""
        most = 0 if wishes.urgent else (bounds or self._bounds).full
        for _ in range(_TRIES):
            decision = self.look(session, model, request_key, exclude, wishes, bounds, size)
            backend = decision.backend
            if backend is None:
                return decision
            lease = self._registry.claim(decision, most)
            if lease is None:
                continue
            if session is not None:
                self._pins.reserve(session, decision, size)
                if decision.reason is _PIN_SPILL and decision.change is PinChange.NONE:
                    self._pins.spilled(session)
            return Placed(decision, backend, lease)
        return Decision(Reason.BUSY)

    async def place_agreed(
        self,
        session: Session | None,
        model: str | None,
        request_key: bytes,
        exclude: Collection[str],
        wishes: Wishes = NO_WISHES,
        size: int = 0,
    ) -> Placed | Decision:
        """`place`, where the other routers agree. Waits for the store only if it has not agreed to the session's pin yet.

        The place is held meanwhile, so that the bounds of others count it.
        """
        shared = self._shared
        if session is None or shared is None:
            return self.place(session, model, request_key, exclude, wishes, None, size)
        for left in reversed(range(_ROUNDS)):
            bounds = self._bounds if shared.store.up else self._ring_alone
            placed = self.place(session, model, request_key, exclude, wishes, bounds, size)
            if not isinstance(placed, Placed) or shared.agreed(session.key):
                break
            stands = False
            try:
                stands = not await shared.settle(session.key) or not left
            finally:
                if not stands:
                    placed.lease.give_back()
            if stands:
                break
        return placed

    async def foresee(
        self, session: Session | None, model: str | None, wishes: Wishes, size: int
    ) -> tuple[Decision, bool]:
        """What `place_agreed` would decide now, and whether only other routers know the session; nothing is reserved."""
        shared, elsewhere, bounds = self._shared, None, self._bounds
        if shared is not None and session is not None:
            if self._pins.get(session.key) is None:
                elsewhere = await shared.elsewhere(session.key)
            if not shared.store.up:
                bounds = self._ring_alone
        decision = self.look(session, model, b"explain", (), wishes, bounds, size, elsewhere)
        return decision, elsewhere is not None

    def confirm(self, session: Session | None, decision: Decision) -> bool:
        """The backend has begun to answer; True if the session has moved there from another one."""
        return session is not None and self._pins.confirm(session, decision)

    def withdraw(self, session: Session | None, decision: Decision) -> None:
        """The backend refused or failed before it answered."""
        if session is not None and self._pins.withdraw(session, decision) and self._shared is not None:
            self._shared.withdrawn(session.key, decision)
