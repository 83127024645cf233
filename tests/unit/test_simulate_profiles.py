"""Made-up workloads: the same for the same seed, with the distributions that they claim."""

from collections import Counter, defaultdict
from itertools import pairwise
from statistics import fmean, median

import pytest

from warmroute.core.identity import CONTENT
from warmroute.simulate.profiles import Profile, make
from warmroute.simulate.workload import Request, Workload

profiles = pytest.mark.parametrize("profile", list(Profile))


def turns(workload: Workload) -> dict[bytes, list[Request]]:
    found: dict[bytes, list[Request]] = defaultdict(list)
    for request in workload.requests:
        assert request.session is not None
        found[request.session.key].append(request)
    return found


@profiles
def test_a_seed_makes_one_workload(profile: Profile) -> None:
    assert make(profile, seed=3, sessions=20) == make(profile, seed=3, sessions=20)
    assert make(profile, seed=3, sessions=20) != make(profile, seed=4, sessions=20)


@profiles
def test_requests_come_in_order_with_the_blocks_of_their_prompts(profile: Profile) -> None:
    workload = make(profile, seed=1, sessions=20)
    assert [r.at for r in workload.requests] == sorted(r.at for r in workload.requests)
    for request in workload.requests:
        assert len(request.blocks) == request.prompt // workload.block_size
        with_answer = (request.prompt + request.answer) // workload.block_size
        assert len(request.blocks) + len(request.answer_blocks) == with_answer


def test_more_sessions_begin_with_the_same_ones() -> None:
    few, many = make(Profile.CHAT, sessions=10), make(Profile.CHAT, sessions=20)
    assert turns(few).items() <= turns(many).items()


def test_a_chat_goes_on_from_its_last_answer() -> None:
    for talk in turns(make(Profile.CHAT, sessions=50)).values():
        for before, after in pairwise(talk):
            known = before.blocks + before.answer_blocks
            assert after.blocks[: len(known)] == known
            assert after.at > before.at + before.answer / 40


def test_chats_are_as_long_as_is_claimed() -> None:
    talks = turns(make(Profile.CHAT, seed=2, sessions=1000))
    lengths = [len(talk) for talk in talks.values()]
    assert Counter(lengths)[1] / len(lengths) == pytest.approx(0.25, abs=0.05)
    assert fmean(lengths) == pytest.approx(3.25, abs=0.4)
    assert max(lengths) <= 15
    assert {request.session.source for talk in talks.values() for request in talk if request.session} == {CONTENT}
    assert len({talk[0].blocks[0] for talk in talks.values()}) == 1  # all share the first part of the system prompt


def test_agents_are_as_long_as_is_claimed() -> None:
    talks = turns(make(Profile.AGENT, seed=2, sessions=300))
    assert median(len(talk) for talk in talks.values()) == pytest.approx(42, rel=0.2)
    assert all(talk[0].prompt == 40_000 for talk in talks.values())
    pairs = [pair for talk in talks.values() for pair in pairwise(talk)]
    assert median(after.prompt - before.prompt for before, after in pairs) == pytest.approx(639, rel=0.2)
    reset = [after for before, after in pairs if after.blocks[: len(before.blocks)] != before.blocks]
    assert 0.015 < len(reset) / len(pairs) < 0.05


def test_a_hostile_workload_has_what_makes_routers_look_bad() -> None:
    workload = make(Profile.HOSTILE, sessions=100)
    talks = turns(workload)
    at_once = [talk for talk in talks.values() if len({request.at for request in talk}) == 1 and len(talk) == 24]
    assert len(at_once) == 10
    single = [talk[0] for talk in talks.values() if len(talk) == 1]
    assert 0.2 < sum(1000 for _ in single) / sum(request.prompt for request in single) < 0.32
    assert len(talks) > 100  # chats that summed themselves up are others
