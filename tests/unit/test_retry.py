"""May a failed exchange be tried again? The whole table, since it is small."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.model import Failure, Phase
from warmroute.core.retry import MAX_SENT, Budget, Verdict, is_fault, verdict


@pytest.mark.parametrize(
    ("phase", "stale", "sent", "expected"),
    [
        (Phase.CONNECT, False, 0, Verdict.OTHER),
        (Phase.CONNECT, False, 1, Verdict.OTHER),
        (Phase.CONNECT, False, 2, Verdict.GIVE_UP),
        (Phase.HEAD, True, 1, Verdict.SAME),
        (Phase.HEAD, True, 2, Verdict.SAME),
        (Phase.HEAD, False, 1, Verdict.OTHER),
        (Phase.HEAD, False, 2, Verdict.GIVE_UP),
        (Phase.HEAD, False, 3, Verdict.GIVE_UP),
        (Phase.STREAM, False, 1, Verdict.GIVE_UP),
        (Phase.STREAM, True, 1, Verdict.GIVE_UP),
    ],
    ids=[
        "refused by the first",
        "refused after one had it",
        "refused after two had it",
        "a stale connection",
        "a stale connection to the second",
        "the first broke",
        "two broke: poison",
        "never a third",
        "content has been sent",
        "content has been sent, whatever the connection",
    ],
)
def test_verdict(phase: Phase, stale: bool, sent: int, expected: Verdict) -> None:
    assert verdict(Failure(phase, "reset", "it broke", stale), sent=sent) is expected


@given(st.lists(st.sampled_from([Phase.CONNECT, Phase.HEAD]), min_size=1, max_size=30))
def test_at_most_two_backends_see_a_request(phases: list[Phase]) -> None:
    sent = 0
    for phase in phases:
        sent += phase is not Phase.CONNECT
        if verdict(Failure(phase, "reset", ""), sent=sent) is Verdict.GIVE_UP:
            break
    assert sent <= MAX_SENT == 2


# Faulty answers and their budget


@pytest.mark.parametrize(
    ("status", "headers", "fault"),
    [(500, (), True), (502, (), True), (503, (), True), (504, (), True), (503, (b"retry-after",), False)]
    + [(status, (), False) for status in (200, 400, 404, 408, 413, 422, 429, 501)],
)
def test_which_answers_are_faults_of_the_backend(status: int, headers: tuple[bytes, ...], fault: bool) -> None:
    assert is_fault(status, headers) is fault


def test_a_fifth_of_the_requests_may_be_retried_and_some_at_least() -> None:
    now = [0.0]
    budget = Budget(lambda: now[0], share=0.2, least=3, window=10.0)
    assert [budget.take() for _ in range(5)] == [True, True, True, False, False]
    assert budget.refused == 2
    for _ in range(40):
        budget.request()
    assert sum(budget.take() for _ in range(20)) == 5  # a fifth of 40 is 8, and 3 were taken


def test_a_budget_fills_again_with_time() -> None:
    now = [0.0]
    budget = Budget(lambda: now[0], share=0.2, least=3, window=10.0)
    assert sum(budget.take() for _ in range(9)) == 3
    now[0] = 10.0
    assert not budget.take()  # the last window still counts
    now[0] = 20.0
    assert sum(budget.take() for _ in range(9)) == 3
    now[0] = 1000.0
    assert sum(budget.take() for _ in range(9)) == 3
