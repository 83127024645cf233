"""What the router's processes hold now, and how many processes there are."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


class Workers(NamedTuple):
    """The processes of the data port: those that serve, those that were replaced, and requests lost with them."""

    wanted: int
    serving: int
    restarts: int
    lost: int


class Work(NamedTuple):
    """What the process holds now, each asked for at a scrape: asyncio tasks, and requests that wait for a full backend.

    `workers` is there where several processes serve the data port.
    """

    tasks: Callable[[], int] = int
    waiting: Callable[[], int] = int
    workers: Callable[[], Workers] | None = None


def work_now(work: Work) -> Iterator[Metric]:
    """Their series."""
    yield GaugeMetricFamily(
        "warmroute_requests_waiting", "Requests that wait in the queue for a full backend", value=work.waiting()
    )
    yield GaugeMetricFamily(
        "warmroute_tasks", "asyncio tasks of the router, those of its own loops included", value=work.tasks()
    )
    if work.workers is not None:
        yield from _workers(work.workers())


def _workers(workers: Workers) -> Iterator[Metric]:
    yield GaugeMetricFamily("warmroute_workers", "Processes that serve the data port", value=workers.serving)
    yield CounterMetricFamily(
        "warmroute_worker_restarts_total",
        "Processes of the data port that died and were replaced",
        value=workers.restarts,
    )
    yield CounterMetricFamily(
        "warmroute_worker_requests_lost_total", "Requests broken off by the death of a process", value=workers.lost
    )
