"""What the process holds at this moment, as Prometheus series."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric


class Work(NamedTuple):
    """What the process holds now, each asked for at a scrape: asyncio tasks, and requests that wait for a full backend."""

    tasks: Callable[[], int] = int
    waiting: Callable[[], int] = int


def work_now(work: Work) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "warmroute_requests_waiting", "Requests that wait in the queue for a full backend", value=work.waiting()
    )
    yield GaugeMetricFamily(
        "warmroute_tasks", "asyncio tasks of the router, those of its own loops included", value=work.tasks()
    )
