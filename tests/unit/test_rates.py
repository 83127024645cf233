"""Rates: counters that restart, windows of time, and ratios that are never invented."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.rates import WINDOWS, CounterGroup, CounterTrack, HitHistory, Hits

counts = st.floats(0, 1e12)


def total(values: list[float]) -> float:
    track = CounterTrack()
    for value in values:
        track.observe(value)
    return track.total


# Counters


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], 0),
        ([7], 7),
        ([7, 7], 7),
        ([7, 10], 10),
        ([7, 3], 10),
        ([7, 0], 7),
        ([7, 0, 5], 12),
        ([100, 40, 60, 10], 170),
        ([0, 0, 0], 0),
    ],
    ids=["nothing", "first", "same", "more", "restart", "restart at zero", "and on", "two restarts", "zero"],
)
def test_a_counter_over_restarts(values: list[float], expected: float) -> None:
    assert total(values) == expected


@given(st.lists(counts))
def test_a_total_never_falls(values: list[float]) -> None:
    track = CounterTrack()
    for value in values:
        before = track.total
        track.observe(value)
        assert track.total >= before
        assert track.last == value


@given(st.lists(st.lists(st.integers(0, 10**9), min_size=1), min_size=1))
def test_a_total_is_the_sum_of_what_each_life_of_the_process_showed_last(increases: list[list[int]]) -> None:
    lives = []
    for steps in increases:
        value, life = 0, []
        for step in steps:
            value += step
            life.append(value)
        lives.append(life)
    seen = CounterTrack()
    expected, last = 0.0, 0.0
    for life in lives:
        if life[0] >= last:  # a restart that is not seen as one: the counter is already higher than before
            expected -= last
        expected += life[-1]
        last = life[-1]
        for value in life:
            seen.observe(value)
    assert seen.total == expected


def test_a_group_sums_series_that_restart_on_their_own() -> None:
    group = CounterGroup()
    assert group.observe({"e0": 10, "e1": 5}) == 15
    assert group.observe({"e0": 12, "e1": 2}) == 19
    assert group.total == 19


def test_a_series_that_disappears_keeps_what_it_had() -> None:
    group = CounterGroup()
    group.observe({"e0": 10, "e1": 5})
    assert group.observe({"e0": 11}) == 16
    assert group.observe({"e0": 11, "e1": 6}) == 17
    assert group.observe({}) == 17


def test_an_empty_group_is_zero() -> None:
    assert CounterGroup().total == 0
    assert CounterGroup().observe({}) == 0


@given(st.lists(st.dictionaries(st.sampled_from("abc"), counts)))
def test_a_groups_total_never_falls(scrapes: list[dict[str, float]]) -> None:
    group = CounterGroup()
    before = 0.0
    for scrape in scrapes:
        after = group.observe(scrape)
        assert after >= before
        before = after


# Ratios


@pytest.mark.parametrize(
    ("hits", "ratio"),
    [
        (Hits(10, 4), 0.4),
        (Hits(10, 0), 0.0),
        (Hits(10, 10), 1.0),
        (Hits(1, 1), 1.0),
        (Hits(), None),
        (Hits(0, 0), None),
        (Hits(-5, 0), None),
    ],
    ids=["some", "none hit", "all hit", "one", "nothing", "0/0", "a negative span"],
)
def test_ratio(hits: Hits, ratio: float | None) -> None:
    assert hits.ratio == ratio


samples = st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)).map(lambda pair: Hits(max(pair), min(pair)))


@given(st.lists(samples))
def test_a_merged_ratio_lies_between_the_lowest_and_the_highest(parts: list[Hits]) -> None:
    merged = sum(parts, Hits())
    ratios = [part.ratio for part in parts if part.ratio is not None]
    if merged.ratio is None:
        assert not ratios
    else:
        assert min(ratios) - 1e-12 <= merged.ratio <= max(ratios) + 1e-12


def test_a_merged_ratio_is_no_mean_of_ratios() -> None:
    assert (Hits(1000, 600) + Hits(400, 100)).ratio == 0.5


@given(samples, samples)
def test_adding_and_taking_away_are_opposite(one: Hits, other: Hits) -> None:
    assert one + other - other == one


# Windows


def history(*rows: tuple[float, float, float]) -> HitHistory:
    made = HitHistory()
    for now, queries, hits in rows:
        made.add(now, Hits(queries, hits))
    return made


STEADY = history(*((t, t * 10, t * 4) for t in range(0, 601, 5)))


def test_an_empty_history_says_nothing() -> None:
    empty = HitHistory()
    assert empty.total == Hits()
    assert empty.window(100, 60) == Hits()
    assert empty.between(0, 100) == Hits()


def test_the_first_sample_is_no_increase() -> None:
    assert history((0, 9_000, 8_000)).window(0, 60) == Hits()
    assert history((0, 9_000, 8_000), (5, 9_100, 8_040)).window(5, 60) == Hits(100, 40)


@pytest.mark.parametrize("seconds", [5, 60, 300, 600])
def test_a_window_holds_what_came_in_it(seconds: float) -> None:
    assert STEADY.window(600, seconds) == Hits(seconds * 10, seconds * 4)


def test_a_window_longer_than_the_history_holds_all_of_it() -> None:
    assert STEADY.window(600, 3600) == Hits(6000, 2400)


@pytest.mark.parametrize(
    ("now", "expected"),
    [(100, 600), (104.9, 600), (105, 600), (159.9, 600), (660, 0), (602, 600), (659.9, 50)],
    ids=["on a sample", "between", "on the next", "later", "window behind the last", "just after the last", "edge"],
)
def test_edges_of_a_window_go_by_the_last_sample_before(now: float, expected: float) -> None:
    assert STEADY.window(now, 60).queries == expected


def test_a_time_before_the_first_sample_counts_as_the_first() -> None:
    assert STEADY.between(-100, 5) == Hits(50, 20)
    assert STEADY.between(-100, -50) == Hits()


def test_two_spans_side_by_side_hold_what_both_together_do() -> None:
    parts = [STEADY.between(t, t + 30) for t in range(0, 600, 30)]
    assert sum(parts, Hits()) == STEADY.between(0, 600)


steps = st.tuples(st.integers(0, 1000), st.integers(0, 1000)).map(lambda pair: Hits(max(pair), min(pair)))


@given(st.lists(st.tuples(st.floats(0.1, 600), steps), max_size=80), st.floats(0, 4000), st.floats(0, 4000))
def test_no_span_of_a_history_is_negative_or_above_one(
    rows: list[tuple[float, Hits]], start: float, length: float
) -> None:
    made, now, seen = HitHistory(), 0.0, Hits()
    for pause, step in rows:
        now, seen = now + pause, seen + step
        made.add(now, seen)
    span = made.between(start, start + length)
    assert span.queries >= span.hits >= 0
    assert span.ratio is None or 0 <= span.ratio <= 1
    assert made.total == (seen if rows else Hits())


def test_a_history_is_bounded_by_its_longest_window() -> None:
    made = HitHistory()
    for t in range(0, 100_000, 5):
        made.add(t, Hits(t * t, t))
    assert repr(made).startswith("<HitHistory 727 samples,")
    assert made.window(99_995, 3600) == Hits(99_995**2 - 96_395**2, 3600)
    assert made.total == Hits(99_995**2, 99_995)


def test_a_history_of_a_shorter_window_is_shorter() -> None:
    made = HitHistory(keep=60)
    for t in range(0, 1000, 5):
        made.add(t, Hits(t, 0))
    assert made.window(995, 60) == Hits(60, 0)
    assert made.window(995, 900).queries <= 90


def test_after_a_long_silence_there_is_no_window() -> None:
    assert STEADY.window(600 + 4000, 3600) == Hits()
    assert STEADY.window(600 + 4000, 3600).ratio is None


def test_the_published_windows() -> None:
    assert WINDOWS == {"1m": 60.0, "5m": 300.0, "1h": 3600.0}
