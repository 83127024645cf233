"""What each tenant asks for and gets, as Prometheus series."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from .counters import RequestCounters


def tenant_metrics(counters: RequestCounters) -> Iterator[Metric]:
    """Nothing has a value where there are no tenants. Who has asked has refusals too, 0 at first: an increase has a start."""
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
    for tenant, count in counters.tenants.items():
        requests.add_metric([tenant], count)
        refused.add_metric([tenant], counters.tenants_refused[tenant])
    for (tenant, kind), count in counters.tenants_tokens.items():
        tokens.add_metric([tenant, kind], count)
    yield from (requests, refused, tokens)
