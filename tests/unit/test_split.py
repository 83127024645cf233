"""What became of a prompt's tokens: every token under one outcome, whatever the backend says."""

from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.split import Expected, Outcome, split

REUSED, NEW, FIRST, MOVED, EVICTED, CHANGED, ROUNDING, UNKNOWN = (
    Outcome.REUSED,
    Outcome.NEW,
    Outcome.FIRST_TURN,
    Outcome.MOVED,
    Outcome.EVICTED,
    Outcome.PROMPT_CHANGED,
    Outcome.BLOCK_ROUNDING,
    Outcome.UNKNOWN,
)
GREW = Expected(known=330, here=330, asked=300)
"""A last turn of 300 tokens with an answer of 31: all of it is known here."""


def test_a_first_turn_is_new_all_of_it_but_what_others_had_asked_too() -> None:
    assert split(100, 0, None)[0] == {FIRST: 100}
    assert split(100, 32, None)[0] == {REUSED: 32, FIRST: 68}


def test_of_a_prompt_whose_last_turn_is_not_known_nothing_is_said() -> None:
    assert split(100, 32, None, older=True)[0] == {REUSED: 32, UNKNOWN: 68}
    assert split(100, None, GREW)[0] == {UNKNOWN: 100}


def test_a_turn_that_goes_on_reuses_all_whole_blocks() -> None:
    assert split(400, 320, GREW)[0] == {REUSED: 320, NEW: 70, ROUNDING: 10}


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    same = Expected(known=320, here=320, asked=320)
    assert split(320, 304, same)[0] == {REUSED: 304, ROUNDING: 16}


def test_what_another_engine_has_was_moved() -> None:
    assert split(400, 0, Expected(330, 0, 300))[0] == {NEW: 70, ROUNDING: 10, MOVED: 320}
    assert split(400, 64, Expected(330, 0, 300))[0] == {REUSED: 64, NEW: 70, ROUNDING: 10, MOVED: 256}


def test_a_session_that_comes_back_has_moved_by_what_was_said_elsewhere() -> None:
    assert split(400, 160, Expected(330, 160, 300))[0] == {REUSED: 160, NEW: 70, ROUNDING: 10, MOVED: 160}
    assert split(400, 96, Expected(330, 160, 300))[0] == {
        REUSED: 96,
        NEW: 70,
        ROUNDING: 10,
        MOVED: 160,
        EVICTED: 64,
    }


def test_what_was_here_and_is_gone_was_evicted() -> None:
    assert split(400, 0, GREW)[0] == {NEW: 70, ROUNDING: 10, EVICTED: 320}
    assert split(400, 160, GREW)[0] == {REUSED: 160, NEW: 70, ROUNDING: 10, EVICTED: 160}


def test_what_the_engine_tells_to_have_dropped_was_evicted_and_nothing_else() -> None:
    """By the figures alone, 304 of 320 tokens that were here say that the last answer came back otherwise."""
    rest = {REUSED: 304, NEW: 70, ROUNDING: 10}
    assert split(400, 304, GREW)[0] == {**rest, CHANGED: 16}
    assert split(400, 304, GREW, gone=0)[0] == {**rest, CHANGED: 16}
    assert split(400, 304, GREW, gone=16)[0] == {**rest, EVICTED: 16}
    assert not split(400, 304, GREW, gone=16)[1]


def test_what_is_missing_though_the_engine_has_it_is_not_put_down_to_eviction() -> None:
    assert split(400, 0, GREW, gone=0)[0] == {NEW: 70, ROUNDING: 10, UNKNOWN: 320}
    assert split(400, 0, GREW, gone=160)[0] == {NEW: 70, ROUNDING: 10, EVICTED: 160, UNKNOWN: 160}


def test_the_last_blocks_of_what_was_dropped_may_be_estimated() -> None:
    assert split(400, 0, GREW, gone=288)[0] == {NEW: 70, ROUNDING: 10, EVICTED: 320}
    assert split(400, 0, GREW, gone=2000)[0] == {NEW: 70, ROUNDING: 10, EVICTED: 320}


def test_hits_that_end_with_the_last_prompt_say_that_the_answer_came_back_otherwise() -> None:
    told = split(400, 288, GREW)
    assert told[0] == {REUSED: 288, NEW: 70, ROUNDING: 10, CHANGED: 32}
    assert told[1]


def test_a_changed_prompt_costs_what_it_replaced() -> None:
    clock = Expected(known=10, here=10, asked=10, replaced=290)
    assert split(400, 0, clock)[0] == {NEW: 100, CHANGED: 290, ROUNDING: 10}


def test_more_hits_than_expected_are_taken_as_they_are() -> None:
    assert split(400, 384, GREW)[0] == {REUSED: 384, NEW: 16}
    assert split(400, 500, GREW)[0] == {REUSED: 400}


def test_other_blocks() -> None:
    assert split(400, 256, GREW, block=64)[0] == {REUSED: 256, NEW: 70, ROUNDING: 10, CHANGED: 64}
    assert split(400, 320, GREW, block=64)[0] == {REUSED: 320, NEW: 70, ROUNDING: 10}


tokens = st.integers(0, 5000)


@given(
    tokens,
    st.none() | tokens,
    st.none() | st.builds(Expected, tokens, tokens, tokens, tokens),
    st.integers(1, 600),
    st.none() | tokens,
)
def test_every_token_has_one_outcome(
    prompt: int, cached: int | None, expected: Expected | None, block: int, gone: int | None
) -> None:
    found = split(prompt, cached, expected, block=block, gone=gone)[0]
    assert sum(found.values()) == prompt
    assert all(count > 0 for count in found.values())
    if cached is not None:
        assert found.get(REUSED, 0) == min(cached, prompt)
