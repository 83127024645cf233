"""Whom to ask: the pin if it holds, else the first backend in ring order that is under its bound."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, floor
from typing import NamedTuple

from .model import Candidate, Candidates, Decision, Near, PinChange, PinView, Reason, Session
from .ring import Ring, position


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far above its fair share a backend may be when it takes a new session.

    `sessions` bounds live sessions. The first `even` sessions of a backend's share are dealt out exactly, since few long
    conversations must spread evenly too, and those that run now are only some of those that live; of what the share has
    beyond them a backend may hold that factor, so that most sessions of a large fleet are at home on the ring.
    `size` bounds what the live sessions came with, in bytes: among backends under the bound of sessions those that hold less
    than that many times their share go first, since one long prompt takes more of a server than ten short ones.
    `in_flight` bounds running requests; a backend over it takes new sessions only if all are. For a session that
    would rather be where a part of its prompt is known, `near_in_flight` requests may run there whatever runs elsewhere, and
    `near_sessions` sessions more than `sessions` gives may live there: a known beginning saves one prefill, too many sessions
    cost as long as they live. A backend with `full` requests in flight takes no more (0: any number): its sessions wait, or
    with `spill` are served elsewhere, and after `spills` times in a row move. With `strict` sessions do not move from a
    backend that may come back.
    """

    sessions: float = 1.05
    even: int = 100
    in_flight: float = 1.25
    size: float = 1.1
    near_in_flight: int = 4
    near_sessions: int = 1
    full: int = 0
    spill: bool = False
    spills: int = 3
    strict: bool = False


DEFAULT_BOUNDS = Bounds()

_STUCK, _STUCK_TIMES = 8, 2.0
"""So many requests in flight, and so many times its share of them, say that a backend may hang."""


class Wishes(NamedTuple):
    """What a request asks of its placement beyond its session.

    `owner` is the one backend that can answer it; `near` is where a session without a pin had better go; `side` says that
    it is beside a conversation; `urgent` that it may not wait, since a part of its answer has been sent.
    """

    owner: str | None = None
    near: Near | None = None
    side: bool = False
    urgent: bool = False


NO_WISHES = Wishes()


@dataclass(frozen=True, slots=True)
class Fleet:
    """The backends as a decision sees them. Nothing awaits while one is made, so live state is a snapshot."""

    backends: Candidates
    ring: Ring

    def models(self) -> set[str]:
        """The names of all models that some backend is known to serve."""
        return {model for backend in self.backends.values() for model in backend.models or ()}

    def serving(self, model: str | None, exclude: Collection[str] = ()) -> list[Candidate]:
        """The backends that are available, serve the model and are not excluded.

        One whose models are not known may serve it, and counts where none is known to.
        """
        may = [b for b in self.backends.values() if b.name not in exclude and b.available and _serves(b, model)]
        return [b for b in may if b.models is not None] or may if model is not None else may


def decide(
    fleet: Fleet,
    session: Session | None,
    pin: PinView | None,
    model: str | None,
    request_key: bytes,
    exclude: Collection[str] = (),
    bounds: Bounds = DEFAULT_BOUNDS,
    wishes: Wishes = NO_WISHES,
    size: int = 0,
    cold: bool = False,
) -> Decision:
    """Choose a backend and say why; changes nothing.

    `cold` says that the pin's backend is known to have nothing left of the session. `size` is that of the prompt, in KiB.
    `exclude` names the backends that have failed this request already. `request_key` breaks ties between equally loaded
    backends for a request without a session.
    """
    if wishes is not NO_WISHES:
        if wishes.urgent:
            bounds = replace(bounds, full=0)
        if wishes.owner is not None:
            return _ask_owner(fleet, wishes.owner, session, pin, exclude, bounds)
    pinned = fleet.backends.get(pin.backend) if pin is not None else None
    if pin is not None and session is not None and pinned is not None and _serves(pinned, model):
        if pinned.available and pinned.name not in exclude:
            elsewhere = _leave_cold(fleet, session, pinned, model, exclude, bounds, size) if cold else None
            if elsewhere is not None:
                return elsewhere
            if _full(pinned, bounds):
                return _spill(fleet, session, pinned, pin, model, exclude, bounds, size)
            engine = pin.engine
            return _stay(pinned.name, engine if _has_engine(pinned, engine) else pick_engine(pinned, session.key))
        if bounds.strict and not pinned.leaving:
            return Decision(Reason.PIN_GONE, full=pinned.name)
    serving = fleet.serving(model, exclude)
    if not serving:
        known = model is None or any(_serves(b, model) for b in fleet.backends.values())
        return Decision(Reason.NONE_AVAILABLE if known or not fleet.backends else Reason.UNKNOWN_MODEL)
    candidates = [b for b in serving if b.accepts_new] or serving
    candidates = [b for b in candidates if not _full(b, bounds)]
    if not candidates:
        return Decision(Reason.BUSY)
    if session is None:
        reason = Reason.SIDE if wishes.side else Reason.NO_SESSION
        return Decision(reason, _least_loaded(fleet.ring, candidates, request_key).name)
    if wishes.near is not None and pin is None:
        near = _near(candidates, wishes.near, session.key, bounds, size)
        if near is not None:
            return near
    home, chosen = _place(fleet.ring, candidates, session.key, bounds, size)
    engine = pick_engine(chosen, session.key)
    if pin is not None:
        return Decision(Reason.PIN_LOST, chosen.name, engine, PinChange.MOVE)
    reason = Reason.RING if chosen is home else Reason.RING_SPILL
    return Decision(reason, chosen.name, engine, PinChange.BIND)


@lru_cache(maxsize=1024)
def _stay(backend: str, engine: str | None) -> Decision:
    """What nearly all requests are told, made once for each place."""
    return Decision(Reason.PIN_HIT, backend, engine, PinChange.KEEP)


def _full(backend: Candidate, bounds: Bounds) -> bool:
    return 0 < bounds.full <= backend.in_flight


def _leave_cold(
    fleet: Fleet,
    session: Session,
    pinned: Candidate,
    model: str | None,
    exclude: Collection[str],
    bounds: Bounds,
    size: int,
) -> Decision | None:
    """Nothing holds the session where it lives: where that is busier than its share, or to be left, it goes elsewhere.

    Otherwise it stays (None), since a move gains nothing. As with a session that is near another one, some requests may
    run there in any case.
    """
    if bounds.strict:
        return None
    candidates = [b for b in fleet.serving(model, exclude) if b.accepts_new and not _full(b, bounds)]
    others = [b for b in candidates if b is not pinned]
    if not others:
        return None
    if pinned in candidates:
        share = _share_of(candidates, size).in_flight * pinned.weight
        if pinned.in_flight + 1 <= max(bounds.near_in_flight, _limit(share, bounds.in_flight)):
            return None
    _, chosen = _place(fleet.ring, others, session.key, bounds, size)
    return Decision(Reason.PIN_COLD, chosen.name, pick_engine(chosen, session.key), PinChange.MOVE)


def _spill(
    fleet: Fleet,
    session: Session,
    pinned: Candidate,
    pin: PinView,
    model: str | None,
    exclude: Collection[str],
    bounds: Bounds,
    size: int,
) -> Decision:
    """The pinned backend is full: wait for it, or go elsewhere this once, or for good where that has happened too often."""
    serving = fleet.serving(model, {*exclude, pinned.name}) if bounds.spill else []
    others = [b for b in serving if b.accepts_new and not _full(b, bounds)]
    if not others:
        return Decision(Reason.BUSY, full=pinned.name)
    _, chosen = _place(fleet.ring, others, session.key, bounds, size)
    change = PinChange.MOVE if pin.spills + 1 >= bounds.spills else PinChange.NONE
    return Decision(Reason.PIN_SPILL, chosen.name, pick_engine(chosen, session.key), change)


def _ask_owner(
    fleet: Fleet,
    owner: str,
    session: Session | None,
    pin: PinView | None,
    exclude: Collection[str],
    bounds: Bounds,
) -> Decision:
    """Only the backend that made a response has it: no other is asked, and a session's pin follows."""
    backend = fleet.backends.get(owner)
    if backend is None or not backend.available or owner in exclude:
        return Decision(Reason.OWNER_GONE)
    if _full(backend, bounds):
        return Decision(Reason.BUSY, full=owner)
    if session is None:
        return Decision(Reason.OWNER, owner)
    stays = pin is not None and pin.backend == owner
    engine = pin.engine if pin is not None and stays else None
    if not _has_engine(backend, engine):
        engine = pick_engine(backend, session.key)
    change = PinChange.BIND if pin is None else PinChange.KEEP if stays else PinChange.MOVE
    return Decision(Reason.OWNER, owner, engine, change)


def _near(candidates: list[Candidate], near: Near, key: bytes, bounds: Bounds, size: int) -> Decision | None:
    """The first place where a new session may be near what it shares, or None.

    A history is followed whatever runs there. Near a parent only requests in flight count, since its sub-agents come at
    once and are gone soon; a known head is not worth more than some sessions above the share.
    """
    share, by_name = _share_of(candidates, size), {b.name: b for b in candidates}
    if near.reason is Reason.HEAD and len({place.backend for place in near.places} & by_name.keys()) == len(by_name):
        return None  # known everywhere
    for place in near.places:
        backend = by_name.get(place.backend)
        if backend is None:
            continue
        most = max(bounds.near_in_flight, _limit(share.in_flight * backend.weight, bounds.in_flight))
        crowded = near.reason is not Reason.HISTORY and backend.in_flight + 1 > most
        allowed = _limit(share.sessions * backend.weight, bounds.sessions, bounds.even) + bounds.near_sessions
        if near.reason is Reason.HEAD and (backend.sessions + 1 > allowed or not _small(backend, share, bounds, size)):
            crowded = True
        if not crowded:
            engine = place.engine if _has_engine(backend, place.engine) else pick_engine(backend, key)
            return Decision(near.reason, backend.name, engine, PinChange.BIND)
    return None


def pick_engine(backend: Candidate, key: bytes) -> str | None:
    """The engine with the fewest sessions, then requests; ties go by the key. None where there is only one."""
    engines = backend.engines
    if len(engines) < 2:
        return None
    start = position(key) % len(engines)
    turned = [*engines[start:], *engines[:start]]
    return min(turned, key=lambda e: (e.sessions, e.in_flight)).engine


def _has_engine(backend: Candidate, engine: str | None) -> bool:
    if engine is None:
        return len(backend.engines) < 2
    return any(e.engine == engine for e in backend.engines)


def _serves(backend: Candidate, model: str | None) -> bool:
    return model is None or backend.models is None or model in backend.models


def _ordered(ring: Ring, candidates: Iterable[Candidate], key: bytes) -> Iterator[Candidate]:
    by_name = {b.name: b for b in candidates}
    return (by_name[name] for name in ring.order(key) if name in by_name)


def _least_loaded(ring: Ring, candidates: list[Candidate], key: bytes) -> Candidate:
    loads = [b.in_flight / b.weight for b in candidates]
    least = min(loads)
    return next(_ordered(ring, [b for b, load in zip(candidates, loads, strict=True) if load == least], key))


class _Share(NamedTuple):
    """What falls to a backend of weight 1 once a session is placed: sessions, requests in flight, KiB of prompts."""

    sessions: float
    in_flight: float
    size: float


def _share_of(candidates: list[Candidate], size: int) -> _Share:
    weight, sessions, in_flight = 0.0, 1, 1
    for b in candidates:
        weight += b.weight
        sessions += b.sessions
        in_flight += b.in_flight
        size += b.size
    return _Share(sessions / weight, in_flight / weight, size / weight)


def _small(backend: Candidate, share: _Share, bounds: Bounds, size: int) -> bool:
    """Whether a backend may take a prompt of this size by what its sessions came with; the one with the least may."""
    even = share.size * backend.weight
    return backend.size + size <= max(bounds.size * even, even + size)


def _place(
    ring: Ring, candidates: list[Candidate], key: bytes, bounds: Bounds, size: int
) -> tuple[Candidate, Candidate]:
    """The key's home among the candidates, and the first in ring order that is under all bounds.

    The bounds count the session being placed, so one candidate always passes the first.
    """
    share, ordered = _share_of(candidates, size), list[Candidate]()
    for b in _ordered(ring, candidates, key):
        ordered.append(b)
        if (
            b.sessions + 1 <= _limit(share.sessions * b.weight, bounds.sessions, bounds.even)
            and b.in_flight + 1 <= _limit(share.in_flight * b.weight, bounds.in_flight)
            and _small(b, share, bounds, size)
        ):
            return ordered[0], b
    return ordered[0], _place_in_a_crowd(ordered, share, bounds, size)


def _place_in_a_crowd(ordered: list[Candidate], share: _Share, bounds: Bounds, size: int) -> Candidate:
    """Where none passes all bounds, the size gives way first.

    Then the one with the fewest requests in flight among those under the bound of sessions is taken, unless so much runs
    there that it may be stuck: then one of the others that is hardly above its share.
    """
    most = {b.name: _limit(share.sessions * b.weight, bounds.sessions, bounds.even) for b in ordered}
    under = [b for b in ordered if b.sessions + 1 <= most[b.name]]
    under = [b for b in under if _small(b, share, bounds, size)] or under
    for backend in under:
        if backend.in_flight + 1 <= _limit(share.in_flight * backend.weight, bounds.in_flight):
            return backend
    stuck = {b.name for b in ordered if b.in_flight >= max(_STUCK, _STUCK_TIMES * share.in_flight * b.weight)}
    if all(b.name in stuck for b in under):
        near = [b for b in ordered if b.name not in stuck and b.sessions < most[b.name] + bounds.near_sessions]
        if near:
            return min(near, key=lambda b: b.sessions / b.weight)
    return min(under, key=lambda b: b.in_flight / b.weight)


def _limit(share: float, factor: float, even: int = 0) -> int:
    """The most a backend may hold: its fair share rounded up, or more where the factor gives more beyond the even part."""
    beyond = max(0.0, share - even)
    return max(ceil(share - 1e-9), floor(share + beyond * (factor - 1.0) + 1e-9))
