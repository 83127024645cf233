"""Prometheus families of the sources that name backends."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ..discovery.members import CONFIG, HAND, Members


def discovery(members: Members) -> Iterator[Metric]:
    """For each source that is configured; the backends also of the configuration itself, and of operators."""
    up = GaugeMetricFamily("warmroute_discovery_up", "1 while it answers with what can be used", labels=["source"])
    failures = CounterMetricFamily(
        "warmroute_discovery_failures_total", "Times it could not be asked or its answer not be used", labels=["source"]
    )
    backends = GaugeMetricFamily("warmroute_discovery_backends", "Wanted backends that it names", labels=["source"])
    named = Counter(source for sources in members.wanted.sources.values() for source in sources)
    for source in (CONFIG, HAND, *(source.name for source in members.sources)):
        backends.add_metric([source], named[source])
    for found in members.sources:
        up.add_metric([found.name], float(found.up))
        failures.add_metric([found.name], found.failures)
    yield from (up, backends, failures)
