"""Pins in this process: bounded, forgotten when idle, every change synchronous and whole."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..core.model import Decision, PinChange, Session


@dataclass(slots=True)
class Pin:
    """One conversation's place. `confirmed` once content came from there; until then `before` is where it was.

    `held` and `shared` are for routers that share their pins: what the store holds for it, and when that was asked.
    """

    backend: str
    engine: str | None
    source: str
    used: float
    turns: int = 0
    confirmed: bool = False
    before: "Pin | None" = None
    held: bytes | None = None
    shared: float = 0.0


class PinTable:
    """Session key -> Pin, the least recently used first.

    A pin is reserved when the decision is made, so that parallel first turns of one conversation and the bounds of other
    decisions see it at once; it is confirmed at the first content, and withdrawn if the backend fails before that.
    Times are seconds of `clock`, which must not jump.
    """

    def __init__(self, clock: Callable[[], float], *, idle_expiry: float, limit: int) -> None:
        self._clock = clock
        self._idle_expiry = idle_expiry
        self._limit = limit
        # Not a plain dict: that one finds its first key by walking over all that were removed before it.
        self._pins: OrderedDict[bytes, Pin] = OrderedDict()
        self._counts: Counter[tuple[str, str | None]] = Counter()
        self._backends: Counter[str] = Counter()
        self.evicted = 0
        self.expired = 0

    def __repr__(self) -> str:
        return f"<PinTable {len(self._pins)} pins, {self.expired} expired, {self.evicted} evicted>"

    def __len__(self) -> int:
        return len(self._pins)

    def get(self, key: bytes) -> Pin | None:
        """The pin of a session, or None if it has none or was idle for too long."""
        pin = self._pins.get(key)
        if pin is not None and pin.used <= self._clock() - self._idle_expiry:
            self.expire()
            return None
        return pin

    def sessions(self, backend: str) -> int:
        """Live sessions of a backend."""
        return self._backends[backend]

    def engine_sessions(self, backend: str, engine: str | None) -> int:
        return self._counts[backend, engine]

    def reserve(self, session: Session, decision: Decision) -> None:
        """Put the session where the decision says, until it is confirmed or withdrawn."""
        if decision.backend is None or decision.change is PinChange.NONE:
            return
        now = self._clock()
        old = self._pins.pop(session.key, None)
        if decision.change is PinChange.KEEP and old is not None:
            if old.engine != decision.engine:
                self._count(old, -1)
                old.engine = decision.engine
                self._count(old, 1)
            old.used = now
            self._pins[session.key] = old
            return
        pin = Pin(decision.backend, decision.engine, session.source, now)
        if old is not None:
            self._count(old, -1)
            pin.turns, pin.held = old.turns, old.held
            pin.before = old if old.confirmed else old.before
        self._pins[session.key] = pin
        self._count(pin, 1)
        if len(self._pins) > self._limit:
            self._drop(next(iter(self._pins)))
            self.evicted += 1

    def confirm(self, session: Session, decision: Decision) -> bool:
        """Content came from the decision's backend; returns True if the session has moved there from another one.

        A pin that another request has meanwhile put elsewhere stays there; one that was lost meanwhile is made again.
        """
        pin = self._pins.get(session.key)
        if pin is None:
            self.reserve(session, decision._replace(change=PinChange.BIND))
            pin = self._pins[session.key]
        elif pin.backend != decision.backend:
            return False
        moved = pin.before is not None and pin.before.backend != pin.backend
        pin.confirmed, pin.before = True, None
        pin.turns += 1
        pin.used = self._clock()
        self._pins.move_to_end(session.key)
        return moved

    def withdraw(self, session: Session, decision: Decision) -> bool:
        """The decision's backend failed before content: an unconfirmed pin goes back to where it was, or away.

        Returns True if there was one.
        """
        pin = self._pins.get(session.key)
        if pin is None or pin.confirmed or pin.backend != decision.backend:
            return False
        self._drop(session.key)
        if pin.before is not None:
            pin.before.used = self._clock()
            pin.before.held, pin.before.shared = pin.held, 0.0
            self._pins[session.key] = pin.before
            self._count(pin.before, 1)
        return True

    def relocate(self, key: bytes, backend: str, engine: str | None) -> None:
        """Another router has this session elsewhere: it lives there, confirmed, and nothing else of it changes."""
        pin = self._pins[key]
        self._count(pin, -1)
        pin.backend, pin.engine, pin.confirmed, pin.before = backend, engine, True, None
        self._count(pin, 1)

    def expire(self) -> None:
        """Drop what was idle for too long. Pins lie in order of use, so only the oldest need a look."""
        oldest = self._clock() - self._idle_expiry
        while self._pins:
            key = next(iter(self._pins))
            if self._pins[key].used > oldest:
                return
            self._drop(key)
            self.expired += 1

    def newest(self) -> Iterator[tuple[bytes, Pin]]:
        """All pins, the most recently used first."""
        return ((key, self._pins[key]) for key in reversed(self._pins))

    def names(self) -> list[bytes]:
        """The keys of all pins in the same order, for who lets the table change while going through them."""
        return list(reversed(self._pins))

    def _drop(self, key: bytes) -> None:
        self._count(self._pins.pop(key), -1)

    def _count(self, pin: Pin, by: int) -> None:
        self._counts[pin.backend, pin.engine] += by
        self._backends[pin.backend] += by
        if not self._counts[pin.backend, pin.engine]:
            del self._counts[pin.backend, pin.engine]
        if not self._backends[pin.backend]:
            del self._backends[pin.backend]
