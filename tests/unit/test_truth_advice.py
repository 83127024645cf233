"""Advice from the account of tokens: said when it costs enough, with its figures, and with the client's own setting."""

import re
from collections.abc import Iterable

import pytest

from warmroute.core.drift import Cause, Drift
from warmroute.core.model import BackendSpec
from warmroute.core.split import Outcome
from warmroute.fleet.moves import Move
from warmroute.fleet.registry import BackendState
from warmroute.observe.truth_advice import Advice, advise_of_truth
from warmroute.observe.truth_view import MEANINGS
from warmroute.pins.memory import PinTable
from warmroute.truth.conversations import Conversations, TurnTaken
from warmroute.truth.ledger import ANSWER, GONE, RESTART, Ledger
from warmroute.truth.warmth import BOUNDS, Warmth


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(Conversations(10), move_cause=lambda decision, left: "failover", process_of=lambda name: 0)


@pytest.fixture
def backends() -> dict[str, BackendState]:
    pins = PinTable(lambda: 0.0, idle_expiry=1.0, limit=9)
    return {name: BackendState(BackendSpec(name, f"http://{name}"), pins, 0.0) for name in ("a", "b", "c", "d")}


def took(ledger: Ledger, backend: str, outcomes: dict[Outcome, int], **causes: str) -> None:
    """A turn whose tokens became this, for these causes by outcome."""
    turn = TurnTaken(0.0, backend, "pin_hit", sum(outcomes.values()), 0, None, outcomes)
    ledger.tally.add(turn, {Outcome(name): cause for name, cause in causes.items()})


def advice(ledger: Ledger, backends: dict[str, BackendState]) -> list[Advice]:
    return list(advise_of_truth(ledger, backends))


def texts(found: Iterable[Advice]) -> list[str]:
    return [one.text for one in found]


def test_nothing_is_said_of_nothing(ledger: Ledger, backends: dict[str, BackendState]) -> None:
    assert advice(ledger, backends) == []


@pytest.mark.parametrize(
    ("evicted", "reused", "said"), [(1_999, 0, 0), (2_000, 0, 1), (2_000, 210_000, 0), (2_000, 190_000, 1)]
)
def test_what_costs_little_is_not_said(
    ledger: Ledger, backends: dict[str, BackendState], evicted: int, reused: int, said: int
) -> None:
    took(ledger, "a", {Outcome.EVICTED: evicted, Outcome.REUSED: reused}, evicted=GONE)
    assert len(advice(ledger, backends)) == said


def test_evictions_have_the_figures_of_the_warm_curve(ledger: Ledger, backends: dict[str, BackendState]) -> None:
    took(ledger, "a", {Outcome.EVICTED: 20_000, Outcome.REUSED: 80_000}, evicted=GONE)
    curve = ledger.warmth["a"] = Warmth()
    for idle, had in ((1.0, 1_000), (10.0, 950), (20.0, 300)):
        for _ in range(10):
            curve.observe(idle, 1_000, had)
    (one,) = advice(ledger, backends)
    assert one.level == "cost"
    assert one.text.startswith("a drops conversations before they come back. Give it more KV memory")
    assert "--kv-offloading-size" in one.text
    assert one.evidence == (
        "a: 20,000 of 100,000 prompt tokens computed again, 90% warm after pauses up to 15 s,"
        " 30% after longer ones, which 10 of 30 turns were, 0 sessions now"
    )


def test_a_cache_that_keeps_nothing_even_for_the_shortest_pause(
    ledger: Ledger, backends: dict[str, BackendState]
) -> None:
    took(ledger, "a", {Outcome.EVICTED: 20_000}, evicted=GONE)
    curve = ledger.warmth["a"] = Warmth()
    for _ in range(10):
        curve.observe(1.0, 1_000, 800)
    (one,) = advice(ledger, backends)
    assert "80.0% of what comes back within 5 s is there" in one.evidence
    assert f"{BOUNDS[0]:g}" == "5"


def test_a_tier_that_is_too_small_is_to_grow_and_does_work(ledger: Ledger, backends: dict[str, BackendState]) -> None:
    backends["a"].scrape.reloaded = 9_000.0
    took(ledger, "a", {Outcome.EVICTED: 20_000, Outcome.RELOADED: 9_000}, evicted=GONE)
    took(ledger, "b", {Outcome.EVICTED: 30_000}, evicted=GONE)
    of_b, of_a, works = advice(ledger, backends)
    assert of_b.text.startswith("b drops")
    assert "--gpu-memory-utilization" in of_b.text
    assert "a larger --kv-offloading-size" in of_a.text
    assert (works.level, works.evidence) == ("good", "9,000 of 29,000 prompt tokens reloaded")


def test_many_backends_are_one_piece_of_advice(ledger: Ledger, backends: dict[str, BackendState]) -> None:
    for number, name in enumerate(backends):
        took(ledger, name, {Outcome.EVICTED: 30_000 - number}, evicted=GONE)
    (one,) = advice(ledger, backends)
    assert one.text.startswith("a, b, c and 1 more drop conversations")
    assert one.evidence.count("sessions now") == 3


def test_a_restart_is_no_lack_of_memory(ledger: Ledger, backends: dict[str, BackendState]) -> None:
    took(ledger, "a", {Outcome.EVICTED: 20_000}, evicted=RESTART)
    (one,) = advice(ledger, backends)
    assert "restart" in one.text
    assert "memory" not in one.text


def test_moves_are_told_by_cause_and_those_that_need_nothing_are_not(
    ledger: Ledger, backends: dict[str, BackendState]
) -> None:
    for cause in Move:
        took(ledger, "a", {Outcome.MOVED: 10_000}, moved=cause)
    found = advice(ledger, backends)
    assert len(found) == len(Move) - len({Move.OWNER})
    assert any("queue.in_flight" in one.text for one in found)
    assert {one.evidence for one in found} == {f"10,000 of {10_000 * len(Move):,} prompt tokens computed again"}


def changed(ledger: Ledger, source: str, cause: Cause, lost: int, turns: int = 10) -> None:
    for _ in range(turns):
        ledger.stability.turn(source, 1, Drift(cause, "system", 10, 10, 0), lost // turns)
    took(ledger, "a", {Outcome.PROMPT_CHANGED: lost}, prompt_changed=cause)


def test_a_changing_prompt_names_the_setting_of_the_client_that_sends_it(
    ledger: Ledger, backends: dict[str, BackendState]
) -> None:
    changed(ledger, "x-openwebui-chat-id", Cause.CLOCK, 50_000)
    (one,) = advice(ledger, backends)
    assert one.text.startswith("A date or time stands in the prompt")
    assert [setting.partition(":")[0] for setting in one.settings] == ["Open WebUI"]
    assert "10 of 10 turns of conversations known by x-openwebui-chat-id" in one.evidence
    assert one.as_dict()["settings"] == list(one.settings)


def test_without_a_source_that_names_a_client_several_are_named(
    ledger: Ledger, backends: dict[str, BackendState]
) -> None:
    changed(ledger, "content", Cause.CLOCK, 50_000)
    (one,) = advice(ledger, backends)
    assert 1 < len(one.settings) <= 6


def test_what_people_do_is_no_fault(ledger: Ledger, backends: dict[str, BackendState]) -> None:
    changed(ledger, "content", Cause.EDITED, 50_000)
    assert advice(ledger, backends) == []


def test_answers_that_came_back_otherwise_are_told_once(ledger: Ledger, backends: dict[str, BackendState]) -> None:
    changed(ledger, "content", Cause.ANSWER, 30_000)
    took(ledger, "b", {Outcome.PROMPT_CHANGED: 20_000}, prompt_changed=ANSWER)
    found = advice(ledger, backends)
    assert [re.sub(r" of .*", "", one.evidence) for one in found] == ["30,000", "20,000"]


def test_what_costs_most_comes_first(ledger: Ledger, backends: dict[str, BackendState]) -> None:
    changed(ledger, "content", Cause.CLOCK, 40_000)
    took(ledger, "a", {Outcome.EVICTED: 20_000}, evicted=GONE)
    took(ledger, "a", {Outcome.MOVED: 60_000}, moved=Move.SPILL)
    first, second, third = texts(advice(ledger, backends))
    assert "full" in first
    assert "date or time" in second
    assert "drops" in third


def test_every_cause_has_a_sentence() -> None:
    assert set(MEANINGS) == {*Cause, *Move, GONE, RESTART}
    assert all(sentence.endswith(".") for sentence in MEANINGS.values())
