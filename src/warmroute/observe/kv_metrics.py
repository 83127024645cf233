"""What backends tell of their caches, as Prometheus families."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ..fleet.heard import HeardResidents
from ..fleet.registry import BackendState
from ..fleet.residents import Sync


def kv_events(residents: HeardResidents, backends: Iterable[BackendState]) -> Iterator[Metric]:
    """All families of the KV events."""
    live = GaugeMetricFamily(
        "warmroute_kv_events_live",
        "1 while what the backend's caches hold is known; absent where it publishes no events",
        labels=["backend"],
    )
    blocks = GaugeMetricFamily(
        "warmroute_kv_blocks", "Blocks known to be in an engine's cache", labels=["backend", "engine"]
    )
    heard = CounterMetricFamily(
        "warmroute_kv_event_messages_total",
        "Messages of an engine's events, since its connection was opened",
        labels=["backend", "engine"],
    )
    gaps = CounterMetricFamily(
        "warmroute_kv_event_gaps_total",
        "Times that messages were missed: replayed; or lost, or blocks too many (overflow): all is known anew from then on",
        labels=["backend", "engine", "result"],
    )
    for backend in backends:
        state = residents.sync(backend.name)
        if state is not Sync.OFF:
            live.add_metric([backend.name], float(state is Sync.LIVE))
        for engine, cache in sorted(residents.caches.get(backend.name, {}).items()):
            blocks.add_metric([backend.name, engine], cache.residency.blocks)
            heard.add_metric([backend.name, engine], cache.batches)
            gaps.add_metric([backend.name, engine, "replayed"], cache.gaps - cache.losses)
            gaps.add_metric([backend.name, engine, "lost"], cache.losses)
            gaps.add_metric([backend.name, engine, "overflow"], cache.residency.overflows)
    yield from (live, blocks, heard, gaps)
