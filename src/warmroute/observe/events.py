"""What happened to conversations and backends, as a list for people: moves, spills, failures, changes of state, reloads."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import islice

from ..core.model import Phase, Reason
from ..fleet.changes import Changes
from ..fleet.registry import BackendState
from .record import RequestRecord

KEPT = 200
"""Events that are kept; the oldest goes first."""
TOGETHER = 30.0
"""Seconds after the last of its kind within which an event is counted with it: a failure moves many conversations at once."""
_PIN_SPILL = Reason.PIN_SPILL
_LOOKED_AT = 16


class Kind(StrEnum):
    """What happened."""

    STATE = "state"  # a backend's state became `to`
    MOVE = "move"  # conversations went from `backend` to `to`, where they stay
    SPILL = "spill"  # requests were served by `to` once, since their own backend was full
    FAILURE = "failure"  # requests failed at `backend`; `to` served them, or nobody did
    RESUMED = "resumed"  # an answer broke off at `backend` and was gone on with at `to`
    BROKEN = "broken"  # an answer broke off at `backend`, and its client was told
    BACKENDS = "backends"  # others were added or removed, by discovery or by hand
    RELOAD = "reload"
    RELOAD_FAILED = "reload_failed"


@dataclass(slots=True)
class Event:
    """`count` things alike, the first at `time` and the last at `last` (seconds since 1970).

    `why` is a word of a closed set for a move, else text for people. `tokens` are the prompt tokens computed for it.
    """

    time: float
    last: float
    kind: Kind
    backend: str = ""
    to: str = ""
    why: str = ""
    count: int = 1
    tokens: int = 0


class Events:
    """Fed by the router beside its requests. `move_cause` tells why a decision left a backend; `wall` is the time of day."""

    def __init__(self, move_cause: Callable[[str, str], str], wall: Callable[[], float]) -> None:
        self._move_cause = move_cause
        self._wall = wall
        self._kept: deque[Event] = deque(maxlen=KEPT)
        self._states: dict[str, str] = {}
        self.version = 0
        """Another number after every change."""

    def __repr__(self) -> str:
        return f"<Events {len(self._kept)} kept, version {self.version}>"

    def newest(self, limit: int = KEPT) -> list[dict[str, object]]:
        """As JSON values, the one that began last first."""
        return [asdict(event) for event in islice(reversed(self._kept), limit)]

    def watch(self, backends: Iterable[BackendState]) -> None:
        """Note which backends are in another state than when they were last looked at; new ones are only learnt."""
        for backend in backends:
            name, state = backend.name, backend.state
            before = self._states.get(name)
            if before != state:
                self._states[name] = state
                if before is not None:
                    self._add(Kind.STATE, name, state, "" if state == "up" else backend.reason)

    def settle(self, record: RequestRecord) -> None:
        """Take a request at its end, before the ledger does."""
        served = record.backend if record.first_byte_s is not None and record.status < 400 else None
        broken = record.resumed is not None
        for backend, failure in record.failures:
            if failure.stale or failure.own:
                continue
            if broken and failure.phase is Phase.STREAM:  # the first one; others are of backends that were to go on
                broken, resumed = False, record.resumed == "resumed"
                kind = Kind.RESUMED if resumed else Kind.BROKEN
                self._add(kind, backend, (record.backend or "") if resumed else "", failure.detail)
            else:
                self._add(Kind.FAILURE, backend, served or "", failure.detail)
        if served is not None and (record.moved or record.decision == _PIN_SPILL):
            before = record.prompt.before
            failed = record.failures[0][0] if record.failures else ""
            left = before.computed[0].engine.backend if before is not None and before.computed else failed
            if left != served:
                kind = Kind.SPILL if record.decision == _PIN_SPILL else Kind.MOVE
                why = self._move_cause(record.decision, left) if left else ""
                self._add(kind, left, served, why, _computed(record))

    def reloaded(self, changes: Changes) -> None:
        """Take what a new configuration did to the backends; those that are gone are forgotten."""
        self._forget(changes)
        self._add(Kind.RELOAD, why=changes.told())

    def backends_changed(self, changes: Changes) -> None:
        """Take what discovery or an operator did to the backends."""
        self._forget(changes)
        self._add(Kind.BACKENDS, why=changes.told())

    def _forget(self, changes: Changes) -> None:
        for name in (*changes.removed, *changes.replaced):
            self._states.pop(name, None)

    def reload_failed(self, why: str) -> None:
        """Take why the configuration of before stays in force."""
        self._add(Kind.RELOAD_FAILED, why=why)

    def _add(self, kind: Kind, backend: str = "", to: str = "", why: str = "", tokens: int = 0) -> None:
        now = self._wall()
        self.version += 1
        for event in islice(reversed(self._kept), _LOOKED_AT):
            if now - event.last > TOGETHER:
                break
            alike = (event.kind, event.backend, event.to) == (kind, backend, to)
            alike = alike and kind not in (Kind.STATE, Kind.BACKENDS)
            if alike and (event.why == why or kind is not Kind.MOVE):
                event.last, event.why = now, why
                event.count += 1
                event.tokens += tokens
                return
        self._kept.append(Event(now, now, kind, backend, to, why, 1, tokens))


def _computed(record: RequestRecord) -> int:
    """Prompt tokens that were not cached, as far as the backend says."""
    usage = record.usage
    return usage.prompt - usage.cached if usage.prompt is not None and usage.cached is not None else 0
