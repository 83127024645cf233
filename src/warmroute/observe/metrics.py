"""The router's /metrics: prometheus-client families made from state at each scrape, then the backends' own series."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from .. import __version__
from ..core import exposition
from ..core.resume import Why
from ..discovery.members import Members
from ..fleet.heard import HeardResidents
from ..fleet.registry import BackendState, Registry
from ..fleet.scraper import is_stale
from ..pins.memory import PinTable
from ..recognition.memory import Memory
from ..truth.ledger import Ledger
from .counters import Histogram, RequestCounters
from .discovery_metrics import discovery
from .hit_rates import Tier, fleet_windowed, ratio, tier_of, windowed
from .kv_metrics import kv_events
from .reloads import Reloads
from .store_view import SharedView
from .tenant_metrics import tenant_metrics
from .truth_metrics import truth
from .work_metrics import Work, work_now

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BROKEN = ("resumed", *Why)
"""How a stream whose backend died after content may have ended."""


class RouterCollector(Collector):
    """Reads counters, registry and pins when Prometheus asks; keeps nothing itself."""

    def __init__(
        self,
        counters: RequestCounters,
        registry: Registry,
        pins: PinTable,
        clock: Callable[[], float],
        stale_after: float,
        memory: Memory,
        shared: SharedView | None = None,
        reloads: Reloads | None = None,
        work: Work | None = None,
        ledger: Ledger | None = None,
        residents: HeardResidents | None = None,
        members: Members | None = None,
    ) -> None:
        self._members = members
        self._ledger = ledger
        self._residents = residents
        self._counters = counters
        self._registry = registry
        self._pins = pins
        self._clock = clock
        self._stale_after = stale_after
        self._memory = memory
        self._shared = shared
        self._reloads = reloads or Reloads()
        self._work = work or Work()

    def collect(self) -> Iterator[Metric]:
        backends = list(self._registry.backends.values())
        now = self._clock()
        build = GaugeMetricFamily("warmroute_build_info", "1, with the router's version", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        yield from self._requests()
        yield from self._trouble()
        yield from work_now(self._work)
        yield from _backends(backends, now)
        yield from self._sessions(backends)
        yield from _cache(backends, "local", "prefix_cache", now)
        yield from _cache(backends, "external", "external_prefix_cache", now)
        yield from self._scrapes(backends, now)
        yield from _recognition(self._memory)
        yield from _config(self._reloads)
        if self._members is not None:
            yield from discovery(self._members)
        if self._ledger is not None:
            yield from truth(self._ledger)
        if self._residents is not None:
            yield from kv_events(self._residents, backends)
        if self._shared is not None:
            yield from _store(self._shared, self._memory.recalled)

    def _requests(self) -> Iterator[Metric]:
        counters = self._counters
        requests = CounterMetricFamily(
            "warmroute_requests_total",
            "Requests finished, by the backend that answered, status and decision",
            labels=["backend", "code", "decision"],
        )
        for (backend, code, decision), count in counters.requests.items():
            requests.add_metric([backend, str(code), decision], count)
        yield requests
        yield _counter(
            "warmroute_session_moves_total", "Sessions that moved to another backend", "reason", counters.moves
        )
        yield _counter(
            "warmroute_retries_total", "Attempts repeated, by what failed before", "reason", counters.retries
        )
        yield _counter(
            "warmroute_requests_by_key_source_total",
            "Requests finished, by where their conversation's identity came from",
            "source",
            counters.sources,
        )
        refused = CounterMetricFamily(
            "warmroute_key_values_refused_total",
            "Values that cannot name one conversation, by key source and reason",
            labels=["source", "reason"],
        )
        for labels, count in counters.refused_keys.items():
            refused.add_metric(labels, count)
        yield refused
        yield _histogram(
            "warmroute_request_duration_seconds", "Time from a request's arrival to its end", counters.duration
        )
        yield _histogram(
            "warmroute_time_to_first_byte_seconds",
            "Time from a request's arrival to first content",
            counters.first_byte,
        )

    def _trouble(self) -> Iterator[Metric]:
        counters = self._counters
        yield _counter(
            "warmroute_broken_streams_total",
            "Streams whose backend died after content, by how they were gone on with (resumed) or why not",
            "outcome",
            counters.resumes,
            BROKEN,
        )
        yield CounterMetricFamily(
            "warmroute_client_aborts_total",
            "Clients that left before their answer was whole",
            value=counters.client_aborts,
        )
        yield _counter(
            "warmroute_client_timeouts_total",
            "Client connections ended since they kept the router waiting, by for what",
            "what",
            counters.client_timeouts,
        )
        yield from tenant_metrics(counters)
        yield CounterMetricFamily(
            "warmroute_connections_refused_total",
            "Connections of clients refused since there were too many",
            value=counters.connections_refused,
        )
        yield CounterMetricFamily(
            "warmroute_tls_handshakes_failed_total",
            "TLS handshakes that clients did not bring to an end, on both ports",
            value=counters.handshakes_failed,
        )
        yield CounterMetricFamily(
            "warmroute_log_lines_dropped_total",
            "Access log lines lost because nobody read them fast enough",
            value=counters.log_lines_dropped(),
        )
        yield _counter(
            "warmroute_internal_errors_total",
            "Faults of the router itself",
            "where",
            counters.internal_errors,
            ("data",),
        )

    def _sessions(self, backends: Iterable[BackendState]) -> Iterator[Metric]:
        yield _gauge("warmroute_sessions", "Live sessions", ((b.name, b.sessions) for b in backends))
        yield CounterMetricFamily(
            "warmroute_sessions_expired_total", "Sessions forgotten because they were idle", value=self._pins.expired
        )
        yield CounterMetricFamily(
            "warmroute_sessions_evicted_total",
            "Sessions forgotten because the table was full",
            value=self._pins.evicted,
        )

    def _scrapes(self, backends: Iterable[BackendState], now: float) -> Iterator[Metric]:
        fresh = ((b.name, float(not is_stale(b.scrape, now, self._stale_after))) for b in backends)
        yield _gauge("warmroute_backend_metrics_fresh", "1 while the backend's own metrics are up to date", fresh)


def _backends(backends: list[BackendState], now: float) -> Iterator[Metric]:
    yield _gauge(
        "warmroute_backend_up", "1 if the backend is healthy", ((b.name, float(bool(b.health.up))) for b in backends)
    )
    yield _gauge(
        "warmroute_backend_stalled",
        "1 while its engine makes no steps although requests are there: it gets no new sessions",
        ((b.name, float(b.progress.stalled)) for b in backends),
    )
    yield _gauge(
        "warmroute_backend_sleeping", "1 while it is in sleep mode", ((b.name, float(b.asleep)) for b in backends)
    )
    yield _gauge(
        "warmroute_backend_draining",
        "1 while it takes no new sessions",
        ((b.name, float(b.draining)) for b in backends),
    )
    yield _gauge(
        "warmroute_backend_drain_seconds_left",
        "Until a draining backend is asked nothing any more; absent while it is in use",
        ((b.name, left) for b in backends if (left := b.drain.left(now)) is not None),
    )
    yield _gauge("warmroute_requests_in_flight", "Requests under way", ((b.name, b.in_flight) for b in backends))
    failures = CounterMetricFamily(
        "warmroute_backend_failures_total", "Exchanges that failed at a backend", labels=["backend"]
    )
    for backend in backends:
        failures.add_metric([backend.name], backend.failures)
    yield failures


def _cache(backends: list[BackendState], tier: Tier, name: str, now: float) -> Iterator[Metric]:
    asked = CounterMetricFamily(
        f"warmroute_backend_{name}_queries_total", "Tokens looked up, over restarts of the backend", labels=["backend"]
    )
    had = CounterMetricFamily(
        f"warmroute_backend_{name}_hits_total", "Tokens found, over restarts of the backend", labels=["backend"]
    )
    ratios = GaugeMetricFamily(
        f"warmroute_backend_{name}_hit_ratio",
        "Hits / queries in a window; absent without queries",
        labels=["backend", "window"],
    )
    for backend in backends:
        counters = tier_of(backend, tier)
        if counters.seen:
            total = counters.history.total
            asked.add_metric([backend.name], total.queries)
            had.add_metric([backend.name], total.hits)
        for window, hits in windowed(backend, tier, now).items():
            value = ratio(backend, hits) if tier == "local" else hits.ratio
            if value is not None:
                ratios.add_metric([backend.name, window], value)
    fleet = GaugeMetricFamily(
        f"warmroute_fleet_{name}_hit_ratio", "Hits / queries of all backends together", labels=["window"]
    )
    for window, hits in fleet_windowed(backends, tier, now).items():
        if hits.ratio is not None:
            fleet.add_metric([window], hits.ratio)
    yield from (asked, had, ratios, fleet)


def _recognition(memory: Memory) -> Iterator[Metric]:
    entries = GaugeMetricFamily(
        "warmroute_recognition_entries", "What is remembered to recognise conversations", labels=["kind"]
    )
    for kind, count in memory.entries().items():
        entries.add_metric([kind], count)
    yield entries
    yield CounterMetricFamily(
        "warmroute_history_evicted_total",
        "Entries of conversations' histories forgotten because there was no room",
        value=memory.evicted,
    )
    yield CounterMetricFamily(
        "warmroute_response_owner_unknown_total",
        "Requests that named a response of which no maker is known",
        value=memory.unknown_owners,
    )


def _config(reloads: Reloads) -> Iterator[Metric]:
    yield _counter(
        "warmroute_config_reloads_total",
        "Reloads of the configuration: ok, invalid, or refused since it needs a restart",
        "result",
        reloads.results,
    )
    yield GaugeMetricFamily(
        "warmroute_config_reload_ok", "0 while the last reload has failed", value=float(not reloads.error)
    )


def _store(shared: SharedView, recalled: Counter[str] | None) -> Iterator[Metric]:
    store = shared.store
    if recalled is not None:
        yield _counter("warmroute_store_recalled_total", "Turns that only others knew of", "of", recalled)
    yield GaugeMetricFamily("warmroute_store_up", "1 while the shared store is in use", value=float(store.up))
    yield _counter("warmroute_store_errors_total", "Uses of the store that failed or took too long", "op", store.errors)
    yield _counter("warmroute_store_dropped_total", "Questions not asked since too many waited", "op", store.dropped)
    yield _counter("warmroute_store_ignored_total", "Stored values that were of no use", "reason", shared.ignored)
    yield CounterMetricFamily(
        "warmroute_store_adopted_total", "Sessions found to be placed by another router", value=shared.adopted
    )


def _gauge(name: str, text: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["backend"])
    for backend, value in values:
        family.add_metric([backend], value)
    return family


def _counter(name: str, text: str, label: str, values: dict[str, int], known: Iterable[str] = ()) -> Metric:
    """One series a value. Those `known` are 0 before they happen: of a series that begins with 1 nobody sees an increase."""
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in (dict.fromkeys(known, 0) | values).items():
        family.add_metric([value], count)
    return family


def _histogram(name: str, text: str, values: dict[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=["backend"])
    for backend, histogram in values.items():
        family.add_metric([backend], histogram.buckets(), histogram.sum)
    return family


class MetricsPage:
    """Renders the whole page from memory; no backend is asked, so a slow one slows nothing."""

    def __init__(
        self, collector: RouterCollector, registry: Registry, clock: Callable[[], float], stale_after: float
    ) -> None:
        self._own = CollectorRegistry(auto_describe=False)
        self._own.register(collector)
        self._registry = registry
        self._clock = clock
        self._stale_after = stale_after

    def render(self) -> bytes:
        """The router's own series, then those of vLLM's that are passed on, with a `backend` label."""
        now = self._clock()
        scrapes = [b.scrape for b in self._registry.backends.values()]
        fresh = (s.families for s in scrapes if not is_stale(s, now, self._stale_after))
        return generate_latest(self._own) + exposition.merge(fresh).encode()
