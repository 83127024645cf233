"""Ways of placing requests on workloads whose outcome is known, and backends that come, go and die."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from warmroute.config import Config, load
from warmroute.core.identity import CONTENT
from warmroute.core.model import Session
from warmroute.sim.prefix_cache import PrefixCache
from warmroute.simulate.events import Event, Kind
from warmroute.simulate.policies import Policy
from warmroute.simulate.profiles import Profile, make
from warmroute.simulate.result import Result, quantile
from warmroute.simulate.run import Setting, ceiling, simulate
from warmroute.simulate.server import BlockSequence, Load
from warmroute.simulate.timing import Timing
from warmroute.simulate.trace import read_trace
from warmroute.simulate.workload import Request, Workload, name

MADE_UP = Path(__file__).parent.parent / "golden" / "made-up-trace.jsonl"
CHAT = make(Profile.CHAT, seed=5, sessions=150)
PINNED = pytest.mark.parametrize("policy", [Policy.PINS, Policy.PINS_SPILL])


def config(**sections: dict[str, object]) -> Config:
    return load(environment={}, flags={"backends": ["http://127.0.0.1:1"], **sections})


def setting(*events: Event, backends: int = 4, blocks: int = 2000, **sections: dict[str, object]) -> Setting:
    return Setting(backends, blocks, config(**sections), events=events)


def talks(count: int, turns: int, *, every: float = 10.0, apart: float = 0.1, answer: int = 40) -> Workload:
    """So many conversations, of 20 blocks at first and one more each turn, without a common beginning."""
    requests = [
        Request(
            turn * every + talk * apart,
            320 + 16 * turn,
            answer,
            tuple(name(talk * 1000 + i) for i in range(20 + turn)),
            session=Session(b"%016d" % talk, CONTENT),
        )
        for turn in range(turns)
        for talk in range(count)
    ]
    return Workload("talks", 16, sorted(requests))


def homes(result: Result) -> dict[bytes, list[str]]:
    """Where each session that moved was, in order."""
    found: dict[bytes, list[str]] = {}
    for move in result.moves:
        found.setdefault(move.session, [move.before]).append(move.after)
    return found


# What is measured


def test_round_robin_hits_less_than_the_ring_and_the_ring_no_more_than_pins() -> None:
    rates = {policy: simulate(CHAT, setting(blocks=700), policy).hit_rate for policy in Policy}
    assert rates[Policy.ROUND_ROBIN] < 0.9 * rates[Policy.RING]
    assert rates[Policy.RING] <= rates[Policy.PINS] <= ceiling(CHAT, 4 * 700)


def test_every_request_is_answered_once() -> None:
    for policy in Policy:
        result = simulate(CHAT, setting(), policy)
        assert result.total.requests == len(result.ttfts) == result.decisions.total() == len(CHAT.requests)
        assert result.total.prompt_tokens == sum(request.prompt for request in CHAT.requests)
        assert (result.refused, result.lost, result.resumed) == (0, 0, 0)


def test_a_run_is_the_same_every_time() -> None:
    assert simulate(CHAT, setting(), Policy.PINS) == simulate(CHAT, setting(), Policy.PINS)


def test_round_robin_takes_turns_and_the_rest_of_a_talk_stays() -> None:
    workload = talks(5, 4)
    one, other = simulate(workload, setting(), Policy.ROUND_ROBIN), simulate(workload, setting(), Policy.PINS)
    assert {load.requests for load in one.loads.values()} == {5}
    assert len(one.moves) == 15
    assert not other.moves
    # Each turn finds all but the block that is new; the answer has no names here.
    assert other.total.cached_tokens == sum(5 * 16 * (20 + turn) - 16 * 5 for turn in range(1, 4))


@PINNED
def test_few_long_talks_part_evenly(policy: Policy) -> None:
    result = simulate(talks(24, 6), setting(backends=3), policy)
    assert result.uneven("requests") == 1.0
    assert result.uneven("prefilled_tokens") == pytest.approx(1.0)


def test_the_pooled_cache_is_one_cache_asked_in_order() -> None:
    with MADE_UP.open("rb") as file:
        workload = read_trace(file)
    cache = PrefixCache(31, workload.block_size)
    for request in workload.requests:
        sequence = BlockSequence(request, workload.block_size)
        assert cache.admit(sequence)
        sequence.answered(request.answer)
        assert cache.extend(sequence, request.prompt + request.answer - 1 - sequence.local_hit)
        cache.release(sequence)
    assert ceiling(workload, 30) == cache.counters.hit_rate > 0
    assert ceiling(workload, 1000) > ceiling(workload, 12)


def test_conversations_of_a_trace_are_found_by_their_blocks() -> None:
    with MADE_UP.open("rb") as file:
        workload = read_trace(file)
    result = simulate(workload, setting(backends=2, blocks=100), Policy.PINS)
    assert result.sessions == 12  # as it was made
    assert not result.moves
    assert result.hit_rate == pytest.approx(ceiling(workload, 200), rel=0.15)


def test_a_beginning_that_many_share_is_nobodys() -> None:
    """A short prompt is the beginning of many others, which are not its next turns."""
    shared = Request(0, 20, 5, (name(0),))
    others = [Request(1.0 + i, 40, 5, (name(0), name(i + 1))) for i in range(40)]
    result = simulate(Workload("shared", 16, [shared, *others]), setting(), Policy.RING)
    assert 35 <= result.sessions <= 41  # it takes a few until the block is known for what it is


def test_numbers_of_a_result() -> None:
    result = Result(loads={"a": Load(3, 300, 100), "b": Load(1, 100, 100), "c": Load(9, 900, 0)}, steady={"a", "b"})
    assert result.hit_rate == 200 / 1300
    assert (result.uneven("requests"), result.uneven("prefilled_tokens")) == (1.5, 2.0)
    assert Result().hit_rate == 0.0
    assert (Result().uneven("requests"), Result().ttft(0.5)) == (1.0, 0.0)
    assert [quantile([1, 2, 3, 4], share) for share in (0.0, 0.5, 0.95, 1.0)] == [1, 3, 4, 4]


# Backends that come, go and die


@PINNED
def test_a_backend_more_moves_no_live_session_and_takes_new_ones(policy: Policy) -> None:
    result = simulate(CHAT, setting(Event(Kind.SCALE_OUT, 100.0)), policy)
    assert not result.moves
    assert result.loads["backend-5"].requests > 20
    assert result.steady == {f"backend-{number}" for number in range(1, 5)}


def test_a_backend_more_moves_sessions_of_the_ring_alone() -> None:
    result = simulate(CHAT, setting(Event(Kind.SCALE_OUT, 100.0)), Policy.RING)
    assert {move.after for move in result.moves} == {"backend-5"}


@PINNED
def test_a_failure_moves_only_the_sessions_of_the_failed_backend_and_each_once(policy: Policy) -> None:
    workload = talks(40, 8)
    result = simulate(workload, setting(Event(Kind.FAIL, 32.0, 15.0)), policy)
    moved = homes(result)
    assert len(moved) == 10  # a quarter
    assert all(path[0] == "backend-1" and len(path) == 2 for path in moved.values())
    assert result.total.requests - result.resumed >= len(workload.requests)
    assert len(result.ttfts) == len(workload.requests)
    assert (result.refused, result.lost) == (0, 0)


def test_answers_that_a_failure_breaks_are_gone_on_with_elsewhere() -> None:
    workload = talks(8, 1, answer=400)  # ten seconds each
    result = simulate(workload, setting(Event(Kind.FAIL, 5.0)), Policy.PINS)
    assert result.resumed == 2
    assert result.total.requests == 10
    again = (
        result.total.prompt_tokens - 8 * 320
    )  # 40 tokens a second had come of each answer, less the time of its prompt
    assert 2 * (320 + 180) < again < 2 * (320 + 200)
    assert len(result.ttfts) == 8
    assert len(result.moves) == 2


def test_prompts_that_a_failure_meets_are_computed_elsewhere() -> None:
    """Nothing of the answer has come, so nobody moves: the pin was never confirmed."""
    slow = Timing(first=0.0, token=1.0, pair=0.0, cached=0.0)
    workload = talks(4, 1)
    run = Setting(4, 2000, config(), slow, [Event(Kind.FAIL, 5.0)])
    result = simulate(workload, run, Policy.PINS)
    assert (result.resumed, len(result.moves), len(result.ttfts)) == (0, 0, 4)
    assert result.decisions.total() == 5
    assert "pin_lost" not in result.decisions
    assert max(result.ttfts) > 630  # one waits for another's 320 s


def test_a_backend_that_returns_is_cold_and_pulls_none_back() -> None:
    workload = talks(4, 6)
    stays = simulate(workload, setting(Event(Kind.FAIL, 21.0)), Policy.PINS)
    returns = simulate(workload, setting(Event(Kind.FAIL, 21.0, 1.0)), Policy.PINS)
    assert len(stays.moves) == len(returns.moves) == 1
    ring = simulate(workload, setting(Event(Kind.FAIL, 21.0, 10.0)), Policy.RING)
    there_and_back = [path for path in homes(ring).values() if path[0] == path[-1]]
    assert len(there_and_back) == len(homes(ring))


def test_all_backends_dead_refuse() -> None:
    events = [Event(Kind.FAIL, 11.0), Event(Kind.FAIL, 12.0)]
    result = simulate(talks(4, 3), setting(*events, backends=2), Policy.PINS)
    assert result.refused == 4
    assert len(result.ttfts) == 8


@pytest.mark.parametrize("policy", list(Policy))
def test_a_drained_backend_keeps_its_sessions_until_the_deadline(policy: Policy) -> None:
    workload = talks(12, 9)
    result = simulate(workload, setting(Event(Kind.SCALE_IN, 25.0), drain={"deadline": 30.0}), policy)
    of_the_drained = [move for move in result.moves if move.before == "backend-4"]
    if policy.remembers:
        assert len(of_the_drained) == len(result.moves) == 3
        assert all(move.at > 55.0 for move in result.moves)
    assert not [move for move in result.moves if move.after == "backend-4" and move.at > 26.0]
    assert "backend-4" not in result.steady


# Full backends


def at_once(count: int) -> Workload:
    """One conversation that is gone on with in many ways at once, and two others."""
    hot, cold = Session(b"h" * 16, CONTENT), Session(b"c" * 16, CONTENT)
    first = Request(0.0, 320, 5, tuple(name(i) for i in range(20)), session=hot)
    many = [first._replace(at=5.0) for _ in range(count)]
    return Workload("hot", 16, [first, *many, Request(6.0, 16, 5, (name(9000),), session=cold)])


def run_full(policy: Policy, **queue: object) -> Result:
    return simulate(at_once(24), setting(queue={"in_flight": 4, **queue}), policy)


def test_sessions_of_a_full_backend_wait_for_it() -> None:
    result = run_full(Policy.PINS)
    assert (result.moves, result.refused) == ([], 0)
    assert len(result.ttfts) == 26
    assert result.ttft(0.95) > 0.5


def test_or_are_served_elsewhere() -> None:
    result = run_full(Policy.PINS_SPILL)
    assert result.decisions["pin_spill"] > 0
    assert result.moves
    assert result.ttft(0.95) < run_full(Policy.PINS).ttft(0.95)


def test_where_no_backend_is_full_nothing_spills() -> None:
    """The command does not run the same twice."""
    waits, spills = simulate(CHAT, setting(), Policy.PINS), simulate(CHAT, setting(), Policy.PINS_SPILL)
    assert waits == spills
    assert 1 < waits.most < 1024
    assert run_full(Policy.PINS).most == 4


def test_nobody_waits_for_ever_or_in_a_longer_line_than_is_allowed() -> None:
    assert run_full(Policy.PINS, length=3).refused == 24 - 4 - 3
    assert 0 < run_full(Policy.PINS, timeout=0.5).refused < 20


def test_a_waiting_request_takes_a_backend_that_comes() -> None:
    queue: dict[str, object] = {"in_flight": 1, "timeout": 60.0}
    workload = Workload(
        "two", 16, [Request(0.0, 16, 400, (name(i),), session=Session(b"%016d" % i, CONTENT)) for i in (0, 1)]
    )
    waited = simulate(workload, setting(backends=1, queue=queue), Policy.PINS)
    helped = simulate(workload, setting(Event(Kind.SCALE_OUT, 2.0), backends=1, queue=queue), Policy.PINS)
    assert max(waited.ttfts) > 10
    assert 2 < max(helped.ttfts) < 3


def told(run: Callable[[Callable[[int], None]], object]) -> Sequence[int]:
    heard: list[int] = []
    run(heard.append)
    return heard


def test_progress_is_told_to_the_end() -> None:
    heard = told(lambda progress: simulate(CHAT, setting(), Policy.RING, progress))
    assert list(heard) == sorted(heard)
    assert heard[-1] == len(CHAT.requests)
