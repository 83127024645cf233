"""The /metrics page of a simulated server, with vLLM's names, labels and types."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from warmroute.sim.engine import Engine

_FIRST_TOKEN_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    *(80.0, 160.0, 640.0, 2560.0),
)
_REQUEST_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)


class Histogram:
    """Counts of observed seconds by upper bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.total = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, seconds: float) -> None:
        """Add one observation."""
        self._counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bound and cumulative count, the last bound ``+Inf``."""
        names = [str(bound) for bound in self.bounds] + ["+Inf"]
        below, found = 0, []
        for name, count in zip(names, self._counts, strict=True):
            below += count
            found.append((name, float(below)))
        return found

    def __repr__(self) -> str:
        return f"Histogram(count={sum(self._counts)}, total={self.total:.3f})"


class Latencies:
    """The two latencies of one engine that its metrics page shows; told by the engine."""

    def __init__(self) -> None:
        self.time_to_first_token = Histogram(_FIRST_TOKEN_BOUNDS)
        self.request = Histogram(_REQUEST_BOUNDS)

    def first_token(self, seconds: float) -> None:
        """See `Observer.first_token`."""
        self.time_to_first_token.observe(seconds)

    def completed(self, seconds: float) -> None:
        """See `Observer.completed`."""
        self.request.observe(seconds)

    def __repr__(self) -> str:
        return f"Latencies(first_token={self.time_to_first_token!r}, request={self.request!r})"


_Value = Callable[[Engine], float]

_GAUGES: Mapping[str, tuple[str, _Value]] = {
    "num_requests_running": ("Number of requests in model execution batches.", lambda e: e.running),
    "num_requests_waiting": ("Number of requests waiting to be processed.", lambda e: e.waiting),
    "kv_cache_usage_perc": ("KV-cache usage. 1 means 100 percent usage.", lambda e: e.cache.usage),
}

_QUERIED, _CACHED = "in terms of number of queried tokens.", "in terms of number of cached tokens."
_COUNTERS: Mapping[str, tuple[str, _Value]] = {
    "prefix_cache_queries": (f"Prefix cache queries, {_QUERIED}", lambda e: e.cache.counters.queries),
    "prefix_cache_hits": (f"Prefix cache hits, {_CACHED}", lambda e: e.cache.counters.hits),
    "external_prefix_cache_queries": (
        f"External prefix cache queries from KV connector cross-instance cache sharing, {_QUERIED}",
        lambda e: e.cache.counters.external_queries,
    ),
    "external_prefix_cache_hits": (
        f"External prefix cache hits from KV connector cross-instance cache sharing, {_CACHED}",
        lambda e: e.cache.counters.external_hits,
    ),
    "num_preemptions": ("Cumulative number of preemption from the engine.", lambda e: e.counters.preemptions),
    "prompt_tokens": ("Number of prefill tokens processed.", lambda e: e.counters.prompt_tokens),
    "prompt_tokens_cached": (
        "Number of cached prompt tokens (local + external).",
        lambda e: e.counters.local_hit_tokens + e.counters.external_tokens,
    ),
    "generation_tokens": ("Number of generation tokens processed.", lambda e: e.counters.generation_tokens),
}

_SOURCES: Mapping[str, _Value] = {
    "local_compute": lambda e: e.counters.computed_tokens,
    "local_cache_hit": lambda e: e.counters.local_hit_tokens,
    "external_kv_transfer": lambda e: e.counters.external_tokens,
}

# vLLM shows these too. It does not count the requests that a client leaves; the others never happen here.
_UNCOUNTED_REASONS = ("abort", "error", "repetition")


class EngineMetrics(Collector):
    """Turns the state of some engines into metric families; `created` is when they started, in seconds since 1970."""

    def __init__(
        self, engines: Sequence[tuple[Engine, Latencies]], model: str, info: Mapping[str, str], created: float
    ) -> None:
        self._engines = engines
        self._model = model
        self._info = info
        self._created = created

    def collect(self) -> Iterable[Metric]:
        """All families, as prometheus_client asks for them."""
        for name, (text, value) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=("engine", "model_name"))
            for labels, engine, _ in self._rows():
                gauge.add_metric(labels, value(engine))
            yield gauge
        yield self._waiting_by_reason()
        for name, (text, value) in _COUNTERS.items():
            counter = CounterMetricFamily(f"vllm:{name}", text, labels=("engine", "model_name"))
            for labels, engine, _ in self._rows():
                counter.add_metric(labels, value(engine), created=self._created)
            yield counter
        yield self._by_source()
        yield self._by_reason()
        yield from self._latencies()
        yield from self._prefills()
        yield self._cache_config()

    def _rows(self) -> Iterator[tuple[list[str], Engine, Latencies]]:
        for rank, (engine, latencies) in enumerate(self._engines):
            yield [str(rank), self._model], engine, latencies

    def _waiting_by_reason(self) -> Metric:
        gauge = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason",
            "Number of waiting requests by reason.",
            labels=("engine", "model_name", "reason"),
        )
        for labels, engine, _ in self._rows():
            gauge.add_metric([*labels, "capacity"], engine.waiting - engine.deferred)
            gauge.add_metric([*labels, "deferred"], engine.deferred)
        return gauge

    def _by_source(self) -> Metric:
        counter = CounterMetricFamily(
            "vllm:prompt_tokens_by_source",
            "Number of prompt tokens by source.",
            labels=("engine", "model_name", "source"),
        )
        for labels, engine, _ in self._rows():
            for source, value in _SOURCES.items():
                counter.add_metric([*labels, source], value(engine), created=self._created)
        return counter

    def _by_reason(self) -> Metric:
        counter = CounterMetricFamily(
            "vllm:request_success",
            "Count of successfully processed requests.",
            labels=("engine", "finished_reason", "model_name"),
        )
        for (rank, model), engine, _ in self._rows():
            counts = {str(reason): count for reason, count in engine.counters.finished.items()}
            for reason, count in (counts | dict.fromkeys(_UNCOUNTED_REASONS, 0)).items():
                counter.add_metric([rank, reason, model], count, created=self._created)
        return counter

    def _latencies(self) -> Iterator[Metric]:
        first = HistogramMetricFamily(
            "vllm:time_to_first_token_seconds",
            "Histogram of time to first token in seconds.",
            labels=("engine", "model_name"),
        )
        whole = HistogramMetricFamily(
            "vllm:e2e_request_latency_seconds",
            "Histogram of e2e request latency in seconds.",
            labels=("engine", "model_name"),
        )
        for labels, _, latencies in self._rows():
            for family, histogram in ((first, latencies.time_to_first_token), (whole, latencies.request)):
                family.add_metric(labels, histogram.buckets(), histogram.total)
        yield first
        yield whole

    def _prefills(self) -> Iterator[Metric]:
        """Their sums are what is read, so they have no buckets but the last one."""
        tokens = HistogramMetricFamily(
            "vllm:request_prefill_kv_computed_tokens",
            "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
            labels=("engine", "model_name"),
        )
        seconds = HistogramMetricFamily(
            "vllm:request_prefill_time_seconds",
            "Histogram of time spent in PREFILL phase for request.",
            labels=("engine", "model_name"),
        )
        for labels, engine, _ in self._rows():
            counters = engine.counters
            for family, total in ((tokens, counters.computed_tokens), (seconds, counters.prefill_seconds)):
                family.add_metric(labels, [("+Inf", counters.prefills)], total)
        yield tokens
        yield seconds

    def _cache_config(self) -> Metric:
        names = sorted([*self._info, "engine"])
        gauge = GaugeMetricFamily(
            "vllm:cache_config_info", "Information of the LLMEngine CacheConfig", labels=tuple(names)
        )
        for (rank, _), _, _ in self._rows():
            values = {**self._info, "engine": rank}
            gauge.add_metric([values[name] for name in names], 1.0)
        return gauge


def exposition(metrics: EngineMetrics) -> bytes:
    """The page as text."""
    registry = CollectorRegistry()
    registry.register(metrics)
    return generate_latest(registry)
