"""Pins: reserved, confirmed, withdrawn, expired, evicted; every count is what a recount would give, after any history."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from warmroute.core.health import Thresholds
from warmroute.core.model import BackendSpec, Decision, PinChange, Reason, Session
from warmroute.core.policy import decide
from warmroute.fleet.registry import Registry
from warmroute.pins.memory import Pin, PinTable

IDLE = 100.0


@dataclass(slots=True)
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def session(name: str = "s") -> Session:
    return Session(name.encode().ljust(16, b"."), "x-session-id")


def bind(backend: str, engine: str | None = None) -> Decision:
    return Decision(Reason.RING, backend, engine, PinChange.BIND)


def move(backend: str, engine: str | None = None) -> Decision:
    return Decision(Reason.PIN_LOST, backend, engine, PinChange.MOVE)


def keep(backend: str, engine: str | None = None) -> Decision:
    return Decision(Reason.PIN_HIT, backend, engine, PinChange.KEEP)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> PinTable:
    return PinTable(clock, idle_expiry=IDLE, limit=3)


def test_a_backend_holds_what_its_sessions_came_with(table: PinTable) -> None:
    table.reserve(session("1"), bind("a"), 10)
    table.reserve(session("2"), bind("a"), 5)
    table.confirm(session("1"), bind("a"))
    assert (table.size("a"), table.size("b")) == (15, 0)
    table.reserve(session("1"), keep("a"), 30)  # it has grown where it lives
    table.reserve(session("1"), move("b"), 40)
    assert (table.size("a"), table.size("b")) == (5, 40)
    table.withdraw(session("1"), move("b"))
    assert (table.size("a"), table.size("b")) == (15, 0)


def place(table: PinTable, who: Session, decision: Decision) -> bool:
    """One whole turn: reserved, then confirmed."""
    table.reserve(who, decision)
    return table.confirm(who, decision)


def where(table: PinTable, who: Session) -> str | None:
    pin = table.get(who.key)
    return None if pin is None else pin.backend


# One session


def test_a_session_that_was_never_placed_has_no_pin(table: PinTable) -> None:
    assert table.get(session().key) is None
    assert len(table) == 0


def test_a_reserved_pin_is_seen_at_once(table: PinTable) -> None:
    table.reserve(session(), bind("a", "1"))
    assert table.get(session().key) == Pin("a", "1", "x-session-id", used=1000.0)
    assert (table.sessions("a"), table.engine_sessions("a", "1"), table.engine_sessions("a", None)) == (1, 1, 0)


def test_content_confirms_it(table: PinTable, clock: Clock) -> None:
    table.reserve(session(), bind("a"))
    clock.now += 5
    assert not table.confirm(session(), bind("a"))
    assert table.get(session().key) == Pin("a", None, "x-session-id", used=1005.0, turns=1, confirmed=True)
    place(table, session(), keep("a"))
    pin = table.get(session().key)
    assert pin is not None
    assert pin.turns == 2


def test_a_new_pin_that_is_withdrawn_is_gone(table: PinTable) -> None:
    table.reserve(session(), bind("a"))
    assert table.withdraw(session(), bind("a"))
    assert where(table, session()) is None
    assert table.sessions("a") == 0
    assert not table.withdraw(session(), bind("a"))


@pytest.mark.parametrize(
    "decision",
    [Decision(Reason.NO_SESSION, "a"), Decision(Reason.NONE_AVAILABLE), Decision(Reason.UNKNOWN_MODEL)],
    ids=lambda decision: decision.reason,
)
def test_a_decision_without_a_change_reserves_nothing(table: PinTable, decision: Decision) -> None:
    table.reserve(session(), decision)
    assert len(table) == 0


def test_a_move_is_told_once_content_came_from_the_new_backend(table: PinTable) -> None:
    place(table, session(), bind("a"))
    table.reserve(session(), move("b"))
    assert (where(table, session()), table.sessions("a"), table.sessions("b")) == ("b", 0, 1)
    assert table.confirm(session(), move("b"))
    assert not place(table, session(), keep("b"))


def test_a_move_to_where_it_already_was_is_none(table: PinTable) -> None:
    place(table, session(), bind("a"))
    assert not place(table, session(), move("a"))


def test_a_moved_session_keeps_its_turns(table: PinTable) -> None:
    for _ in range(3):
        place(table, session(), bind("a") if where(table, session()) is None else keep("a"))
    place(table, session(), move("b"))
    pin = table.get(session().key)
    assert pin is not None
    assert pin.turns == 4


def test_a_withdrawn_move_restores_the_earlier_pin(table: PinTable, clock: Clock) -> None:
    place(table, session(), bind("a", "1"))
    clock.now += 30
    table.reserve(session(), move("b"))
    table.withdraw(session(), move("b"))
    assert table.get(session().key) == Pin("a", "1", "x-session-id", used=1030.0, turns=1, confirmed=True)
    assert (table.sessions("a"), table.engine_sessions("a", "1"), table.sessions("b")) == (1, 1, 0)


def test_a_chain_of_withdrawn_moves_restores_the_confirmed_pin(table: PinTable) -> None:
    place(table, session(), bind("a"))
    table.reserve(session(), move("b"))
    table.reserve(session(), move("c"))
    table.withdraw(session(), move("c"))
    assert where(table, session()) == "a"


def test_a_confirmed_pin_is_not_withdrawn(table: PinTable) -> None:
    place(table, session(), bind("a"))
    assert not table.withdraw(session(), keep("a"))
    assert where(table, session()) == "a"


def test_the_engine_of_a_kept_pin_may_change(table: PinTable) -> None:
    place(table, session(), bind("a"))
    place(table, session(), keep("a", "1"))
    assert (table.sessions("a"), table.engine_sessions("a", None), table.engine_sessions("a", "1")) == (1, 0, 1)
    pin = table.get(session().key)
    assert pin is not None
    assert pin.engine == "1"


# Requests side by side


def test_parallel_first_turns_agree(table: PinTable) -> None:
    table.reserve(session(), bind("a"))
    second = table.get(session().key)
    assert second is not None
    table.reserve(session(), keep(second.backend))
    assert not table.confirm(session(), keep("a"))
    assert not table.confirm(session(), bind("a"))
    assert (where(table, session()), table.sessions("a")) == ("a", 1)


def test_a_decision_for_the_second_of_two_first_turns_goes_where_the_first_went(table: PinTable) -> None:
    registry = Registry([BackendSpec(name, f"http://{name}") for name in "abc"], table, Thresholds(), 0.0)
    for name in "abc":
        registry.set_engines(name, ["0", "1"])
    decisions = []
    for _ in range(3):
        pin = table.get(session().key)
        decisions.append(decide(registry.fleet(), session=session(), pin=pin, model=None, request_key=b"r"))
        table.reserve(session(), decisions[-1])
    assert [d.reason for d in decisions] == [Reason.RING, Reason.PIN_HIT, Reason.PIN_HIT]
    assert len({(d.backend, d.engine) for d in decisions}) == 1
    assert sum(b.sessions for b in registry.backends.values()) == 1


def test_a_pin_that_another_request_has_put_elsewhere_stays_there(table: PinTable) -> None:
    table.reserve(session(), bind("a"))
    table.reserve(session(), move("b"))
    assert not table.confirm(session(), bind("a"))
    assert where(table, session()) == "b"
    table.withdraw(session(), bind("a"))
    assert where(table, session()) == "b"


def _withdrawn(table: PinTable, clock: Clock) -> None:
    table.reserve(session(), keep("a"))
    table.withdraw(session(), keep("a"))


def _evicted(table: PinTable, clock: Clock) -> None:
    for name in "123":
        place(table, session(name), bind("b"))


def _expired(table: PinTable, clock: Clock) -> None:
    clock.now += IDLE
    table.expire()


@pytest.mark.parametrize("lose", [_withdrawn, _evicted, _expired], ids=lambda lose: lose.__name__.strip("_"))
def test_content_pins_a_session_whose_reservation_was_lost_meanwhile(
    table: PinTable, clock: Clock, lose: Callable[[PinTable, Clock], None]
) -> None:
    table.reserve(session(), bind("a"))
    lose(table, clock)
    assert where(table, session()) is None
    table.confirm(session(), bind("a"))
    assert where(table, session()) == "a"


def test_a_session_that_another_router_has_elsewhere_is_relocated_and_stays_what_it_was(
    table: PinTable, clock: Clock
) -> None:
    place(table, session(), bind("a", "1"))
    table.reserve(session(), move("b"))
    clock.now += 7
    table.relocate(session().key, "c", "0")
    assert table.get(session().key) == Pin("c", "0", "x-session-id", used=1000.0, turns=1, confirmed=True)
    assert [table.sessions(name) for name in "abc"] == [0, 0, 1]
    assert (table.engine_sessions("c", "0"), table.engine_sessions("b", None)) == (1, 0)
    assert not table.withdraw(session(), move("b"))


# Many sessions


def test_idle_sessions_are_forgotten_and_counted(table: PinTable, clock: Clock) -> None:
    place(table, session("1"), bind("a"))
    clock.now += IDLE - 1
    place(table, session("2"), bind("b"))
    clock.now += 1
    table.expire()
    assert (where(table, session("1")), where(table, session("2"))) == (None, "b")
    assert (len(table), table.expired, table.evicted, table.sessions("a")) == (1, 1, 0, 0)


@pytest.mark.parametrize(("idle", "there"), [(IDLE - 0.001, True), (IDLE, False), (IDLE * 10, False)])
def test_a_pin_lives_until_it_was_idle_for_as_long_as_it_may(
    table: PinTable, clock: Clock, idle: float, there: bool
) -> None:
    place(table, session(), bind("a"))
    clock.now += idle
    assert (table.get(session().key) is not None) is there


def test_every_turn_renews_a_pin(table: PinTable, clock: Clock) -> None:
    place(table, session(), bind("a"))
    for _ in range(20):
        clock.now += IDLE - 1
        assert where(table, session()) == "a"
        place(table, session(), keep("a"))


def test_content_renews_a_pin_and_its_place_in_the_order_of_use(table: PinTable, clock: Clock) -> None:
    table.reserve(session("1"), bind("a"))
    place(table, session("2"), bind("a"))
    clock.now += IDLE / 2
    table.confirm(session("1"), bind("a"))
    assert [key for key, _ in table.newest()] == [session("1").key, session("2").key]
    clock.now += IDLE / 2
    assert where(table, session("2")) is None
    assert where(table, session("1")) == "a"


def test_a_full_table_forgets_the_least_recently_used(table: PinTable, clock: Clock) -> None:
    for name in "123":
        clock.now += 1
        place(table, session(name), bind("a"))
    place(table, session("1"), keep("a"))
    place(table, session("4"), bind("b"))
    assert [where(table, session(name)) for name in "1234"] == ["a", None, "a", "b"]
    assert (len(table), table.evicted, table.expired) == (3, 1, 0)
    assert (table.sessions("a"), table.sessions("b")) == (2, 1)


def test_the_newest_come_first(table: PinTable) -> None:
    for name in "123":
        place(table, session(name), bind("a"))
    assert [key for key, _ in table.newest()] == [session(name).key for name in "321"]


def test_repr_tells_the_numbers(table: PinTable) -> None:
    place(table, session(), bind("a"))
    assert repr(table) == "<PinTable 1 pins, 0 expired, 0 evicted>"


# Any history


@dataclass(slots=True)
class Known:
    """A pin in the naive table; `touched` numbers its last use."""

    backend: str
    engine: str | None
    used: float
    touched: int
    turns: int = 0
    confirmed: bool = False
    before: "Known | None" = None


@dataclass(slots=True)
class Naive:
    """The same table without any index: everything is found by looking at everything."""

    limit: int
    pins: dict[bytes, Known] = field(default_factory=dict)
    uses: int = 0
    expired: int = 0
    evicted: int = 0

    def touch(self) -> int:
        self.uses += 1
        return self.uses

    def expire(self, now: float) -> None:
        idle = [key for key, pin in self.pins.items() if now - pin.used >= IDLE]
        for key in idle:
            del self.pins[key]
        self.expired += len(idle)

    def get(self, key: bytes, now: float) -> Known | None:
        if key in self.pins and now - self.pins[key].used >= IDLE:
            self.expire(now)
        return self.pins.get(key)

    def reserve(self, key: bytes, decision: Decision, now: float) -> None:
        old = self.pins.get(key)
        assert decision.backend is not None
        if decision.change is PinChange.KEEP and old is not None:
            old.engine, old.used, old.touched = decision.engine, now, self.touch()
            return
        new = Known(decision.backend, decision.engine, now, self.touch())
        if old is not None:
            new.turns, new.before = old.turns, old if old.confirmed else old.before
        self.pins[key] = new
        if len(self.pins) > self.limit:
            del self.pins[min(self.pins, key=lambda k: self.pins[k].touched)]
            self.evicted += 1

    def confirm(self, key: bytes, decision: Decision, now: float) -> bool:
        pin = self.pins.get(key)
        if pin is None:
            self.reserve(key, bind(decision.backend or "", decision.engine), now)
            pin = self.pins[key]
        elif pin.backend != decision.backend:
            return False
        moved = pin.before is not None and pin.before.backend != pin.backend
        self.pins[key] = replace(pin, confirmed=True, before=None, turns=pin.turns + 1, used=now, touched=self.touch())
        return moved

    def withdraw(self, key: bytes, decision: Decision, now: float) -> bool:
        pin = self.pins.get(key)
        if pin is None or pin.confirmed or pin.backend != decision.backend:
            return False
        del self.pins[key]
        if pin.before is not None:
            self.pins[key] = replace(pin.before, used=now, touched=self.touch())
        return True

    def relocate(self, key: bytes, backend: str, engine: str | None) -> None:
        self.pins[key] = replace(self.pins[key], backend=backend, engine=engine, confirmed=True, before=None)


KEYS = st.sampled_from([session(name) for name in "12345"])
BACKENDS = st.sampled_from("abc")
ENGINES = st.sampled_from([None, "0", "1"])


class History(RuleBasedStateMachine):
    """Requests of five sessions over three backends that are placed, answered, refused, given up, or forgotten."""

    @initialize(limit=st.integers(1, 4))
    def start(self, limit: int) -> None:
        self.clock = Clock()
        self.table = PinTable(self.clock, idle_expiry=IDLE, limit=limit)
        self.naive = Naive(limit)
        self.open: list[tuple[Session, Decision]] = []

    @rule(who=KEYS, backend=BACKENDS, engine=ENGINES, lost=st.booleans())
    def place(self, who: Session, backend: str, engine: str | None, lost: bool) -> None:
        pin, known = self.table.get(who.key), self.naive.get(who.key, self.clock.now)
        assert (pin is None) == (known is None)
        decision = bind(backend, engine)
        if pin is not None:
            decision = move(backend, engine) if lost else keep(pin.backend, engine)
        self.table.reserve(who, decision, round(self.clock.now) % 50)
        self.naive.reserve(who.key, decision, self.clock.now)
        self.open.append((who, decision))

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 99), end=st.sampled_from(["confirm", "withdraw", "give up"]))
    def end(self, which: int, end: str) -> None:
        who, decision = self.open.pop(which % len(self.open))
        if end == "confirm":
            moved = self.naive.confirm(who.key, decision, self.clock.now)
            assert self.table.confirm(who, decision) == moved
        elif end == "withdraw":
            withdrawn = self.naive.withdraw(who.key, decision, self.clock.now)
            assert self.table.withdraw(who, decision) == withdrawn

    @precondition(lambda self: self.naive.pins)
    @rule(which=st.integers(0, 99), backend=BACKENDS, engine=ENGINES)
    def relocate(self, which: int, backend: str, engine: str | None) -> None:
        key = sorted(self.naive.pins)[which % len(self.naive.pins)]
        self.table.relocate(key, backend, engine)
        self.naive.relocate(key, backend, engine)

    @rule(seconds=st.sampled_from([0.5, IDLE / 3, IDLE / 2, IDLE]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def expire(self) -> None:
        self.table.expire()
        self.naive.expire(self.clock.now)

    @invariant()
    def counts_are_those_of_a_recount(self) -> None:
        pins = [pin for _, pin in self.table.newest()]
        assert len(self.table) == len(pins) <= self.naive.limit
        backends = Counter(pin.backend for pin in pins)
        engines = Counter((pin.backend, pin.engine) for pin in pins)
        for backend in "abc":
            assert self.table.sessions(backend) == backends[backend]
            assert self.table.size(backend) == sum(pin.size for pin in pins if pin.backend == backend)
            for engine in (None, "0", "1"):
                assert self.table.engine_sessions(backend, engine) == engines[backend, engine]

    @invariant()
    def the_table_is_the_naive_one(self) -> None:
        by_use = sorted(self.naive.pins.items(), key=lambda item: -item[1].touched)
        assert self.table.names() == [key for key, _ in by_use]
        assert [(key, pin.backend, pin.engine, pin.turns, pin.confirmed) for key, pin in self.table.newest()] == [
            (key, pin.backend, pin.engine, pin.turns, pin.confirmed) for key, pin in by_use
        ]
        assert (self.table.expired, self.table.evicted) == (self.naive.expired, self.naive.evicted)


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=150, stateful_step_count=40)


# What may be a single request


def prompt(name: str = "p") -> Session:
    return Session(name.encode().ljust(16, b"."), "content")


@pytest.fixture
def short(clock: Clock) -> PinTable:
    return PinTable(clock, idle_expiry=IDLE, unproven_expiry=10, limit=3)


@pytest.mark.parametrize(
    "who", [prompt(), session()._replace(parent=b"p" * 16)], ids=["without an id", "beside another conversation"]
)
def test_a_single_request_is_forgotten_sooner(short: PinTable, clock: Clock, who: Session) -> None:
    place(short, who, bind("a"))
    place(short, session("other"), bind("a"))
    clock.now += 10
    short.expire()
    assert (where(short, who), where(short, session("other"))) == (None, "a")
    assert (short.sessions("a"), short.expired) == (1, 1)


def test_who_goes_on_is_kept_as_long_as_others(short: PinTable, clock: Clock) -> None:
    place(short, prompt(), bind("a"))
    clock.now += 9
    place(short, prompt(), keep("a"))
    clock.now += IDLE - 1
    assert where(short, prompt()) == "a"
    clock.now += 1
    assert where(short, prompt()) is None
    assert len(short) == 0


def test_a_move_proves_nothing(short: PinTable, clock: Clock) -> None:
    place(short, prompt(), bind("a"))
    short.reserve(prompt(), move("b"))
    clock.now += 10
    assert where(short, prompt()) is None


def test_a_withdrawn_move_leaves_it_as_it_was(short: PinTable, clock: Clock) -> None:
    place(short, prompt(), bind("a"))
    place(short, prompt(), keep("a"))
    short.reserve(prompt(), move("b"))
    short.withdraw(prompt(), move("b"))
    clock.now += IDLE - 1
    assert where(short, prompt()) == "a"


def test_single_requests_push_out_no_conversation(short: PinTable) -> None:
    place(short, session("1"), bind("a"))
    place(short, session("2"), bind("a"))
    for name in ("x", "y", "z"):
        place(short, prompt(name), bind("b"))
    assert [where(short, session(name)) for name in ("1", "2")] == ["a", "a"]
    assert (where(short, prompt("z")), short.sessions("b"), len(short), short.evicted) == ("b", 1, 3, 2)


def test_a_table_full_of_conversations_takes_a_single_request_too(short: PinTable) -> None:
    for name in "123":
        place(short, session(name), bind("a"))
    assert not place(short, prompt(), bind("b"))
    assert (where(short, prompt()), where(short, session("1")), short.sessions("a")) == ("b", None, 2)


def test_the_newest_come_first_whether_proven_or_not(short: PinTable, clock: Clock) -> None:
    for who in (prompt("1"), session("2"), prompt("3")):
        clock.now += 1
        place(short, who, bind("a"))
    assert short.names() == [who.key for who in (prompt("3"), session("2"), prompt("1"))]


# Turns served elsewhere

SPILL = Decision(Reason.PIN_SPILL, "b")


def test_a_spilled_turn_leaves_the_pin_and_is_counted(table: PinTable, clock: Clock) -> None:
    place(table, session(), bind("a"))
    clock.now += 50
    for count in (1, 2):
        table.reserve(session(), SPILL)
        table.spilled(session())
        assert not table.confirm(session(), SPILL)
        pin = table.get(session().key)
        assert pin is not None
        assert (pin.backend, pin.spills, pin.turns, pin.used) == ("a", count, 1, clock.now)
    assert not table.withdraw(session(), SPILL)
    place(table, session(), keep("a"))
    pin = table.get(session().key)
    assert pin is not None
    assert (pin.spills, pin.turns) == (0, 2)


def test_a_session_without_a_pin_spills_nothing(table: PinTable) -> None:
    table.spilled(session())
    assert len(table) == 0
