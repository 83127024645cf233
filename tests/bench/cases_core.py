"""What the decisions of `core` cost: decide, ring, relay, usage."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import cycle
from random import Random

from warmroute.core.health import Thresholds
from warmroute.core.model import BackendSpec, Decision, PinView, Reason, Session
from warmroute.core.policy import Fleet, decide
from warmroute.core.relay import Relay
from warmroute.core.ring import Ring
from warmroute.core.usage import usage_from
from warmroute.fleet.registry import Registry
from warmroute.pins.memory import PinTable

from .backend import GOLDEN, MODEL
from .rendezvous import Rendezvous
from .timing import Row, Scale, micros, millis

MANY = 64
"""Backends of a large fleet."""

_FLEETS = (2, 8, MANY)
_BALANCES = (4, 8, 16, MANY)
_SESSIONS_EACH = 50
_IN_FLIGHT = 2
_KEYS = 1_000


def keys(count: int, seed: int = 1) -> list[bytes]:
    """Session keys: 16 random bytes each, the same ones in every run."""
    random = Random(seed)
    return [random.randbytes(16) for _ in range(count)]


def fleet_of(count: int) -> tuple[Registry, PinTable]:
    """Backends that are up and serve one model, each with its share of live sessions and some requests in flight."""
    pins = PinTable(lambda: 0.0, idle_expiry=1800.0, limit=1_000_000)
    specs = [BackendSpec(f"10.0.0.{i}:8000", f"http://10.0.0.{i}:8000") for i in range(count)]
    registry = Registry(specs, pins, Thresholds(), 0.0)
    for name, state in registry.backends.items():
        registry.probed(name, None, 0.0)
        registry.set_models(name, [{"id": MODEL}])
        state.in_flight = _IN_FLIGHT
    for key in keys(count * _SESSIONS_EACH, seed=2):
        session = Session(key, "x-session-id")
        decision = _decided(registry.fleet(), session, None)
        pins.reserve(session, decision)
        pins.confirm(session, decision)
    return registry, pins


def _decided(fleet: Fleet, session: Session | None, pin: PinView | None) -> Decision:
    return decide(fleet, session=session, pin=pin, model=MODEL, request_key=b"0123456789ab00000001")


def _decider(fleet: Fleet, cases: Iterable[tuple[Session | None, PinView | None]]) -> Callable[[], Decision]:
    """A call that decides for the next of these sessions, round and round."""
    following = cycle(cases).__next__

    def decide_next() -> Decision:
        session, pin = following()
        return _decided(fleet, session, pin)

    return decide_next


def decide_rows(scale: Scale) -> Iterator[Row]:
    for count in _FLEETS:
        registry, pins = fleet_of(count)
        fleet = registry.fleet()
        pinned = _decider(fleet, [(Session(key, pin.source), pin) for key, pin in pins.newest()])
        placed = _decider(fleet, [(Session(key, "x-session-id"), None) for key in keys(_KEYS)])
        unknown = _decider(fleet, [(None, None)])
        assert pinned().reason is Reason.PIN_HIT
        assert placed().reason in (Reason.RING, Reason.RING_SPILL)
        assert unknown().reason is Reason.NO_SESSION
        yield micros(f"decide: a pinned session, {count} backends", pinned, scale)
        yield micros(f"decide: a new session, {count} backends", placed, scale)
        yield micros(f"decide: no session, {count} backends", unknown, scale)


def _names(count: int) -> list[str]:
    return [f"10.0.0.{i}:8000" for i in range(count)]


def _over(work: Callable[[bytes], object], some: Iterable[bytes]) -> Callable[[], object]:
    """A call that does this work to the next key, round and round."""
    following = cycle(some).__next__
    return lambda: work(following())


def _home(ring: Ring) -> Callable[[bytes], str]:
    return lambda key: next(ring.order(key))


def max_over_mean(home: Callable[[bytes], str], backends: int, some: list[bytes]) -> float:
    """How much more than its share the fullest backend has."""
    return max(Counter(map(home, some)).values()) * backends / len(some)


def ring_rows(scale: Scale) -> Iterator[Row]:
    some, many = keys(_KEYS), keys(scale.keys)
    weights = dict.fromkeys(_names(MANY), 1.0)
    ring, rendezvous = Ring(weights), Rendezvous(weights)
    yield millis(f"ring: build, {MANY} backends", lambda: Ring(weights), scale)
    yield millis(f"rendezvous: build, {MANY} backends", lambda: Rendezvous(weights), scale)
    yield micros(f"ring: home of a key, {MANY} backends", _over(_home(ring), some), scale)
    yield micros(f"rendezvous: home of a key, {MANY} backends", _over(rendezvous.home, some), scale)
    yield micros(f"ring: full order, {MANY} backends", _over(lambda key: list(ring.order(key)), some), scale)
    yield micros(f"rendezvous: full order, {MANY} backends", _over(rendezvous.order, some), scale)
    for count in _BALANCES:
        weights = dict.fromkeys(_names(count), 1.0)
        ring, rendezvous = Ring(weights), Rendezvous(weights)
        what = f"load max/mean, {len(many):,} keys, {count} backends"
        yield Row(f"ring: {what}", max_over_mean(_home(ring), count, many), "")
        yield Row(f"rendezvous: {what}", max_over_mean(rendezvous.home, count, many), "")


def relay_rows(scale: Scale) -> Iterator[Row]:
    events = [event + b"\n\n" for event in (GOLDEN / "chat-stream.sse").read_bytes().split(b"\n\n") if event]
    role, token, *_ = events
    headers = {b"content-type": b"text/event-stream; charset=utf-8"}

    def opened() -> Relay:
        relay = Relay(200, headers)
        relay.feed(role)
        relay.feed(token)
        return relay

    def whole() -> Relay:
        relay = Relay(200, headers)
        for event in events:
            relay.feed(event)
        relay.finish()
        return relay

    assert Relay(200, headers).feed(role) == b""
    assert whole().usage().prompt == 21
    note = opened().note
    yield micros("relay: a stream's start, held until its first content", opened, scale)
    yield micros("relay: each token after it", lambda: note(token), scale)
    yield micros(f"relay: a whole stream of {len(events)} events", whole, scale)


def usage_rows(scale: Scale) -> Iterator[Row]:
    for name, what in (("chat-stream.sse", "end of a chat stream"), ("messages.json", "a whole JSON answer")):
        content = (GOLDEN / name).read_bytes()[-1000:]
        assert usage_from(content).prompt is not None
        yield micros(f"usage_from: {what}", partial(usage_from, content), scale)
