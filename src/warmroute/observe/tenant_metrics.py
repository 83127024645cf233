"""What each tenant asks for and gets, as Prometheus series."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from .counters import RequestCounters


def tenant_metrics(counters: RequestCounters) -> Iterator[Metric]:
    """Nothing has a value where there are no tenants."""
    requests = CounterMetricFamily("warmroute_tenant_requests_total", "Requests of a tenant", labels=["tenant"])
    refused = CounterMetricFamily(
        "warmroute_tenant_refused_total",
        "Requests refused since their tenant uses or asks for more than it may",
        labels=["tenant"],
    )
    tokens = CounterMetricFamily(
        "warmroute_tenant_tokens_total",
        "Tokens of a tenant's requests as the backends told them; cached ones are part of the prompts'",
        labels=["tenant", "kind"],
    )
    for family, counts in ((requests, counters.tenants), (refused, counters.tenants_refused)):
        for tenant, count in counts.items():
            family.add_metric([tenant], count)
    for (tenant, kind), count in counters.tenants_tokens.items():
        tokens.add_metric([tenant, kind], count)
    yield from (requests, refused, tokens)
