"""What a worker tells its supervisor: sessions it has placed, prompts it has seen, requests that have ended."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

from ..core.drift import grown
from ..core.model import Decision, PinChange, Session
from ..core.residency import Held
from ..core.sketch import Sketch
from ..core.usage import Usage
from ..observe.record import RequestRecord
from ..pins.memory import PinTable
from ..recognition.recent import Recent
from ..truth.ledger import NO_PROMPT, Ledger, Prompt, Said, family_of, sketched
from .rows import Cell, Rows
from .views import Slots

SOON = 0.02
"""Seconds that most messages may wait, so that a busy worker sends many at once."""
_BYTES_BEFORE = 0.02
"""Seconds between the last byte of an answer and its account, on a machine that has too much to do."""
_APART = ("prompt", "held", "hop")
"""Fields behind the usage that are not told as they are: prompts are told when they come, hops stay here with their spans."""
_FIELDS = RequestRecord.__struct_fields__
_DECISION, _USAGE = _FIELDS.index("decision"), _FIELDS.index("usage")
_MAKE: Callable[..., RequestRecord] = RequestRecord
_BEFORE = attrgetter(*_FIELDS[:_DECISION])
_BETWEEN = attrgetter(*_FIELDS[_DECISION + 1 : _USAGE])
_BEHIND = attrgetter(*_FIELDS[_USAGE + 1 + len(_APART) :])

Tell = Callable[..., None]
Named = tuple[bytes, str, bytes]
"""A session as it is told: what is a tuple, a text or bytes is sent in a third of the time of anything else."""


def values_of(record: RequestRecord) -> tuple[Any, ...]:
    """A record as it is told: fields in their order, as plain values."""
    usage, held = tuple(record.usage), record.held
    told = None if held is None else tuple(held)
    return (*_BEFORE(record), str(record.decision), *_BETWEEN(record), usage, told, *_BEHIND(record))


def record_of(values: tuple[Any, ...], prompt: Prompt) -> RequestRecord:
    """The record that was told, with its prompt put in."""
    usage, held = values[_USAGE : _USAGE + 2]
    was = None if held is None else Held(*held)
    return _MAKE(*values[:_USAGE], Usage(*usage), prompt, was, None, *values[_USAGE + 2 :])


class ToldPins(PinTable):
    """The pins of this worker, of which it tells the supervisor; the numbers of sessions are those of all workers."""

    def __init__(self, rows: Rows, slots: Slots, tell: Tell, clock: Callable[[], float], **bounds: Any) -> None:
        """`clock` and `bounds` are those of every table."""
        super().__init__(clock, **bounds)
        self.rows, self.slots, self.tell = rows, slots, tell

    def sessions(self, backend: str) -> int:
        return self.rows.sessions(self.slots.of(backend))

    def size(self, backend: str) -> int:
        return self.rows.size(self.slots.of(backend))

    def engine_sessions(self, backend: str, engine: str | None) -> int:
        return self.rows.sessions(self.slots.of(backend, engine))

    def reserve(self, session: Session, decision: Decision, size: int = 0) -> None:
        new = decision.change is PinChange.BIND and self._pin(session.key) is None
        super().reserve(session, decision, size)
        if new:
            self._bound("bound", session, decision, 1, size)

    def withdraw(self, session: Session, decision: Decision) -> bool:
        before = self._pin(session.key)
        done = super().withdraw(session, decision)
        if done and before is not None and self._pin(session.key) is None:
            self._bound("unbound", session, decision, -1, before.size)
        return done

    def confirm(self, session: Session, decision: Decision) -> bool:
        moved = super().confirm(session, decision)
        pin = self._pin(session.key)
        if pin is not None and pin.backend == decision.backend:
            self.tell("lives", self._clock(), tuple(session), pin.backend, pin.engine, pin.size, within=SOON)
        return moved

    def spilled(self, session: Session) -> None:
        super().spilled(session)
        self.tell("spilled", self._clock(), tuple(session), within=SOON)

    def _bound(self, what: str, session: Session, decision: Decision, by: int, size: int) -> None:
        slots = self.slots.both(decision.backend or "", decision.engine)
        for slot in slots:
            self.rows.add(slot, Cell.BOUND, by)
            self.rows.add(slot, Cell.BOUND_SIZE, by * size)
        self.tell(what, tuple(session), decision.backend, decision.engine, size, slots, within=SOON)


class Seen(Prompt):
    """A prompt that the supervisor has been told of, under this number and with this time."""

    __slots__ = ("at", "number")

    def __init__(self, number: int, at: float) -> None:
        super().__init__()
        self.number, self.at = number, at


IN_ORDER = frozenset({"lives", "spilled", "looked", "settled"})
"""Messages that begin with the time of what they tell, and are to be taken in its order."""
UNSEEN, OLDER = -1, -2
"""Numbers of prompts of which nothing was told: nothing is known of them, or only that they go on with something."""


def settled(record: RequestRecord, now: float) -> tuple[float, int, tuple[object, ...]]:
    """What is told of a request at its end: when, under which number its prompt is known, and the record's values.

    The time is a little before the end. Its client may have had the last byte, and have sent the next turn to another worker,
    before this one came to settle it.
    """
    prompt, at = record.prompt, now - _BYTES_BEFORE
    if isinstance(prompt, Seen):
        return max(at, prompt.at), prompt.number, values_of(record)
    return at, OLDER if prompt is not NO_PROMPT and prompt.older else UNSEEN, values_of(record)


class Last(NamedTuple):
    """The last prompt of a session that came to this worker, and its family."""

    family: int
    sketch: Sketch


class ToldLedger(Ledger):
    """Tells the supervisor of prompts, which compares them: the turn before may have come through another worker."""

    __slots__ = ("_clock", "_last", "_number", "_tell")

    def __init__(self, tell: Tell, clock: Callable[[], float], last: Recent[Last], of: Ledger) -> None:
        """`last` holds prompts by session; `of` is a ledger that accounts for nothing here."""
        super().__init__(of.conversations, of.move_cause, of.process_of)
        self._tell, self._clock, self._last, self._number = tell, clock, last, 0

    def look(self, session: Session, said: Said, came_from: bytes | None, *, older: bool) -> Prompt:
        found = self._last.get(session.key)
        if found is None and came_from is not None:
            found = self._last.get(came_from)
        made = sketched(said, found.sketch if found is not None else None)
        if made is None:
            return NO_PROMPT
        now, parts = made
        if found is not None and parts is None:
            family, grows = found.family, grown(found.sketch, now).cause is None
        else:
            family, grows = family_of(parts or ()), found is not None and now.goes_on(found.sketch)
        if not grows:
            self._mask(now, parts or said.parts())
        self._last.put(session.key, Last(family, now))
        self._number += 1
        at, named = self._clock(), tuple(session)
        told = (now.digests.tobytes(), now.lengths.tobytes(), now.kinds, now.size, now.billing, now.text)
        self._tell("looked", at, self._number, named, told, now.masks, family, came_from, older, within=SOON)
        return Seen(self._number, at)
