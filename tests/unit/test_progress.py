"""Whether an engine gets on, by its count of steps."""

import pytest

from warmroute.core.progress import Progress


def seen(*scrapes: tuple[float, float | None, bool], after: float = 10.0) -> list[bool]:
    """What `stalled` is after each scrape: time, steps, whether requests are there."""
    progress = Progress()
    stalled = []
    for now, steps, busy in scrapes:
        before = progress.stalled
        assert progress.observe(steps, busy=busy, now=now, after=after) is (before is not progress.stalled)
        stalled.append(progress.stalled)
    return stalled


def test_an_engine_that_makes_no_step_for_the_time_with_requests_there_stalls() -> None:
    assert seen((0, 5, True), (5, 5, True), (9.9, 5, True), (10, 5, True), (15, 5, True)) == [False] * 3 + [True] * 2


@pytest.mark.parametrize("then", [(15.0, 6.0, True), (15.0, 5.0, False), (15.0, None, True), (15.0, 0.0, True)])
def test_a_step_or_rest_or_a_restart_or_no_count_ends_it(then: tuple[float, float | None, bool]) -> None:
    assert seen((0, 5, True), (10, 5, True), then, (20, then[1], True)) == [False, True, False, False]


def test_an_idle_engine_does_not_stall_and_its_idle_time_does_not_count() -> None:
    assert seen((0, 5, False), (100, 5, False), (101, 5, True), (110, 5, True), (111, 5, True)) == [False] * 4 + [True]


def test_a_server_without_the_count_never_stalls() -> None:
    assert not any(seen((0, None, True), (100, None, True), (200, None, True)))
