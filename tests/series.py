"""The router's own metrics, all of them: what /metrics can have."""

from contextlib import AbstractAsyncContextManager
from typing import Any

from prometheus_client.core import Metric

from warmroute.core.health import Thresholds
from warmroute.core.model import BackendSpec
from warmroute.core.split import Outcome
from warmroute.discovery.members import Members
from warmroute.discovery.source import Source
from warmroute.fleet.heard import HeardResidents
from warmroute.fleet.registry import Registry
from warmroute.observe.counters import RequestCounters
from warmroute.observe.metrics import RouterCollector
from warmroute.observe.work_metrics import Work, Workers
from warmroute.pins import codec
from warmroute.pins.link import Link
from warmroute.pins.memory import PinTable
from warmroute.pins.shared import SharedPins
from warmroute.pins.store import Store
from warmroute.recognition.memory import remember
from warmroute.recognition.sharing import SharedMemory
from warmroute.truth.conversations import Conversations
from warmroute.truth.ledger import Ledger

_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def _clock() -> float:
    return 0.0


def _unreached() -> AbstractAsyncContextManager[Link]:
    raise AssertionError("nothing is asked of the store")


def families() -> list[Metric]:
    """Those of a router of one backend that shares its pins and accounts for tokens."""
    pins = PinTable(_clock, idle_expiry=1.0, limit=1)
    registry = Registry([BackendSpec("a", "http://a")], pins, Thresholds(), 0.0)
    naming = codec.Naming("t:", codec.key_of(None, "t:"))
    store = Store(_unreached, naming, clock=_clock, deadline=1.0, identity=b"8 bytes.")
    shared = SharedPins(pins, store, naming, backends=registry.backends, clock=_clock, idle_expiry=1.0)

    def tells_others(*parts: Any) -> SharedMemory:
        return SharedMemory(
            *parts,
            notes=shared.notes(lifetime=1.0, responses=1.0),
            backends=registry.backends,
            sources=(),
            ignored=shared.ignored,
            clock=_clock,
            renew_after=1.0,
            limit=1,
        )

    memory = remember(_clock, idle_expiry=1.0, entries=1, sessions=1, backends=1, share=tells_others)
    ledger = Ledger(Conversations(1), move_cause=lambda decision, backend: "", process_of=lambda backend: 0)
    ledger.tally.tokens["a", Outcome.NEW] = 1
    residents = HeardResidents(b"k" * 32, 1)
    residents.open("a", "0")
    members = Members()
    members.sources.append(Source("file", _clock, lambda: None))
    collector = RouterCollector(
        RequestCounters(),
        registry,
        pins,
        _clock,
        60.0,
        memory,
        shared=shared,
        ledger=ledger,
        residents=residents,
        members=members,
        work=Work(workers=lambda: Workers(2, 2, 0, 0)),
    )
    return list(collector.collect())


def names() -> list[str]:
    """As the documents call them: without the suffixes of a histogram's series."""
    return sorted(f"{m.name}_total" if m.type == "counter" else m.name for m in families())


def series() -> set[str]:
    """As queries call them."""
    return {family.name + suffix for family in families() for suffix in _SUFFIXES[family.type]}
