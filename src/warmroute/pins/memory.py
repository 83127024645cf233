"""Pins in this process: bounded, forgotten when idle, every change synchronous and whole."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import merge
from typing import Generic, TypeVar, cast

from msgspec import Struct

from ..core.identity import CONTENT
from ..core.model import Decision, PinChange, Session

Shelf = OrderedDict[bytes, "Pin"]
"""Not a plain dict: that one finds its first key by walking over all that were removed before it."""


@dataclass(slots=True)
class Rare:
    """What few pins have, so that all others need no room for it."""

    proven: bool = True
    spills: int = 0
    before: "Pin | None" = None
    held: bytes | None = None
    shared: float = 0.0


_NONE, _KEEP = PinChange.NONE, PinChange.KEEP
_NOTHING = Rare()
"""Only ever read."""
_Value = TypeVar("_Value")


class _Few(Generic[_Value]):
    """An attribute of pins that few have, the others `usual`: read and set as any other, and kept in `Pin.rare`."""

    __slots__ = ("_name", "_usual")

    def __init__(self, usual: _Value) -> None:
        self._usual = usual

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, pin: "Pin", owner: type) -> _Value:
        return self._usual if pin.rare is None else cast("_Value", getattr(pin.rare, self._name))

    def __set__(self, pin: "Pin", value: _Value) -> None:
        if pin.rare is None:
            if value == self._usual:
                return
            pin.rare = Rare()
        setattr(pin.rare, self._name, value)
        if pin.rare == _NOTHING:
            pin.rare = None


class Pin(Struct, gc=False):
    """One conversation's place. `confirmed` once content came from there; until then `before` is where it was.

    `size` is that of the prompt with which it came here, in KiB. `spills` counts the turns in a row that were served
    elsewhere. `proven` is False for what may be a single request: a prompt without an id, or one beside another
    conversation, that nobody has gone on with. `held` and `shared` are for routers that share their pins: what the store
    holds for it, and when that was asked. The garbage collector passes it over: there may be millions, and none is in a cycle.
    """

    backend: str
    engine: str | None
    source: str
    used: float
    size: int = 0
    turns: int = 0
    confirmed: bool = False
    rare: Rare | None = None

    proven = _Few(_NOTHING.proven)
    spills = _Few(_NOTHING.spills)
    before = _Few(_NOTHING.before)
    held = _Few(_NOTHING.held)
    shared = _Few(_NOTHING.shared)


class PinTable:
    """Session key -> Pin, the least recently used first. What is not proven lies apart, expires sooner and is evicted first.

    A pin is reserved when the decision is made, so that parallel first turns of one conversation and the bounds of other
    decisions see it at once; it is confirmed at the first content, and withdrawn if the backend fails before that.
    Times are seconds of `clock`, which must not jump.
    """

    def __init__(
        self, clock: Callable[[], float], *, idle_expiry: float, limit: int, unproven_expiry: float | None = None
    ) -> None:
        self._clock = clock
        self._idle_expiry = idle_expiry
        self._unproven_expiry = min(idle_expiry, unproven_expiry or idle_expiry)
        self._limit = limit
        self._proven: Shelf = OrderedDict()
        self._unproven: Shelf = OrderedDict()
        self._counts: Counter[tuple[str, str | None]] = Counter()
        self._backends: Counter[str] = Counter()
        self._sizes: Counter[str] = Counter()
        self.evicted = 0
        self.expired = 0

    def __repr__(self) -> str:
        return f"<PinTable {len(self)} pins, {self.expired} expired, {self.evicted} evicted>"

    def __len__(self) -> int:
        return len(self._proven) + len(self._unproven)

    def get(self, key: bytes) -> Pin | None:
        """The pin of a session, or None if it has none or was idle for too long."""
        pin, expiry = self._proven.get(key), self._idle_expiry
        if pin is None:
            pin, expiry = self._unproven.get(key), self._unproven_expiry
        if pin is not None and pin.used <= self._clock() - expiry:
            self.expire()
            return None
        return pin

    def sessions(self, backend: str) -> int:
        """Live sessions of a backend."""
        return self._backends[backend]

    def size(self, backend: str) -> int:
        """KiB of the prompts with which a backend's live sessions came there."""
        return self._sizes[backend]

    def engine_sessions(self, backend: str, engine: str | None) -> int:
        return self._counts[backend, engine]

    def reserve(self, session: Session, decision: Decision, size: int = 0) -> None:
        """Put the session where the decision says, until it is confirmed or withdrawn. `size` is its prompt's, in KiB."""
        key, change = session.key, decision.change
        if decision.backend is None or change is _NONE:
            return
        if change is _KEEP and (kept := self._proven.get(key) or self._unproven.get(key)) is not None:
            if kept.engine != decision.engine:
                self._count(kept, -1)
                kept.engine = decision.engine
                self._count(kept, 1)
            if kept.rare is not None:
                kept.spills = 0
            self._use(key, kept)
            return
        old = self._take(key)
        pin = Pin(decision.backend, decision.engine, session.source, self._clock(), size)
        if old is not None:
            self._count(old, -1)
            pin.turns, pin.held, pin.proven = old.turns, old.held, old.proven
            pin.before = old if old.confirmed else old.before
        else:
            pin.proven = session.source != CONTENT and not session.parent
        if len(self) >= self._limit:
            self._drop(next(iter(self._unproven or self._proven)))
            self.evicted += 1
        self._put(key, pin)
        self._count(pin, 1)

    def spilled(self, session: Session) -> None:
        """The session's turn is served elsewhere this once; it lives on where it is."""
        pin = self._pin(session.key)
        if pin is not None:
            pin.spills += 1
            self._use(session.key, pin)

    def confirm(self, session: Session, decision: Decision) -> bool:
        """Content came from the decision's backend; returns True if the session has moved there from another one.

        A pin that another request has meanwhile put elsewhere stays there; one that was lost meanwhile is made again.
        """
        key, moved = session.key, False
        pin = self._proven.get(key) or self._unproven.get(key)
        if pin is None:
            self.reserve(session, decision._replace(change=PinChange.BIND))
            pin = self._proven.get(key) or self._unproven[key]
        elif pin.backend != decision.backend:
            return False
        pin.confirmed = True
        pin.turns += 1
        if pin.rare is not None:
            moved = pin.before is not None and pin.before.backend != pin.backend
            pin.before = None
            if not pin.proven and pin.turns > 1:
                pin.proven = True
                self._proven[key] = self._unproven.pop(key)
        self._use(key, pin)
        return moved

    def withdraw(self, session: Session, decision: Decision) -> bool:
        """The decision's backend failed before content: an unconfirmed pin goes back to where it was, or away.

        Returns True if there was one.
        """
        pin = self._pin(session.key)
        if pin is None or pin.confirmed or pin.backend != decision.backend:
            return False
        self._drop(session.key)
        if pin.before is not None:
            pin.before.used = self._clock()
            pin.before.held, pin.before.shared = pin.held, 0.0
            self._put(session.key, pin.before)
            self._count(pin.before, 1)
        return True

    def relocate(self, key: bytes, backend: str, engine: str | None) -> None:
        """Another router has this session elsewhere: it lives there, confirmed, and nothing else of it changes."""
        pin = self._proven.get(key) or self._unproven[key]
        self._count(pin, -1)
        pin.backend, pin.engine, pin.confirmed, pin.before = backend, engine, True, None
        self._count(pin, 1)

    def expire(self) -> None:
        """Drop what was idle for too long. Pins lie in order of use, so only the oldest need a look."""
        now = self._clock()
        for proven in (True, False):
            shelf, oldest = self._shelf(proven), now - self._expiry(proven)
            while shelf:
                key = next(iter(shelf))
                if shelf[key].used > oldest:
                    break
                self._drop(key)
                self.expired += 1

    def newest(self) -> Iterator[tuple[bytes, Pin]]:
        """All pins, the most recently used first."""
        proven = ((key, self._proven[key]) for key in reversed(self._proven))
        unproven = ((key, self._unproven[key]) for key in reversed(self._unproven))
        return merge(proven, unproven, key=lambda pair: -pair[1].used)

    def names(self) -> list[bytes]:
        """The keys of all pins in the same order, for who lets the table change while going through them."""
        return [key for key, _ in self.newest()]

    def _shelf(self, proven: bool) -> Shelf:
        return self._proven if proven else self._unproven

    def _expiry(self, proven: bool) -> float:
        return self._idle_expiry if proven else self._unproven_expiry

    def _pin(self, key: bytes) -> Pin | None:
        return self._proven.get(key) or self._unproven.get(key)

    def _use(self, key: bytes, pin: Pin) -> None:
        """This pin is the one that was used last."""
        pin.used = self._clock()
        (self._proven if pin.rare is None or pin.proven else self._unproven).move_to_end(key)

    def _put(self, key: bytes, pin: Pin) -> None:
        self._shelf(pin.proven)[key] = pin

    def _take(self, key: bytes) -> Pin | None:
        return self._proven.pop(key, None) or self._unproven.pop(key, None)

    def _drop(self, key: bytes) -> None:
        pin = self._take(key)
        if pin is not None:
            self._count(pin, -1)

    def _count(self, pin: Pin, by: int) -> None:
        self._counts[pin.backend, pin.engine] += by
        self._backends[pin.backend] += by
        self._sizes[pin.backend] += by * pin.size
        if not self._counts[pin.backend, pin.engine]:
            del self._counts[pin.backend, pin.engine]
        if not self._backends[pin.backend]:
            del self._backends[pin.backend], self._sizes[pin.backend]
