"""Plain accumulators that every finished request is added to; they become Prometheus series only when somebody scrapes."""

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ..core.counts import Counts
from .record import RequestRecord

DURATION_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds in seconds, from an answer out of a small model to an agent's longest turn."""

NO_BACKEND = ""
"""The backend label of a request that no backend answered."""

NO_SOURCE = "none"
"""The source label of a request that no source names a conversation for."""

RECENT = 50
TENANTS_FAULT = frozenset({"tenant_limit", "asks_too_much"})
"""Codes of errors that a tenant gets since it uses, or asks for, more than it may."""


@dataclass(slots=True)
class Histogram:
    """Observations in seconds by bucket; `counts` has one more place than there are bounds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(DURATION_BUCKETS) + 1))
    sum: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(DURATION_BUCKETS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts as Prometheus wants them, +Inf last."""
        total = 0
        rows: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, DURATION_BUCKETS), "+Inf"), self.counts, strict=True):
            total += count
            rows.append((bound, total))
        return rows


@dataclass(slots=True)
class RequestCounters:
    """Everything counted over finished requests. Keys come from closed sets: backends, statuses, reasons, kinds."""

    requests: Counter[tuple[str, int, str]] = field(default_factory=Counts)
    moves: Counter[str] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    refused_keys: Counter[tuple[str, str]] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counts)
    resumes: Counter[str] = field(default_factory=Counter)
    client_aborts: int = 0
    client_timeouts: Counter[str] = field(default_factory=Counter)
    connections_refused: int = 0
    handshakes_failed: int = 0
    log_lines_dropped: Callable[[], int] = lambda: 0
    internal_errors: Counter[str] = field(default_factory=Counter)
    tenants: Counter[str] = field(default_factory=Counter)
    tenants_refused: Counter[str] = field(default_factory=Counter)
    tenants_tokens: Counter[tuple[str, str]] = field(default_factory=Counter)
    duration: dict[str, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    first_byte: dict[str, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    of_gone: int = 0
    recent: deque[RequestRecord] = field(default_factory=lambda: deque(maxlen=RECENT))

    def handshake_failed(self) -> None:
        self.handshakes_failed += 1

    def internal_error(self, where: str) -> None:
        """Count a fault of the router's own."""
        self.internal_errors[where] += 1

    def add(self, record: RequestRecord) -> None:
        """Count one finished request."""
        backend = record.backend or NO_BACKEND
        self.requests[backend, record.status, record.decision] += 1
        self.sources[record.key_source or NO_SOURCE] += 1
        if record.moved:
            self.moves[record.decision] += 1
        if record.failures:
            for _, failure in record.failures[: record.attempts - 1]:
                self.retries["stale" if failure.stale else failure.kind] += 1
        for refused in record.refused_keys:
            self.refused_keys[refused] += 1
        if record.resumed is not None:
            self.resumes[record.resumed] += 1
        if record.aborted:
            self.client_aborts += 1
        self.duration[backend].observe(record.duration_s)
        if record.first_byte_s is not None:
            self.first_byte[backend].observe(record.first_byte_s)
        if record.tenant:
            self._tenant(record)
        self.recent.appendleft(record)

    def _tenant(self, record: RequestRecord) -> None:
        tenant, usage = record.tenant, record.usage
        self.tenants[tenant] += 1
        if record.error in TENANTS_FAULT:
            self.tenants_refused[tenant] += 1
        if usage.prompt is not None:
            self.tenants_tokens[tenant, "prompt"] += usage.prompt
            self.tenants_tokens[tenant, "cached"] += usage.cached or 0
            self.tenants_tokens[tenant, "completion"] += usage.completion or 0

    def forget(self, backend: str) -> None:
        """A backend is gone for good, and its series with it: where servers come and go they would never cease to grow."""
        for labels in [labels for labels in self.requests if labels[0] == backend]:
            self.of_gone += self.requests.pop(labels)
        self.duration.pop(backend, None)
        self.first_byte.pop(backend, None)

    @property
    def total(self) -> int:
        """Requests finished since the start, at backends that are gone too."""
        return sum(self.requests.values()) + self.of_gone
