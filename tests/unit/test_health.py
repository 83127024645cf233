"""Health: how many failures make a backend down, how many successes bring it back, and when that is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.health import Health, Thresholds

LIMITS = Thresholds(fall=3, rise=2)


def probe(health: Health, results: str) -> list[bool]:
    """Feed checks: "+" passed, "-" failed; returns whether each changed the state."""
    return [health.probed(None if result == "+" else "refused", LIMITS) for result in results]


@pytest.mark.parametrize(
    ("results", "up", "changes"),
    [
        ("", None, []),
        ("+", True, [True]),
        ("-", False, [True]),
        ("+--", True, [True, False, False]),
        ("+---", False, [True, False, False, True]),
        ("+--+--", True, [True, False, False, False, False, False]),
        ("+--+---", False, [True, False, False, False, False, False, True]),
        ("-+", False, [True, False]),
        ("-++", True, [True, False, True]),
        ("-+-+", False, [True, False, False, False]),
        ("-+-++", True, [True, False, False, False, True]),
        ("+---++", True, [True, False, False, True, False, True]),
        ("+++++", True, [True, False, False, False, False]),
        ("-----", False, [True, False, False, False, False]),
    ],
    ids=lambda value: value or "nothing" if isinstance(value, str) else "",
)
def test_checks(results: str, up: bool | None, changes: list[bool]) -> None:
    health = Health()
    assert probe(health, results) == changes
    assert health.up is up


def test_without_other_thresholds_three_failures_are_down_and_two_successes_up() -> None:
    health, limits = Health(up=True), Thresholds()
    assert health.settled
    assert [health.probed("503", limits) for _ in range(3)] == [False, False, True]
    health = Health(up=False)
    assert [health.probed(None, limits) for _ in range(2)] == [False, True]


def test_failures_are_counted_while_a_backend_is_down() -> None:
    health = Health(up=False)
    health.connect_failed("refused")
    health.probed("refused", LIMITS)
    health.connect_failed("refused")
    assert health.failures == 3
    probe(health, "+")
    assert (health.failures, health.successes) == (0, 1)


def test_a_backend_is_usable_until_it_is_known_to_be_down() -> None:
    assert Health().usable
    assert Health(up=True).usable
    assert not Health(up=False).usable


@pytest.mark.parametrize(
    ("results", "settled"),
    [("", False), ("+", True), ("+-", False), ("+-+", True), ("-", False), ("-+", False), ("-++", True)],
)
def test_settled_is_up_without_doubt(results: str, settled: bool) -> None:
    health = Health()
    probe(health, results)
    assert health.settled is settled


def test_the_reason_is_the_last_failure_and_gone_once_up() -> None:
    health = Health()
    health.probed("refused", LIMITS)
    assert health.reason == "refused"
    health.probed("timed out", LIMITS)
    assert health.reason == "timed out"
    probe(health, "++")
    assert health.reason == ""


@pytest.mark.parametrize("before", ["", "+", "+-"], ids=["unknown", "up", "doubted"])
def test_a_refused_connection_is_down_at_once(before: str) -> None:
    health = Health()
    probe(health, before)
    assert health.connect_failed("connection refused")
    assert (health.up, health.reason) == (False, "connection refused")


def test_further_refused_connections_change_nothing_but_a_rise_under_way() -> None:
    health = Health()
    health.connect_failed("connection refused")
    probe(health, "+")
    assert not health.connect_failed("connection refused")
    assert probe(health, "+") == [False]
    assert probe(health, "+") == [True]


events = st.lists(st.sampled_from("+-c"), max_size=60)


@given(events, st.integers(1, 5), st.integers(1, 5))
def test_a_change_is_told_exactly_when_it_happens(events: list[str], fall: int, rise: int) -> None:
    health, limits = Health(), Thresholds(fall, rise)
    for event in events:
        before = health.up
        changed = (
            health.connect_failed("refused") if event == "c" else health.probed(None if event == "+" else "503", limits)
        )
        assert changed == (health.up is not before)
        assert (health.reason == "") == (health.up is not False)


@given(events, st.integers(1, 5), st.integers(1, 5))
def test_a_backend_always_comes_back_after_as_many_passed_checks_as_it_takes(
    events: list[str], fall: int, rise: int
) -> None:
    health, limits = Health(), Thresholds(fall, rise)
    for event in events:
        if event == "c":
            health.connect_failed("refused")
        else:
            health.probed(None if event == "+" else "503", limits)
    for _ in range(rise):
        health.probed(None, limits)
    assert health.up
    for _ in range(fall):
        health.probed("503", limits)
    assert health.up is False
