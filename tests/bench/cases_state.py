"""What state costs: the table of pins, a backend's metrics read, our own metrics shown, a request recorded."""

import gc
import io
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from random import Random

from warmroute.core.exposition import parse
from warmroute.core.model import Decision, PinChange, Reason, Session
from warmroute.core.usage import Usage
from warmroute.fleet.scraper import take
from warmroute.observe.counters import RequestCounters
from warmroute.observe.log import as_json
from warmroute.observe.metrics import MetricsPage, RouterCollector
from warmroute.observe.record import RequestRecord
from warmroute.pins.memory import PinTable
from warmroute.recognition.memory import remember

from .backend import GOLDEN
from .cases_core import MANY, fleet_of, keys
from .timing import Row, Scale, bytes_made, micros, millis, seconds

_FEW_PINS = 1_000
_MEASURED_PINS = 100_000
"""Pins whose memory is traced; tracing a million would take longer than all the rest and say the same."""

_BACKENDS = [f"10.0.0.{i}:8000" for i in range(8)]
_BIND = [Decision(Reason.RING, name, None, PinChange.BIND) for name in _BACKENDS]
_KEEP = [Decision(Reason.PIN_HIT, name, None, PinChange.KEEP) for name in _BACKENDS]


def filled(count: int) -> PinTable:
    """A full table, in which the session of the n-th key lives on the n-th backend, round and round."""
    pins = PinTable(time.monotonic, idle_expiry=1800.0, limit=count)
    for key, decision in zip(keys(count), cycle(_BIND)):
        session = Session(key, "x-session-id")
        pins.reserve(session, decision)
        pins.confirm(session, decision)
    return pins


def _turn(pins: PinTable, count: int) -> Callable[[], object]:
    """A call that takes one session's next turn, of sessions that lie scattered over the table."""
    homes = list(zip(keys(count), cycle(_KEEP)))
    sample = Random(3).sample(homes, min(count, 50_000))
    following = cycle([(Session(key, "x-session-id"), decision) for key, decision in sample]).__next__

    def turn() -> None:
        session, decision = following()
        assert pins.get(session.key) is not None
        pins.reserve(session, decision)
        pins.confirm(session, decision)

    return turn


def _arrival(pins: PinTable) -> Callable[[], object]:
    """A call that binds a session never seen before."""
    random = Random(4)

    def arrive() -> None:
        session = Session(random.randbytes(16), "x-session-id")
        assert pins.get(session.key) is None
        pins.reserve(session, _BIND[0])
        pins.confirm(session, _BIND[0])

    return arrive


def pin_rows(scale: Scale) -> Iterator[Row]:
    for count in (_FEW_PINS, scale.pins):
        pins = filled(count)
        yield micros(f"pins: get, reserve, confirm; {count:,} pins", _turn(pins, count), scale)
        yield micros(f"pins: a new session in a full table; {count:,} pins", _arrival(pins), scale)
        yield Row(f"pins: one full garbage collection; {count:,} pins", seconds(gc.collect, scale) * 1e3, "ms")
        del pins
    measured = min(_MEASURED_PINS, scale.pins)
    yield Row(f"pins: memory of one pin of {measured:,}", bytes_made(lambda: filled(measured)) / measured, "bytes")


def metrics_rows(scale: Scale) -> Iterator[Row]:
    text = (GOLDEN / "metrics-vllm-0.32.0.txt").read_text()
    assert len(parse(text, "a").values) > 20
    yield millis(f"exposition.parse: /metrics of vLLM, {len(text):,} bytes", lambda: parse(text, "a:8000"), scale)
    registry, pins = fleet_of(MANY)
    counters = RequestCounters()
    for state in registry.backends.values():
        take(registry, state, parse(text, state.name), 1.0)
        for _ in range(10):
            counters.add(_record(state.name))

    def clock() -> float:
        return 2.0

    page = MetricsPage(
        RouterCollector(
            counters,
            registry,
            pins,
            clock,
            60.0,
            remember(lambda: 0.0, idle_expiry=1.0, entries=1, sessions=1, backends=1),
        ),
        registry,
        clock,
        60.0,
    )
    size = len(page.render())
    yield millis(f"metrics page: {MANY} backends with vLLM's series, {size:,} bytes", page.render, scale)
    for state in registry.backends.values():
        state.scrape.families = {}
    size = len(page.render())
    yield millis(f"metrics page: {MANY} backends without them, {size:,} bytes", page.render, scale)


def _record(backend: str) -> RequestRecord:
    record = RequestRecord("0123456789ab00000001", "POST", "/v1/chat/completions", 1.0, 1_795_970_918.1)
    record.status, record.backend, record.decision = 200, backend, Reason.PIN_HIT
    record.key_source, record.session, record.attempts = "x-session-id", "0123456789ab", 1
    record.usage = Usage(2000, 1984, 20)
    record.connected_s, record.first_byte_s, record.duration_s = 0.0001, 0.0712, 1.2345
    record.bytes_in, record.bytes_out = 8192, 22_000
    return record


def record_rows(scale: Scale) -> Iterator[Row]:
    counters, sink = RequestCounters(), io.StringIO()

    def settle() -> None:
        record = _record("10.0.0.1:8000")
        counters.add(record)
        sink.write(as_json(record))
        sink.seek(0)

    yield micros("record: made, counted, one JSON line of the log", settle, scale)
    ready = _record("10.0.0.1:8000")
    yield micros("record: counted", lambda: counters.add(ready), scale)
    yield micros("record: its JSON line", lambda: as_json(ready), scale)
