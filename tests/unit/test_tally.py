"""Prompt tokens by outcome as counters: they add up, and never fall, whatever turns out later."""

from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.split import Outcome
from warmroute.truth.conversations import TurnTaken
from warmroute.truth.tally import Tally


def turn(at: float, reused: int) -> TurnTaken:
    return TurnTaken(at, "a", "pin_hit", reused + 10, reused, 1.0, {Outcome.REUSED: reused, Outcome.NEW: 10})


def test_what_was_reloaded_is_told_at_the_next_reading() -> None:
    tally = Tally()
    tally.reloaded("a", 1000.0)
    tally.add(turn(1.0, 64), {})
    assert tally.settled("a") == {Outcome.REUSED: 0, Outcome.NEW: 10}
    tally.reloaded("a", 1048.0)
    assert tally.settled("a") == tally.totals("a") == {Outcome.REUSED: 16, Outcome.RELOADED: 48, Outcome.NEW: 10}


def test_without_a_tier_behind_there_is_nothing_to_wait_for() -> None:
    tally = Tally()
    tally.add(turn(1.0, 64), {})
    assert tally.settled("a") == tally.totals("a") == {Outcome.REUSED: 64, Outcome.NEW: 10}
    assert tally.settled("b") == {}


@given(st.lists(st.one_of(st.integers(0, 500), st.floats(0, 1000)), max_size=60))
def test_settled_tokens_never_fall_and_add_up_in_the_end(steps: list[int | float]) -> None:
    """An integer is a turn with so many tokens reused, a float a reading so much above the last one."""
    tally, read = Tally(), 0.0
    tally.reloaded("a", read)
    before = tally.settled("a")
    for at, step in enumerate(steps):
        if isinstance(step, int):
            tally.add(turn(float(at), step), {})
        else:
            read += step
            tally.reloaded("a", read)
        now = tally.settled("a")
        assert all(now[outcome] >= before[outcome] for outcome in Outcome)
        before = now
    tally.reloaded("a", read)
    assert tally.settled("a").total() == sum(step + 10 for step in steps if isinstance(step, int))


def test_the_tokens_of_a_backend_that_is_gone_remain_the_fleets() -> None:
    tally = Tally()
    tally.reloaded("a", 0.0)
    tally.add(turn(1.0, 64), {Outcome.NEW: "why"})
    tally.forget("a")
    assert (tally.totals("a"), tally.settled("a"), dict(tally.tokens), dict(tally.missed)) == ({}, {}, {}, {})
    assert tally.totals() == {Outcome.REUSED: 64, Outcome.NEW: 10}
    tally.add(turn(2.0, 1), {})
    assert tally.totals() == {Outcome.REUSED: 65, Outcome.NEW: 20}
    assert tally.totals("a") == {Outcome.REUSED: 1, Outcome.NEW: 10}
