"""Counters: what one finished request adds, and the buckets of its times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.counts import Counts
from warmroute.core.model import Failure, Phase
from warmroute.observe.counters import DURATION_BUCKETS, RECENT, Histogram, RequestCounters
from warmroute.observe.record import RequestRecord

REFUSED = Failure(Phase.CONNECT, "refused", "connection refused by a:8000")
RESET = Failure(Phase.HEAD, "reset", "the connection to b broke")
STALE = Failure(Phase.HEAD, "closed", "closed while idle", stale=True)


def record(**changes: object) -> RequestRecord:
    made = RequestRecord("r1", "POST", "/v1/chat/completions", started=0.0, time=0.0)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def counted(*records: RequestRecord) -> RequestCounters:
    counters = RequestCounters()
    for one in records:
        counters.add(one)
    return counters


def test_requests_are_counted_by_backend_status_and_decision() -> None:
    served = {"backend": "a", "status": 200, "decision": "ring", "attempts": 1}
    counters = counted(record(**served), record(**served), record(status=503, decision="none_available"))
    assert counters.requests == {("a", 200, "ring"): 2, ("", 503, "none_available"): 1}
    assert counters.total == 3


def test_a_move_is_counted_by_its_reason() -> None:
    counters = counted(record(decision="pin_lost", moved=True), record(decision="pin_lost"))
    assert counters.moves == {"pin_lost": 1}


@pytest.mark.parametrize(
    ("attempts", "failures", "retries"),
    [
        (1, [], {}),
        (1, [RESET], {}),
        (2, [REFUSED], {"refused": 1}),
        (2, [STALE], {"stale": 1}),
        (2, [REFUSED, RESET], {"refused": 1}),
        (3, [STALE, REFUSED], {"stale": 1, "refused": 1}),
        (3, [REFUSED, REFUSED], {"refused": 2}),
    ],
    ids=["served", "failed", "repeated", "stale", "repeated in vain", "twice", "twice the same"],
)
def test_a_retry_is_counted_by_what_failed_before(
    attempts: int, failures: list[Failure], retries: dict[str, int]
) -> None:
    counters = counted(record(attempts=attempts, failures=[("a", failure) for failure in failures]))
    assert counters.retries == retries


def test_values_that_named_no_conversation_are_counted_by_source_and_reason() -> None:
    refused = ("x-session-id", "template")
    counters = counted(record(refused_keys=(refused,)), record(refused_keys=(refused, ("codex", "empty"))), record())
    assert counters.refused_keys == {refused: 2, ("codex", "empty"): 1}


def test_clients_that_left_are_counted() -> None:
    assert counted(record(aborted=True), record()).client_aborts == 1


def test_times_are_kept_by_backend() -> None:
    counters = counted(record(backend="a", duration_s=0.3, first_byte_s=0.02), record(duration_s=7.0))
    assert {name: h.sum for name, h in counters.duration.items()} == {"a": 0.3, "": 7.0}
    assert {name: h.sum for name, h in counters.first_byte.items()} == {"a": 0.02}


def test_the_last_requests_are_kept_newest_first() -> None:
    counters = counted(*(record(id=str(i)) for i in range(RECENT + 5)))
    assert [one.id for one in counters.recent] == [str(i) for i in range(RECENT + 4, 4, -1)]


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0.0, "0.005"), (0.005, "0.005"), (0.0051, "0.01"), (1.0, "1.0"), (600.0, "600.0"), (600.1, "+Inf")],
)
def test_an_observation_is_in_the_first_bucket_that_holds_it(seconds: float, bucket: str) -> None:
    histogram = Histogram()
    histogram.observe(seconds)
    rows = dict(histogram.buckets())
    assert list(rows) == [*map(str, DURATION_BUCKETS), "+Inf"]
    assert next(bound for bound, count in rows.items() if count) == bucket


@given(st.lists(st.floats(0, 1e4)))
def test_buckets_are_cumulative_and_the_last_holds_all(seconds: list[float]) -> None:
    histogram = Histogram()
    for one in seconds:
        histogram.observe(one)
    rows = [count for _, count in histogram.buckets()]
    assert rows == sorted(rows)
    assert rows[-1] == len(seconds)
    for bound, count in zip(DURATION_BUCKETS, rows, strict=False):
        assert count == sum(one <= bound for one in seconds)
    assert histogram.sum == sum(seconds)


def test_two_histograms_share_nothing() -> None:
    one, other = Histogram(), Histogram()
    one.observe(1.0)
    assert other.counts == [0] * (len(DURATION_BUCKETS) + 1)


def test_a_backend_that_is_gone_leaves_no_series_but_stays_in_the_total() -> None:
    counters = counted(record(backend="a"), record(backend="a", status=500), record(backend="b"))
    counters.forget("a")
    assert {backend for backend, _, _ in counters.requests} == {"b"}
    assert set(counters.duration) == {"b"}
    assert counters.total == 3
    counters.forget("a")
    assert counters.total == 3


def test_counts_are_a_counter_without_its_slow_way_to_assign() -> None:
    counts: Counts[str] = Counts()
    counts["a"] += 2
    assert (counts, counts["b"], counts.total()) == ({"a": 2}, 0, 2)
    assert type(counts).__delitem__ is dict.__delitem__
