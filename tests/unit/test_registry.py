"""The registry: leases out are requests in flight after anything, and state changes are told exactly once."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.health import Thresholds
from warmroute.core.model import BackendSpec, Decision, Failure, Phase, PinChange, Reason, Session
from warmroute.core.policy import decide
from warmroute.fleet.registry import BackendState, Registry
from warmroute.pins.memory import PinTable

REFUSED = Failure(Phase.CONNECT, "refused", "connection refused by a:8000")
RESET = Failure(Phase.HEAD, "reset", "the connection broke")
STALE = Failure(Phase.HEAD, "closed", "closed while idle", stale=True)
OWN = Failure(Phase.CONNECT, "own", "too many open files", own=True)
BROKE_OFF = Failure(Phase.STREAM, "reset", "the connection broke")


@dataclass(slots=True)
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def registry(*names: str, pins: PinTable | None = None) -> Registry:
    table = pins if pins is not None else PinTable(Clock(), idle_expiry=1800, limit=1000)
    specs = [BackendSpec(name, f"http://{name}:8000") for name in names or "ab"]
    return Registry(specs, table, Thresholds(fall=3, rise=2), now=0.0)


def to(backend: str, engine: str | None = None) -> Decision:
    return Decision(Reason.RING, backend, engine, PinChange.BIND)


def in_flight(of: Registry) -> dict[str, int]:
    return {name: state.in_flight for name, state in of.backends.items()}


def engine_loads(state: BackendState) -> dict[str, int]:
    return {engine.engine: engine.in_flight for engine in state.engines}


# Leases


def test_a_lease_is_a_request_in_flight_for_as_long_as_its_block() -> None:
    of = registry()
    with of.lease(to("a")):
        assert in_flight(of) == {"a": 1, "b": 0}
        with of.lease(to("a")):
            assert in_flight(of) == {"a": 2, "b": 0}
    assert in_flight(of) == {"a": 0, "b": 0}
    assert (of.backends["a"].requests, of.backends["b"].requests) == (2, 0)


def test_a_lease_counts_at_its_engine_too() -> None:
    of = registry()
    of.set_engines("a", ["0", "1"])
    with of.lease(to("a", "1")), of.lease(to("a")):
        assert in_flight(of)["a"] == 2
        assert engine_loads(of.backends["a"]) == {"0": 0, "1": 1}
    assert engine_loads(of.backends["a"]) == {"0": 0, "1": 0}


def test_a_lease_at_an_engine_that_is_not_known_counts_at_the_backend() -> None:
    of = registry()
    with of.lease(to("a", "7")):
        assert in_flight(of)["a"] == 1


def test_a_lease_that_fails_is_given_back() -> None:
    of = registry()
    with pytest.raises(ZeroDivisionError), of.lease(to("a")):
        raise ZeroDivisionError
    assert in_flight(of) == {"a": 0, "b": 0}


def test_engines_that_change_under_a_lease_leave_nothing_behind() -> None:
    of = registry()
    of.set_engines("a", ["0", "1"])
    with of.lease(to("a", "1")):
        of.set_engines("a", ["0"])
        of.set_engines("a", ["0", "1"])
    assert engine_loads(of.backends["a"]) == {"0": 0, "1": 0}
    assert in_flight(of)["a"] == 0


@pytest.mark.parametrize("decision", [Decision(Reason.NONE_AVAILABLE), to("elsewhere")], ids=["nobody", "unknown"])
def test_a_lease_needs_a_backend(decision: Decision) -> None:
    with pytest.raises(KeyError):
        registry().lease(decision)


@dataclass(frozen=True, slots=True)
class Step:
    """Begin a request at a backend and an engine, or end the open request of this number in some way."""

    end: str
    which: int
    backend: str
    engine: str | None


class Requests:
    """Tasks that hold leases until they are told how to end."""

    def __init__(self, of: Registry, group: asyncio.TaskGroup) -> None:
        self.of = of
        self.group = group
        self.open: list[tuple[Step, asyncio.Task[None], asyncio.Future[None]]] = []

    async def hold(self, step: Step, ended: asyncio.Future[None]) -> None:
        try:
            with self.of.lease(to(step.backend, step.engine)):
                await ended
        except ConnectionError:
            pass

    async def take(self, step: Step) -> None:
        if step.end == "begin" or not self.open:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.open.append((step, self.group.create_task(self.hold(step, ended)), ended))
            await asyncio.sleep(0)
            return
        _, task, ended = self.open.pop(step.which % len(self.open))
        if step.end == "finish":
            ended.set_result(None)
        elif step.end == "fail":
            ended.set_exception(ConnectionResetError("it broke"))
        else:
            task.cancel()
        await asyncio.wait([task])

    def expected(self) -> dict[str, int]:
        return {name: sum(step.backend == name for step, _, _ in self.open) for name in self.of.backends}

    def expected_engines(self) -> dict[str, int]:
        return {e: sum((s.backend, s.engine) == ("a", e) for s, _, _ in self.open) for e in ("0", "1")}


async def run(steps: Iterable[Step]) -> Registry:
    of = registry()
    of.set_engines("a", ["0", "1"])
    async with asyncio.TaskGroup() as group:
        requests = Requests(of, group)
        for step in steps:
            await requests.take(step)
            assert in_flight(of) == requests.expected()
            assert engine_loads(of.backends["a"]) == requests.expected_engines()
        while requests.open:
            await requests.take(Step("cancel", 0, "a", None))
    return of


steps = st.builds(
    Step,
    st.sampled_from(["begin", "begin", "finish", "fail", "cancel"]),
    st.integers(0, 99),
    st.sampled_from("ab"),
    st.sampled_from([None, "0", "1"]),
)


@given(st.lists(steps, max_size=40))
def test_leases_out_are_requests_in_flight_after_any_interleaving(found: list[Step]) -> None:
    of = asyncio.run(run(found))
    assert in_flight(of) == {"a": 0, "b": 0}
    assert engine_loads(of.backends["a"]) == {"0": 0, "1": 0}


async def test_a_task_cancelled_before_its_block_begins_takes_no_lease() -> None:
    of = registry()

    async def late() -> None:
        await asyncio.sleep(0)
        with of.lease(to("a")):
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(late())
        task.cancel()
    assert (in_flight(of), of.backends["a"].requests) == ({"a": 0, "b": 0}, 0)


# Health


def test_a_change_is_told_and_dated_once() -> None:
    of = registry()
    assert of.probed("a", None, 5.0)
    assert not of.probed("a", None, 6.0)
    assert of.backends["a"].since == 5.0
    assert [of.probed("a", "timed out", t) for t in (7.0, 8.0, 9.0, 10.0)] == [False, False, True, False]
    assert of.backends["a"].since == 9.0
    assert (of.backends["b"].since, of.backends["b"].state) == (0.0, "starting")


@pytest.mark.parametrize(
    ("failure", "times", "state", "failures"),
    [
        (REFUSED, 1, "down", 1),
        (RESET, 1, "up", 1),
        (RESET, 4, "up", 4),
        (RESET, 30, "resting", 30),
        (BROKE_OFF, 30, "resting", 30),
        (OWN, 9, "up", 0),
        (STALE, 9, "up", 0),
    ],
    ids=[
        "refused",
        "reset once",
        "reset by some requests",
        "reset by many requests",
        "broke off often",
        "the router's own fault",
        "stale connections",
    ],
)
def test_failures_of_requests(failure: Failure, times: int, state: str, failures: int) -> None:
    of = registry()
    of.probed("a", None, 1.0)
    told = [of.failed("a", failure, 2.0) for _ in range(times)]
    assert of.backends["a"].state == state
    assert of.backends["a"].failures == failures
    changes_at = {"down": 1, "resting": 5}.get(state)
    assert [i + 1 for i, changed in enumerate(told) if changed] == ([changes_at] if changes_at else [])
    assert of.backends["b"].failures == 0


@pytest.mark.parametrize(
    ("up", "draining", "state"),
    [
        (None, False, "starting"),
        (None, True, "starting"),
        (True, False, "up"),
        (True, True, "draining"),
        (False, True, "down"),
    ],
)
def test_one_word_for_people(up: bool | None, draining: bool, state: str) -> None:
    of = registry()
    backend = of.backends["a"]
    backend.health.up = up
    of.drain("a", draining)
    assert backend.state == state
    assert backend.available is (up is not False)
    assert backend.accepts_new is not draining


def test_ready_means_that_one_backend_is_up() -> None:
    of = registry()
    assert of.not_ready() == ["a is starting", "b is starting"]
    of.probed("a", "connection refused", 1.0)
    assert of.not_ready() == ["a is down (connection refused)", "b is starting"]
    of.probed("b", None, 1.0)
    assert of.not_ready() == []
    assert of.unavailable() == ["a is down (connection refused)"]


# Draining, models, engines


def test_drain_is_switched_on_and_off() -> None:
    of = registry()
    of.drain("a", True)
    assert [b.accepts_new for b in of.backends.values()] == [False, True]
    of.drain("a", False)
    assert of.backends["a"].accepts_new
    with pytest.raises(KeyError):
        of.drain("elsewhere", True)


def test_models_are_those_last_listed() -> None:
    of = registry()
    assert of.backends["a"].models is None
    cards: list[dict[str, object]] = [{"id": "m", "max_model_len": 8192}, {"id": "lora", "parent": "m"}]
    of.set_models("a", cards)
    assert of.backends["a"].models == {"m", "lora"}
    assert of.backends["a"].model_cards == cards
    of.set_models("a", [{"id": "n"}])
    assert of.fleet().models() == {"n"}


def test_known_engines_keep_their_state() -> None:
    of = registry()
    of.set_engines("a", ["0", "1"])
    zero, one = of.backends["a"].engines
    zero.running, one.running = 3, 4
    of.set_engines("a", ["0", "1"])
    of.set_engines("a", ["0", "1", "2"])
    assert of.backends["a"].engines[0] is zero
    assert [e.running for e in of.backends["a"].engines] == [3, 4, None]
    of.set_engines("a", [])
    assert len(of.backends["a"].engines) == 3
    of.set_engines("a", ["1"])
    assert [e is one for e in of.backends["a"].engines] == [True]


def test_sessions_are_those_of_the_pin_table() -> None:
    pins = PinTable(Clock(), idle_expiry=1800, limit=1000)
    of = registry(pins=pins)
    of.set_engines("a", ["0", "1"])
    for i in range(3):
        pins.reserve(Session(b"%016d" % i, "x-session-id"), to("a", "1"))
    assert [b.sessions for b in of.backends.values()] == [3, 0]
    assert [e.sessions for e in of.backends["a"].engines] == [0, 3]


def test_a_decision_reads_the_registry_as_it_is_now() -> None:
    of = registry("a", "b", "c")
    fleet = of.fleet()
    assert sorted(fleet.ring.names) == ["a", "b", "c"]
    of.failed("b", REFUSED, 1.0)
    of.drain("c", True)
    session = Session(bytes(16), "x-session-id")
    decision = decide(fleet, session=session, pin=None, model=None, request_key=b"r")
    assert decision.backend == "a"
    with of.lease(decision):
        assert of.backends["a"].in_flight == 1


def test_reprs_are_for_people() -> None:
    of = registry("a")
    of.probed("a", None, 1.0)
    with of.lease(to("a")):
        assert repr(of) == "<Registry [<Backend a up, 0 sessions, 1 in flight>]>"


# What its own traffic says


def worn_out(of: Registry, name: str, now: float = 2.0) -> bool:
    """Let a backend fail often enough to rest; returns whether it does."""
    for _ in range(5):
        of.failed(name, RESET, now)
    return of.backends[name].state == "resting"


def all_up(count: int) -> Registry:
    names = "abcdefgh"[:count]
    of = Registry(
        [BackendSpec(n, f"http://{n}") for n in names], PinTable(lambda: 0.0, idle_expiry=9, limit=9), Thresholds(), 0.0
    )
    for name in names:
        of.probed(name, None, 0.0)
    return of


@pytest.mark.parametrize(("count", "resting"), [(1, 0), (2, 1), (3, 1), (4, 2), (8, 4)])
def test_never_more_than_half_rest_and_never_the_last(count: int, resting: int) -> None:
    of = all_up(count)
    assert sum(worn_out(of, name) for name in of.backends) == resting
    assert of.not_ready() == []


def test_the_last_that_works_does_not_rest_although_others_are_down() -> None:
    of = all_up(3)
    for name in "bc":
        of.failed(name, REFUSED, 1.0)
    assert not worn_out(of, "a")


def test_a_backend_that_rests_takes_nothing_then_one_request_at_a_time() -> None:
    of = all_up(2)
    assert worn_out(of, "a", now=100.0)
    a = of.backends["a"]
    assert (a.available, a.reason) == (False, RESET.detail)
    of.sweep(lambda name: False, 109.0, 300.0)
    assert not a.available
    of.sweep(lambda name: False, 110.0, 300.0)
    assert (a.state, a.available) == ("trial", True)
    with of.lease(Decision(Reason.RING, "a")):
        assert not a.available
        with of.lease(Decision(Reason.RING, "b")):
            assert of.backends["b"].available
    assert a.available
    assert of.succeeded("a", 111.0)
    assert (a.state, a.available, a.reason, a.since) == ("up", True, "", 111.0)
    assert not of.succeeded("a", 112.0)


def test_a_trial_that_fails_begins_a_longer_rest() -> None:
    of = all_up(2)
    worn_out(of, "a", now=0.0)
    ends = []
    now = 0.0
    for _ in range(7):
        ends.append(of.backends["a"].outlier.until - now)
        now = of.backends["a"].outlier.until
        of.sweep(lambda name: False, now, 1e9)
        assert of.failed("a", RESET, now)
    assert ends == [10, 20, 40, 80, 160, 300, 300]


def test_a_success_forgets_earlier_failures() -> None:
    of = all_up(2)
    for _ in range(4):
        of.failed("a", RESET, 1.0)
    of.succeeded("a", 2.0)
    for _ in range(4):
        of.failed("a", RESET, 3.0)
    assert of.backends["a"].state == "up"


def test_silence_while_requests_wait_is_found() -> None:
    of, heard = all_up(2), set[str]()

    def sweep(now: float) -> list[str]:
        found = of.sweep(lambda name: name in heard, now, 60.0)
        heard.clear()
        return found

    assert sweep(1000.0) == []
    with of.lease(Decision(Reason.RING, "a")):
        assert sweep(1059.0) == []
        heard.add("a")
        assert sweep(1061.0) == []
        assert sweep(1120.0) == []
        assert sweep(1121.0) == ["a"]
        assert (of.backends["a"].state, of.backends["b"].state) == ("resting", "up")
        assert sweep(1125.0) == []
    assert "nothing for 60 s" in of.backends["a"].reason


def test_the_only_backend_is_never_taken_for_hung() -> None:
    of = all_up(1)
    with of.lease(Decision(Reason.RING, "a")):
        of.sweep(lambda name: False, 0.0, 60.0)
        assert of.sweep(lambda name: False, 1000.0, 60.0) == []


# Sleep mode


def test_one_that_sleeps_is_left_alone_and_does_not_rest() -> None:
    of = registry("a", "b")
    for name in "ab":
        of.probed(name, None, 0.0)
    state = of.backends["a"]
    assert of.slept("a", True, True, 5.0)
    assert (state.state, state.since, state.processes) == ("sleeping", 5.0, 2)
    assert not of.slept("a", True, True, 6.0)
    assert (state.since, state.processes, state.available, state.works) == (5.0, 2, False, False)
    with of.lease(to("a")):
        assert of.sweep(lambda name: False, 100.0, 10.0) == []
        assert not of.progressed("a", 1.0, 0.0)
        assert not of.progressed("a", 1.0, 1000.0)
    assert of.not_ready() == []
    assert of.unavailable() == ["a is sleeping (it is in sleep mode, and used again when it is awake)"]
    assert of.slept("a", False, False, 7.0)
    assert (state.state, state.since, state.processes, state.available) == ("up", 7.0, 2, True)
    of.slept("a", True, False, 8.0)  # paused: its cache is still there
    assert state.processes == 2


def test_what_was_on_its_way_to_one_that_fell_asleep_is_no_fault() -> None:
    of = registry("a", "b")
    assert not of.failed("a", Failure(Phase.HEAD, "asleep", "a was put to sleep"), 1.0)
    assert (of.backends["a"].failures, of.backends["a"].outlier.failures) == (0, 0)


def test_one_that_sleeps_does_not_let_others_rest() -> None:
    of = registry("a", "b")
    for name in "ab":
        of.probed(name, None, 0.0)
    of.slept("a", True, True, 0.0)
    assert not any(of.failed("b", RESET, 1.0) for _ in range(9))
    assert of.backends["b"].available


def test_one_that_goes_is_not_waited_for_while_it_sleeps() -> None:
    pins = PinTable(Clock(), idle_expiry=1800, limit=1000)
    of = registry("a", "b", pins=pins)
    pins.reserve(Session(b"s" * 16, "x-session-id"), to("a"))
    assert of.let_go({"a"}, 100.0) == ("a",)
    assert of.gone() == []
    of.slept("a", True, True, 1.0)
    assert of.gone() == ["a"]
