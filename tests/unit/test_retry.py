"""May a failed exchange be tried again? The whole table, since it is small."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.model import Failure, Phase
from warmroute.core.retry import MAX_SENT, Verdict, verdict


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
