"""The list of moves, failures and changes of state: what goes into it, what is counted together, and that it is bounded."""

import pytest

from warmroute.core.model import BackendSpec, Failure, Phase
from warmroute.core.sketch import sketch
from warmroute.core.usage import Usage
from warmroute.fleet.changes import Changes
from warmroute.fleet.registry import BackendState
from warmroute.observe.events import KEPT, TOGETHER, Events
from warmroute.observe.record import RequestRecord
from warmroute.pins.memory import PinTable
from warmroute.truth.conversations import Computed, Conversation, Engine
from warmroute.truth.ledger import Prompt


class Day:
    """The time of day."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def day() -> Day:
    return Day()


@pytest.fixture
def events(day: Day) -> Events:
    return Events(lambda decision, left: f"{decision} from {left}", day)


def backend(name: str) -> BackendState:
    return BackendState(BackendSpec(name, f"http://{name}"), PinTable(lambda: 0.0, idle_expiry=1.0, limit=9), 0.0)


def record(**changes: object) -> RequestRecord:
    """A request that b has answered, of a conversation that a has computed last."""
    last = Conversation("x-session-id", 0, sketch([]), (Computed(Engine("a", None, 0), 10, 90, 5, 0.0),))
    made = RequestRecord("id", "POST", "/v1/chat/completions", 0.0, 0.0, status=200, backend="b", first_byte_s=0.1)
    made.prompt, made.usage = Prompt(before=last), Usage(prompt=100, cached=16)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def told(events: Events, *names: str) -> list[tuple[object, ...]]:
    return [tuple(event[name] for name in names) for event in events.newest()]


def test_a_request_that_stays_is_no_event(events: Events) -> None:
    events.settle(record(decision="pin_hit"))
    assert (events.newest(), events.version) == ([], 0)


def test_a_move_tells_from_where_why_and_what_it_cost(events: Events) -> None:
    events.settle(record(decision="pin_lost", moved=True))
    assert told(events, "kind", "backend", "to", "why", "count", "tokens") == [
        ("move", "a", "b", "pin_lost from a", 1, 84)
    ]


def test_a_spill_is_no_move(events: Events) -> None:
    events.settle(record(decision="pin_spill"))
    assert told(events, "kind", "backend", "to") == [("spill", "a", "b")]


def test_a_move_of_a_conversation_that_nobody_remembers(events: Events) -> None:
    events.settle(record(decision="pin_lost", moved=True, prompt=Prompt(), usage=Usage()))
    assert told(events, "backend", "to", "why", "tokens") == [("", "b", "", 0)]


def test_moves_alike_are_counted_together_until_there_is_a_pause(events: Events, day: Day) -> None:
    for _ in range(100):
        day.now += 1
        events.settle(record(decision="pin_lost", moved=True))
    assert told(events, "time", "last", "count", "tokens") == [(1_001.0, 1_100.0, 100, 8_400)]
    assert events.version == 100
    day.now += TOGETHER + 0.1
    events.settle(record(decision="pin_lost", moved=True))
    assert told(events, "count") == [(1,), (100,)]


def test_others_in_between_do_not_part_what_is_alike(events: Events) -> None:
    for _ in range(3):
        events.settle(record(decision="pin_lost", moved=True))
        events.settle(record(decision="pin_lost", moved=True, backend="c"))
    assert told(events, "to", "count") == [("c", 3), ("b", 3)]


FAULT = Failure(Phase.HEAD, "reset", "reset by a")


def test_a_failure_tells_who_served_instead(events: Events) -> None:
    events.settle(record(failures=[("a", FAULT)]))
    events.settle(record(failures=[("a", FAULT)], status=502, first_byte_s=0.1))
    assert told(events, "kind", "backend", "to", "why") == [
        ("failure", "a", "", "reset by a"),
        ("failure", "a", "b", "reset by a"),
    ]


@pytest.mark.parametrize(
    "harmless", [Failure(Phase.HEAD, "closed", "", stale=True), Failure(Phase.HEAD, "own", "", own=True)]
)
def test_what_no_backend_is_to_blame_for_is_no_failure(events: Events, harmless: Failure) -> None:
    events.settle(record(failures=[("a", harmless)]))
    assert events.newest() == []


@pytest.mark.parametrize(("resumed", "kind", "to"), [("resumed", "resumed", "b"), ("no_tokens", "broken", "")])
def test_an_answer_that_broke_off(events: Events, resumed: str, kind: str, to: str) -> None:
    broke = Failure(Phase.STREAM, "closed", "a closed")
    again = Failure(Phase.STREAM, "refused", "c answered 500 when asked to go on")
    events.settle(record(failures=[("z", FAULT), ("a", broke), ("c", again)], resumed=resumed))
    assert told(events, "kind", "backend", "to") == [("failure", "c", "b"), (kind, "a", to), ("failure", "z", "b")]


def test_changes_of_state_are_seen_and_new_backends_only_learnt(events: Events) -> None:
    a, b = backend("a"), backend("b")
    events.watch([a, b])
    events.watch([a, b])
    assert events.newest() == []
    a.health.up = True
    events.watch([a, b])
    a.health.up, a.health.reason = False, "connection refused"
    b.health.up = True
    b.drain.begin(10.0)
    events.watch([a, b, backend("c")])
    assert told(events, "kind", "backend", "to", "why") == [
        ("state", "b", "draining", ""),
        ("state", "a", "down", "connection refused"),
        ("state", "a", "up", ""),
    ]


def test_a_backend_that_flaps_has_a_line_each_time(events: Events) -> None:
    a = backend("a")
    events.watch([a])
    for up in (True, False, True, False):
        a.health.up = up
        events.watch([a])
    assert told(events, "to") == [("down",), ("up",), ("down",), ("up",)]


def test_reloads(events: Events) -> None:
    a = backend("a")
    events.watch([a])
    events.reloaded(Changes(added=("b", "c"), removed=("a",)))
    events.reload_failed("line 3: no such key")
    events.watch([a])
    assert told(events, "kind", "why") == [
        ("reload_failed", "line 3: no such key"),
        ("reload", "added: b, c; removed: a"),
    ]


def test_it_is_bounded_and_the_newest_stay(events: Events, day: Day) -> None:
    for number in range(KEPT + 50):
        day.now += TOGETHER + 1
        events.reload_failed(str(number))
    assert len(events.newest()) == KEPT
    assert events.newest(2)[0]["why"] == str(KEPT + 49)
    assert len(events.newest(2)) == 2
