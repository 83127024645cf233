"""What processes that share a port have in common: rows of numbers, an order of messages, a bound that none exceeds."""

import asyncio
import os
import pickle
import socket
from collections.abc import Iterator

import pytest

from warmroute.core.health import Thresholds
from warmroute.core.model import BackendSpec, Decision, Failure, Phase, PinChange, Reason, Session
from warmroute.core.residency import Held
from warmroute.core.sketch import Kind
from warmroute.observe.record import RequestRecord
from warmroute.pins.memory import PinTable
from warmroute.recognition.recent import Recent
from warmroute.truth.conversations import Conversations
from warmroute.truth.ledger import NO_PROMPT, Ledger, Prompt
from warmroute.workers.figures import Figures, Holds
from warmroute.workers.intake import Intake
from warmroute.workers.messages import Channel, Message, open_channel
from warmroute.workers.order import InOrder
from warmroute.workers.replica import Replica
from warmroute.workers.rows import Cell, Head, Rows, shared_file
from warmroute.workers.shown import Shown
from warmroute.workers.views import Slots
from warmroute.workers.voice import OLDER, UNSEEN, ToldLedger, ToldPins, record_of, settled, values_of

SPECS = [BackendSpec(name, f"http://{name}") for name in "ab"]
REFUSED = Failure(Phase.CONNECT, "refused", "connection refused")


def now() -> float:
    return 0.0


def to(backend: str, engine: str | None = None, change: PinChange = PinChange.BIND) -> Decision:
    return Decision(Reason.RING, backend, engine, change)


class Parts:
    """What a request says, part by part, with no bytes to go by."""

    def __init__(self, parts: list[tuple[Kind, bytes]]) -> None:
        self._parts = parts

    def parts(self) -> list[tuple[Kind, bytes]]:
        return self._parts

    def added(self, old: object) -> tuple[None, None]:
        return None, None


class Machine:
    """A supervisor and two workers in one process: each with its own view of the same rows."""

    def __init__(self) -> None:
        self.fd = shared_file(2)
        self.rows = [Rows(self.fd, 2, own) for own in range(3)]
        self.pins = PinTable(now, idle_expiry=9.0, limit=9)
        self.registry = self._registry(0)
        self.told: list[tuple[int, Message]] = []
        self.shown = Shown(self.registry, self.pins, self.rows[0])
        self.slots = [Slots() for _ in range(3)]
        self.tables = [
            ToldPins(self.rows[n], self.slots[n], self._tell(n), now, idle_expiry=9.0, limit=9) for n in (1, 2)
        ]
        self.workers = [
            Replica(self.rows[n], self.slots[n], self._tell(n), SPECS, self.tables[n - 1], Thresholds(), 0.0)
            for n in (1, 2)
        ]
        self.intake = Intake(
            pins=self.pins,
            rows=self.rows[0],
            ledger=Ledger(Conversations(9), lambda decision, left: "", lambda name: 0),
            settle=lambda record: None,
            backend_failed=lambda name, failure: None,
            succeeded=lambda name: None,
        )
        self.publish()

    def _registry(self, own: int) -> "Replica":
        return Replica(self.rows[own], Slots(), lambda *_, **__: None, SPECS, self.pins, Thresholds(), 0.0)

    def _tell(self, worker: int):  # type: ignore[no-untyped-def]
        def tell(*message: object, within: float = 0.0) -> None:
            self.told.append((worker, message))

        return tell

    def publish(self) -> None:
        for worker in self.workers:
            worker.take(self.shown.views())

    def deliver(self) -> None:
        """Let the supervisor have what the workers have told."""
        for worker, (name, *values) in self.told:
            if name in ("bound", "unbound"):
                getattr(self.intake, name)(worker, *values)
        self.told.clear()
        self.shown.refresh()


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    yield machine
    os.close(machine.fd)


# Rows and leases


def test_what_one_worker_has_in_flight_the_other_one_sees(machine: Machine) -> None:
    one, two = machine.workers
    with one.lease(to("a")):
        two.fleet()
        assert two.backends["a"].in_flight == 1
        with two.lease(to("a")):
            one.fleet()
            assert one.backends["a"].in_flight == 2
            machine.shown.refresh()
            assert machine.registry.backends["a"].in_flight == 2
            assert machine.registry.backends["a"].requests == 2
    one.fleet()
    assert one.backends["a"].in_flight == 0


def test_the_last_place_has_one_owner(machine: Machine) -> None:
    one, two = machine.workers
    first = one.claim(to("a"), 2)
    second = two.claim(to("a"), 2)
    assert first is not None
    assert second is not None
    assert one.claim(to("a"), 2) is None
    assert two.claim(to("a"), 2) is None
    assert one.claim(to("a"), 0) is not None, "a part of an answer has been sent: it may not wait"
    assert machine.rows[0].sum(machine.slots[1].of("a"), Cell.IN_FLIGHT) == 3
    first.give_back()
    second.give_back()
    assert one.claim(to("a"), 2) is not None


def test_engines_are_counted_apart(machine: Machine) -> None:
    machine.registry.set_engines("a", ["0", "1"])
    machine.publish()
    one, two = machine.workers
    with one.lease(to("a", "1")):
        two.fleet()
        assert [engine.in_flight for engine in two.backends["a"].engines] == [0, 1]
        assert two.backends["a"].in_flight == 1
    two.fleet()
    assert [engine.in_flight for engine in two.backends["a"].engines] == [0, 0]


def test_one_request_of_all_workers_tries_a_resting_backend(machine: Machine) -> None:
    outlier = machine.registry.backends["a"].outlier
    outlier.rest("test", 0.0, machine.registry._outliers)
    outlier.tick(1e6)
    machine.publish()
    one, two = machine.workers
    with one.lease(to("a")) as _:
        two.fleet()
        assert not two.backends["a"].outlier.admits
    two.fleet()
    assert two.backends["a"].outlier.admits


def test_the_row_of_the_dead_is_cleared_and_nothing_else(machine: Machine) -> None:
    one, two = machine.workers
    one.lease(to("a")).__enter__()
    one.lease(to("b")).__enter__()
    two.lease(to("a")).__enter__()
    machine.rows[1].own[Head.GUESTS] = 5
    machine.shown.refresh()
    assert machine.shown.clear(1) == 2
    machine.shown.refresh()
    backends = machine.registry.backends
    assert [(b.in_flight, b.requests) for b in backends.values()] == [(1, 2), (0, 1)]
    assert machine.rows[0].head(Head.GUESTS) == 0


def test_a_slot_is_given_again_only_when_nothing_runs_there(machine: Machine) -> None:
    lease = machine.workers[0].lease(to("a"))
    lease.__enter__()
    slot = machine.slots[1].of("a")
    state = machine.registry.backends.pop("a")
    machine.shown.views()
    assert slot not in machine.shown._free
    lease.give_back()
    machine.shown.views()
    assert machine.shown._free[-1] == slot
    machine.registry.backends["c"] = state
    state.name = "c"
    machine.publish()
    machine.shown.refresh()
    assert (state.in_flight, state.requests) == (0, 0), "those of the backend before are not its own"


# Sessions


def test_sessions_are_counted_once_and_at_once(machine: Machine) -> None:
    one, two = machine.tables
    session = Session(b"s" * 16, "x")
    one.reserve(session, to("a"), 7)
    assert [(table.sessions("a"), table.size("a")) for table in machine.tables] == [(1, 7)] * 2, "before all know"
    machine.deliver()
    assert [(table.sessions("a"), table.size("a")) for table in machine.tables] == [(1, 7)] * 2, "and then"
    two.reserve(session, to("a"))
    machine.deliver()
    assert [table.sessions("a") for table in machine.tables] == [1, 1], "it is the same one"
    assert machine.pins.sessions("a") == 1
    one.reserve(session, to("a", change=PinChange.KEEP))
    assert not machine.told


def test_a_session_that_was_refused_counts_nowhere(machine: Machine) -> None:
    one, two = machine.tables
    session = Session(b"s" * 16, "x")
    one.reserve(session, to("a"), 7)
    machine.deliver()
    assert one.withdraw(session, to("a"))
    assert two.sessions("a") == two.size("a") == 0
    machine.deliver()
    assert two.sessions("a") == two.size("a") == machine.pins.sessions("a") == machine.pins.size("a") == 0


def test_sessions_follow_where_they_are_served(machine: Machine) -> None:
    session = Session(b"s" * 16, "x")
    machine.intake.lives(1, (session.key, session.source, session.parent), "a", None, 3)
    machine.intake.lives(2, (session.key, session.source, session.parent), "b", None, 5)
    pin = machine.pins.get(session.key)
    assert pin is not None
    assert (pin.backend, pin.turns) == ("b", 2)
    assert (machine.pins.sessions("a"), machine.pins.sessions("b")) == (0, 1)
    assert (machine.pins.size("a"), machine.pins.size("b")) == (0, 5)


# Failures


def test_a_failure_holds_here_at_once_and_is_told(machine: Machine) -> None:
    one, two = machine.workers
    one.failed("a", REFUSED, 0.0)
    assert not one.backends["a"].available
    assert two.backends["a"].available
    assert machine.told == [(1, ("failed", "a", REFUSED))]
    machine.registry.failed("a", REFUSED, 0.0)
    machine.publish()
    assert not two.backends["a"].available
    assert two.backends["a"].reason == "connection refused"


def test_a_success_is_told_only_after_failures(machine: Machine) -> None:
    one, _ = machine.workers
    one.succeeded("a", 0.0)
    assert machine.told == []
    machine.registry.backends["a"].outlier.failures = 1
    machine.publish()
    one.succeeded("a", 0.0)
    one.succeeded("a", 0.0)
    assert [message for _, message in machine.told] == [("succeeded", "a")]


# Records and prompts


def test_a_record_arrives_as_it_was() -> None:
    record = RequestRecord(
        "id", "POST", "/v1/chat/completions", 1.0, 2.0, status=200, backend="a", decision=Reason.RING
    )
    record.failures.append(("b", REFUSED))
    record.refused_keys = (("x", "shared"),)
    assert record_of(pickle.loads(pickle.dumps(values_of(record))), NO_PROMPT) == record
    record.held = Held(64, 32, 16, True)
    assert record_of(pickle.loads(pickle.dumps(values_of(record))), NO_PROMPT) == record
    assert settled(record, 5.0)[1] == UNSEEN
    record.prompt = Prompt(older=True)
    assert settled(record, 5.0)[1] == OLDER
    assert record.prompt is not NO_PROMPT


def test_a_prompt_that_grew_is_not_masked_again() -> None:
    told: list[Message] = []

    def tell(*message: object, within: float) -> None:
        told.append(message)

    of = Ledger(Conversations(9), lambda decision, left: "", lambda name: 0)
    ledger = ToldLedger(tell, now, Recent(now, expiry=9.0, limit=9), of)
    session = Session(b"s" * 16, "x")
    system, first, second = (Kind.SYSTEM, b'{"s":1}'), (Kind.USER, b'{"u":1}'), (Kind.USER, b'{"u":2}')
    for parts in ([system, first], [system, first, second], [(Kind.SYSTEM, b'{"s":2}'), first, second]):
        prompt = ledger.look(session, Parts(parts), None, older=False)
        record = RequestRecord("id", "POST", "/", 0.0, 0.0, prompt=prompt)
        assert settled(record, -1.0)[0] == 0.0, "never before it was looked at"
    masked = [message[5] is not None for message in told]
    assert masked == [True, False, True]


def test_an_account_over_two_workers_is_that_of_one(machine: Machine) -> None:
    tell = machine._tell
    of = Ledger(Conversations(9), lambda decision, left: "", lambda name: 0)
    ledgers = [ToldLedger(tell(n), now, Recent(now, expiry=9.0, limit=9), of) for n in (1, 2)]
    session = Session(b"s" * 16, "x")
    parts = [(Kind.SYSTEM, b'{"role":"system","content":"It is 10:00."}'), (Kind.USER, b'{"u":1}')]
    ledgers[0].look(session, Parts(parts), None, older=False)
    changed = [(Kind.SYSTEM, b'{"role":"system","content":"It is 10:01."}'), parts[1], (Kind.USER, b'{"u":2}')]
    ledgers[1].look(session, Parts(changed), None, older=False)
    (_, first), (_, second) = machine.told
    machine.intake.looked(1, *first[2:])
    prompt = machine.intake._prompts[1][1]
    assert prompt.sketch is not None
    machine.intake._ledger.conversations.take(session, prompt.family, prompt.sketch)
    machine.intake.looked(2, *second[2:])
    found = machine.intake._prompts[2][1]
    assert found.drift is not None
    assert found.drift.cause == "clock"
    assert machine.intake.forget(2) == 1


# Messages


async def test_messages_come_in_order_however_they_are_cut() -> None:
    ours, theirs = socket.socketpair()
    got: list[Message] = []
    channel = await open_channel(ours, got.extend)
    other = await open_channel(theirs, lambda batch: None)
    other.tell("slow", b"x" * 300_000, within=60.0)
    other.tell("later", within=60.0)
    other.tell("now")
    async with asyncio.timeout(10):
        while len(got) < 3:
            await asyncio.sleep(0.001)
    assert [message[0] for message in got] == ["slow", "later", "now"]
    other.tell("last", within=60.0)
    await asyncio.gather(other.close(), channel.closed)
    assert got[-1] == ("last",)
    channel.tell("to nobody")


async def test_a_batch_byte_by_byte() -> None:
    got: list[Message] = []
    channel = Channel(got.extend)
    data = pickle.dumps([("a", 1), ("b",)])
    for byte in len(data).to_bytes(4, "big") + data:
        channel.data_received(bytes((byte,)))
    assert got == [("a", 1), ("b",)]


async def test_messages_of_several_workers_are_taken_in_the_order_of_their_times() -> None:
    got: list[tuple[int, Message]] = []
    loop = asyncio.get_running_loop()
    order = InOrder(lambda worker, message: got.append((worker, message)), loop.time)
    start = loop.time()
    order.put(1, start + 0.002, ("third",))
    order.put(2, start + 0.001, ("second",))
    order.put(2, start, ("first",))
    order.put(1, start + 3600, ("much later",))
    async with asyncio.timeout(10):
        while len(got) < 3:
            await asyncio.sleep(0.001)
    assert got == [(2, ("first",)), (2, ("second",)), (1, ("third",))]
    order.give_all()
    assert got[-1] == (1, ("much later",))


def test_what_a_dead_worker_had_counted_stays_and_what_it_held_goes() -> None:
    from warmroute.observe.counters import RequestCounters
    from warmroute.recognition.memory import remember

    counters = RequestCounters()
    figures = Figures(counters)
    memory = remember(now, idle_expiry=1.0, entries=9, sessions=9, backends=2)
    assert not figures.shared.store.up
    shared = figures.shared
    for counted, label in (
        (shared.store.errors, "connect"),
        (shared.store.dropped, "place"),
        (shared.ignored, "wrong_type"),
        (figures.recalled, "history"),
    ):
        assert label in counted  # a series from the start, so that the first one is seen as an increase
        assert not counted.total()
    for worker in (1, 2):
        holds = Holds({"history": 3}, 7, (worker == 1, "" if worker == 1 else "it hangs"), {})
        counts = {("timeout", "head"): 2, ("refused",): 1, ("errors", "place"): 4, ("adopted",): 5}
        figures.take(worker, counts, holds, memory)
    assert (figures.shared.store.up, figures.shared.store.reason) == (False, "it hangs")
    figures.forget(2)
    assert (figures.shared.store.up, figures.shared.store.reason) == (True, "")
    assert (counters.client_timeouts["head"], counters.connections_refused) == (4, 2)
    assert (figures.shared.store.errors["place"], figures.shared.adopted) == (8, 10)
    assert figures.tasks(1) == 8
