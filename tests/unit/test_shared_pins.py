"""Two routers and a store in memory: who is first, what is told, and what happens to a question at the wrong moment."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import pytest

from warmroute.core.health import Thresholds
from warmroute.core.model import BackendSpec, Place, Session
from warmroute.core.policy import Bounds
from warmroute.fleet.registry import Registry
from warmroute.pins import codec, store
from warmroute.pins.link import Answer, Ask, Op, Put, Question, StoreError
from warmroute.pins.memory import PinTable
from warmroute.pins.notes import ASKED, HEAD
from warmroute.pins.shared import SharedPins
from warmroute.pins.store import Store
from warmroute.proxy.placement import Placed, Placement

IDLE = 100.0
DEADLINE = 0.05
NAMING = codec.Naming("t:", codec.key_of(None, "t:"))


@dataclass
class Clock:
    """Goes on a little whenever it is looked at, as clocks do."""

    now: float = 1000.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now


@dataclass(eq=False)
class Server:
    """The store. `gate` holds questions back before they are answered, `returning` the answers on their way."""

    values: dict[bytes, bytes] = field(default_factory=dict)
    asked: list[Ask] = field(default_factory=list)
    links: list["FakeLink"] = field(default_factory=list)
    failure: str | None = None
    delay: float = 0.0

    def __post_init__(self) -> None:
        self.gate = asyncio.Event()
        self.returning = asyncio.Event()
        self.gate.set()
        self.returning.set()

    @asynccontextmanager
    async def link(self) -> AsyncIterator["FakeLink"]:
        if self.failure:
            raise StoreError(Op.CONNECT, self.failure)
        link = FakeLink(self)
        self.links.append(link)
        try:
            yield link
        finally:
            self.links.remove(link)

    def fail(self, reason: str) -> None:
        """Break every connection, and refuse new ones until `failure` is None again."""
        self.failure = reason
        for link in self.links:
            link.heard.put_nowait(None)

    def questions(self) -> list[Ask]:
        """What was asked about pins."""
        return [ask for ask in self.asked if ask.key != NAMING.marker]

    def stored(self) -> list[bytes]:
        return [value for key, value in self.values.items() if key != NAMING.marker]

    def answer(self, ask: Ask) -> Answer:
        self.asked.append(ask)
        held = self.values.get(ask.key)
        if held is not None and held == ask.value:
            return 0
        if held is not None and held != ask.replaces:
            return held
        if ask.value:
            self.values[ask.key] = ask.value
        else:
            self.values.pop(ask.key, None)
        if held is not None or (ask.announce and ask.value):
            for link in self.links:
                link.heard.put_nowait(ask.message)
        return 1

    def note(self, question: Question) -> Answer:
        if isinstance(question, Put):
            self.values[question.key] = question.value
            return b"OK"
        return self.values.get(question.key)


class FakeLink:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.heard: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def ask(self, asks: Sequence[Question]) -> list[Answer]:
        await self.server.gate.wait()
        if self.server.delay:
            await asyncio.sleep(self.server.delay)
        if self.server.failure:
            raise StoreError(Op.PROBE, self.server.failure)
        answers = [self.server.answer(ask) if isinstance(ask, Ask) else self.server.note(ask) for ask in asks]
        await self.server.returning.wait()
        return answers

    async def hear(self) -> bytes:
        message = await self.heard.get()
        if message is None:
            raise StoreError(Op.LISTEN, self.server.failure or "")
        return message


class Side:
    """One router: its table, its backends a, b and c, and its use of the store."""

    def __init__(self, server: Server, clock: Clock, identity: bytes) -> None:
        self.pins = PinTable(clock, idle_expiry=IDLE, limit=100_000)
        self.registry = Registry([BackendSpec(n, f"http://{n}") for n in "abc"], self.pins, Thresholds(), clock())
        self.store = Store(server.link, NAMING, clock=clock, deadline=DEADLINE, identity=identity)
        self.shared = SharedPins(
            self.pins, self.store, NAMING, backends=self.registry.backends, clock=clock, idle_expiry=IDLE
        )
        self.placement = Placement(self.registry, self.pins, Bounds(), self.shared)

    @contextmanager
    def only(self, backend: str) -> Iterator[None]:
        """New sessions go to this backend alone."""
        others = [name for name in "abc" if name != backend]
        for name in others:
            self.registry.drain(name, True)
        yield
        for name in others:
            self.registry.drain(name, False)

    async def place(self, who: Session, exclude: Sequence[str] = ()) -> Placed:
        placed = await self.placement.place_agreed(who, None, b"r", exclude)
        assert isinstance(placed, Placed)
        return placed

    async def turn(self, who: Session, exclude: Sequence[str] = ()) -> str:
        """A whole turn, with an answer; returns the backend."""
        placed = await self.place(who, exclude)
        self.placement.confirm(who, placed.decision)
        return placed.backend

    def where(self, who: Session) -> str | None:
        pin = self.pins.get(who.key)
        return None if pin is None else pin.backend

    async def run(self) -> None:
        await self.store.run(self.shared)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.001)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def start(
    server: Server, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[], "asyncio.Future[Side]"]]:
    monkeypatch.setattr(store, "PROBE_INTERVAL", 0.01)
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(asyncio.TaskGroup())
        running: list[asyncio.Task[None]] = []

        async def side() -> Side:
            made = Side(server, clock, bytes([len(running)]) * 8)
            running.append(group.create_task(made.run()))
            await made.store.tried(5)
            return made

        yield lambda: asyncio.ensure_future(side())
        for task in running:
            task.cancel()


@pytest.fixture
async def sides(start: Callable[[], "asyncio.Future[Side]"]) -> tuple[Side, Side]:
    return await start(), await start()


def session(side: Side, name: str = "s") -> Session:
    return side.shared.named(Session(name.encode().ljust(16, b"."), "x-session-id"))


# Who is first


async def test_the_second_router_follows_the_first(sides: tuple[Side, Side], server: Server) -> None:
    one, two = sides
    who = session(one)
    with one.only("a"), two.only("b"):
        assert await one.turn(who) == "a"
        assert await two.turn(who) == "a"
    assert (two.pins.sessions("a"), two.pins.sessions("b"), two.shared.adopted) == (1, 0, 1)
    assert server.stored() == [codec.value("a", None)]


async def test_at_the_same_time_one_is_first(sides: tuple[Side, Side], server: Server) -> None:
    one, two = sides
    with one.only("a"), two.only("b"):
        for name in map(str, range(20)):
            turns = [side.turn(session(side, name)) for side in (one, two, one, two)]
            assert len(set(await asyncio.gather(*turns))) == 1
    assert len(server.stored()) == 20
    assert one.shared.adopted + two.shared.adopted == 20


async def test_a_first_turn_keeps_its_reason(sides: tuple[Side, Side]) -> None:
    one, two = sides
    assert (await one.place(session(one))).decision.reason in ("ring", "ring_spill")
    assert (await one.place(session(one))).decision.reason == "pin_hit"
    assert (await two.place(session(two))).decision.reason in ("ring", "ring_spill")  # its own choice was the same
    with one.only("a"), two.only("b"):
        await one.place(session(one, "t"))
        assert (await two.place(session(two, "t"))).decision.reason == "pin_hit"


async def test_a_known_session_asks_nothing(sides: tuple[Side, Side], server: Server) -> None:
    one, _ = sides
    await one.turn(session(one))
    for _ in range(10):
        await one.turn(session(one))
    assert len(server.questions()) == 1


async def test_an_adopted_session_is_a_confirmed_one(sides: tuple[Side, Side]) -> None:
    one, two = sides
    who = session(one)
    with one.only("a"), two.only("b"):
        await one.turn(who)
        placed = await two.place(who)
    two.placement.withdraw(who, placed.decision)
    assert two.where(who) == "a"


# Moves


async def test_a_move_reaches_the_table_of_the_other_router(sides: tuple[Side, Side], server: Server) -> None:
    one, two = sides
    who = session(one)
    with one.only("a"), two.only("a"):
        await one.turn(who)
        await two.turn(who)
    moved = await one.turn(who, exclude=["a"])
    await until(lambda: two.where(who) == moved)
    assert await two.turn(who) == moved
    assert (two.pins.sessions("a"), two.pins.sessions(moved)) == (0, 1)
    assert server.stored() == [codec.value(moved, None)]


async def test_of_two_moves_at_the_same_time_one_stands(sides: tuple[Side, Side], server: Server) -> None:
    one, two = sides
    for name in map(str, range(20)):
        who = session(one, name)
        with one.only("a"), two.only("a"):
            await one.turn(who)
            await two.turn(who)
        with one.only("b"), two.only("c"):
            turns = one.turn(who, exclude=["a"]), two.turn(who, exclude=["a"])
            first, second = await asyncio.gather(*turns)
        assert first == second
        assert (one.where(who), two.where(who)) == (first, first)


async def test_a_change_that_is_told_while_an_answer_is_under_way_is_not_lost(
    sides: tuple[Side, Side], server: Server, clock: Clock
) -> None:
    one, two = sides
    who = session(one)
    with one.only("a"), two.only("a"):
        await one.turn(who)
        await two.turn(who)
    clock.now += IDLE / 3
    server.returning.clear()
    await two.turn(who)  # due for a renewal, whose answer (it is at a) hangs
    await until(lambda: len(server.questions()) == 3)
    key = server.questions()[0].key
    server.values[key] = codec.value("b", None)
    for link in server.links:
        link.heard.put_nowait(codec.message(b"another.", who.key))
    await asyncio.sleep(0)
    server.returning.set()
    await until(lambda: two.where(who) == "b")


async def test_a_move_of_the_engine_is_a_move(sides: tuple[Side, Side], server: Server) -> None:
    one, two = sides
    who = session(one)
    for side in sides:
        side.registry.set_engines("a", ["0", "1"])
    with one.only("a"), two.only("a"):
        engine = (await one.place(who)).decision.engine
        assert (await two.place(who)).decision.engine == engine
        other = {"0": "1", "1": "0"}[str(engine)]
        one.registry.set_engines("a", [other, "2"])
        assert (await one.place(who)).decision.engine in (other, "2")
    pin = one.pins.get(who.key)
    assert pin is not None
    assert server.stored() == [codec.value("a", pin.engine)]


async def test_a_router_that_does_not_know_the_engines_yet_leaves_the_engine(
    sides: tuple[Side, Side], server: Server
) -> None:
    one, two = sides
    who = session(one)
    one.registry.set_engines("a", ["0", "1"])
    with one.only("a"), two.only("a"):
        engine = (await one.place(who)).decision.engine
        for _ in range(3):
            assert (await two.place(who)).backend == "a"
        assert server.stored() == [codec.value("a", engine)]
        two.registry.set_engines("a", ["0", "1"])
        assert (await two.place(who)).decision.engine == engine
    assert two.pins.engine_sessions("a", engine) == 1
    assert two.pins.engine_sessions("a", None) == 0


# Taken back


async def test_a_withdrawn_placement_is_taken_out_of_the_store(sides: tuple[Side, Side], server: Server) -> None:
    one, _ = sides
    placed = await one.place(session(one))
    assert len(server.stored()) == 1
    one.placement.withdraw(session(one), placed.decision)
    await until(lambda: not server.stored())


async def test_a_withdrawn_move_is_undone_in_the_store_and_told(sides: tuple[Side, Side], server: Server) -> None:
    one, two = sides
    who = session(one)
    with one.only("a"), two.only("a"):
        await one.turn(who)
        await two.turn(who)
    placed = await one.place(who, exclude=["a"])
    assert server.stored() == [codec.value(placed.backend, None)]
    await until(lambda: two.where(who) == placed.backend)
    one.placement.withdraw(who, placed.decision)
    await until(lambda: two.where(who) == "a" == one.where(who))
    assert server.stored() == [codec.value("a", None)]


async def test_a_placement_withdrawn_while_it_is_asked_for(sides: tuple[Side, Side], server: Server) -> None:
    one, _ = sides
    who = session(one)
    server.returning.clear()
    placed = await one.place(who)  # the answer does not come in time
    one.placement.withdraw(who, placed.decision)
    assert len(server.stored()) == 1
    server.returning.set()
    await until(lambda: not server.stored())


async def test_a_placement_withdrawn_while_it_is_asked_for_and_made_elsewhere(
    sides: tuple[Side, Side], server: Server
) -> None:
    one, two = sides
    who = session(one)
    server.returning.clear()
    placed = await one.place(who)
    one.placement.withdraw(who, placed.decision)
    again = await one.turn(who, exclude=[placed.backend])
    server.returning.set()
    await until(lambda: server.stored() == [codec.value(again, None)])
    assert await two.turn(who) == again == await one.turn(who)


async def test_after_a_failure_the_next_backend_is_agreed_on(sides: tuple[Side, Side], server: Server) -> None:
    one, two = sides
    who = session(one)
    placed = await one.place(who)
    one.placement.withdraw(who, placed.decision)
    second = await one.turn(who, exclude=[placed.backend])
    assert second != placed.backend
    assert server.stored() == [codec.value(second, None)]
    assert await two.turn(who) == second


# Renewals


async def test_a_pin_in_use_is_renewed_once_in_a_quarter_of_the_idle_time(
    sides: tuple[Side, Side], server: Server, clock: Clock
) -> None:
    one, _ = sides
    who = session(one)
    await one.turn(who)
    for _ in range(40):
        clock.now += IDLE / 40
        await one.turn(who)
        await until(lambda: not one.store.flights)
    assert len(server.questions()) == 1 + 4


async def test_a_renewal_stores_what_was_lost(sides: tuple[Side, Side], server: Server, clock: Clock) -> None:
    one, _ = sides
    await one.turn(session(one))
    for key in [ask.key for ask in server.questions()]:
        del server.values[key]
    clock.now += IDLE / 4
    await one.turn(session(one))
    await until(lambda: len(server.stored()) == 1)


async def test_renewals_beyond_the_queue_are_dropped_and_counted(
    sides: tuple[Side, Side], server: Server, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = sides
    names = [session(one, str(i)) for i in range(8)]
    for who in names:
        await one.turn(who)
    clock.now += IDLE / 4
    monkeypatch.setattr(store, "_LATER_LIMIT", 5)
    server.gate.clear()
    for who in names:
        await one.turn(who)
    assert one.store.dropped == {Op.PLACE: 0, Op.WITHDRAW: 0, Op.REFRESH: 3, Op.RECALL: 0, Op.NOTE: 0}
    server.gate.set()
    await until(lambda: not one.store.flights)
    for who in names:
        await one.turn(who)
    await until(lambda: len(server.questions()) == 16)


# A store that is slow


async def test_a_store_that_hangs_delays_one_deadline_and_then_nobody(sides: tuple[Side, Side], server: Server) -> None:
    one, _ = sides
    loop = asyncio.get_running_loop()
    server.gate.clear()
    began = loop.time()
    await asyncio.gather(*(one.turn(session(one, f"first {i}")) for i in range(50)))
    assert DEADLINE * 0.9 < loop.time() - began < DEADLINE * 3
    assert one.store.errors[Op.PLACE] == 50
    began = loop.time()
    for i in range(50):
        await one.turn(session(one, f"second {i}"))
    assert loop.time() - began < DEADLINE / 2
    server.gate.set()
    await until(lambda: len(server.stored()) == 100)
    assert one.store.up


async def test_a_late_answer_is_of_use_to_the_next_turn(sides: tuple[Side, Side], server: Server) -> None:
    one, two = sides
    who = session(one)
    with one.only("a"), two.only("b"):
        await one.turn(who)
        server.returning.clear()
        assert await two.turn(who) == "b"  # not known better in time
        server.returning.set()
        await until(lambda: two.where(who) == "a")
        assert await two.turn(who) == "a"


async def test_a_store_that_is_always_slow_is_given_up(sides: tuple[Side, Side], server: Server) -> None:
    one, _ = sides
    server.delay = DEADLINE * 1.5
    await until(lambda: not one.store.up)
    assert one.store.reason == "its answers take longer than store.deadline, 50 ms"
    probes = one.store.errors[Op.PROBE]
    await until(lambda: one.store.errors[Op.PROBE] >= probes + 2)  # it is tried again, and is still too slow
    assert not one.store.up
    server.delay = 0.0
    await until(lambda: one.store.up)


async def test_a_store_that_is_slow_now_and_then_is_kept(sides: tuple[Side, Side], server: Server) -> None:
    one, _ = sides
    for i in range(6):
        server.delay = DEADLINE * 1.5
        await one.turn(session(one, f"slow {i}"))
        server.delay = 0.0
        await until(lambda: not one.store.flights)
        asked = len(server.asked)
        await until(lambda: len(server.asked) > asked + 1)  # noqa: B023 - called within this round
    assert one.store.up
    assert one.store.errors[Op.PLACE] == 6


async def test_a_queue_that_is_full_delays_nobody(
    sides: tuple[Side, Side], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = sides
    monkeypatch.setattr(store, "_URGENT_LIMIT", 0)
    await one.turn(session(one))
    assert one.store.dropped[Op.PLACE] == 1
    assert not server.questions()


# A store that is away


async def test_down_and_back_is_told_once_each(
    sides: tuple[Side, Side], server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "warmroute.store")
    one, two = sides
    server.fail("no route to host")
    await until(lambda: not one.store.up and not two.store.up)
    for i in range(50):
        await one.turn(session(one, str(i)))
    await until(lambda: one.store.errors[Op.CONNECT] >= 3)
    assert (one.store.up, one.store.reason) == (False, "no route to host")
    server.failure = None
    await until(lambda: one.store.up and two.store.up)
    lines = [record.getMessage() for record in caplog.records if record.name == "warmroute.store"]
    assert len([line for line in lines if "not in use: no route to host" in line]) == 2
    assert lines.count("the shared store is in use") == 2


async def test_while_it_is_away_routers_agree_by_the_ring(sides: tuple[Side, Side], server: Server) -> None:
    one, two = sides
    for i in range(7):
        await one.turn(session(one, f"earlier {i}"))  # so that their counts differ
    server.fail("gone")
    await until(lambda: not one.store.up and not two.store.up)
    names = [str(i) for i in range(60)]
    first = [await one.turn(session(one, name)) for name in names]
    second = [await two.turn(session(two, name)) for name in reversed(names)]
    assert first == second[::-1]
    assert len(set(first)) == 3


async def test_what_was_placed_meanwhile_is_settled_when_it_is_back(sides: tuple[Side, Side], server: Server) -> None:
    one, two = sides
    who, other = session(one), session(one, "other")
    with one.only("c"), two.only("c"):
        await one.turn(other)
        await two.turn(other)
    server.fail("gone")
    await until(lambda: not one.store.up and not two.store.up)
    with one.only("a"), two.only("b"):
        assert (await one.turn(who), await two.turn(who)) == ("a", "b")
        moved = await one.turn(other, exclude=["c"])
    server.failure = None
    await until(lambda: one.store.up and two.store.up)
    await until(lambda: one.where(who) == two.where(who) and len(server.stored()) == 2)
    await until(lambda: two.where(other) == moved)
    assert await one.turn(who) == await two.turn(who)


async def test_a_gap_of_one_router_is_closed_by_asking(sides: tuple[Side, Side], server: Server) -> None:
    one, two = sides
    who = session(one)
    with one.only("a"), two.only("a"):
        await one.turn(who)
        await two.turn(who)
    two_link = server.links[1]
    two_link.heard.put_nowait(None)
    await until(lambda: not two.store.up)
    moved = await one.turn(who, exclude=["a"])  # nobody tells it to the other
    await until(lambda: two.store.up)
    assert await two.turn(who) == moved


async def test_a_store_that_was_emptied_is_filled_again(
    sides: tuple[Side, Side], server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "warmroute.store")
    one, _ = sides
    for i in range(150):
        await one.turn(session(one, str(i)))
    before = {i: one.where(session(one, str(i))) for i in range(150)}
    server.values.clear()
    await until(lambda: len(server.stored()) == 150)
    assert {i: one.where(session(one, str(i))) for i in range(150)} == before
    assert any("has lost its data" in record.getMessage() for record in caplog.records)


async def test_both_routers_see_that_the_store_was_emptied(sides: tuple[Side, Side], server: Server) -> None:
    one, two = sides
    await one.turn(session(one, "of one"))
    await two.turn(session(two, "of two"))
    server.values.clear()
    await until(lambda: len(server.stored()) == 2)


async def test_an_end_lets_those_who_wait_go_on(sides: tuple[Side, Side], server: Server) -> None:
    one, _ = sides
    server.gate.clear()
    turn = asyncio.ensure_future(one.turn(session(one)))
    await until(lambda: bool(one.store.flights))
    server.fail("gone")
    assert await asyncio.wait_for(turn, DEADLINE / 2) in "abc"
    assert not one.store.flights


# Values that are of no use


@pytest.mark.parametrize(
    ("value", "why"),
    [(b"garbage", "unreadable"), (codec.value("nobody", None), "unknown_backend")],
    ids=["garbage", "unknown backend"],
)
async def test_a_value_of_no_use_is_replaced_and_counted(
    sides: tuple[Side, Side], server: Server, value: bytes, why: str
) -> None:
    one, two = sides
    who = session(one)
    server.values[NAMING.stored(who.key)] = value
    placed = await one.turn(who)
    assert server.stored() == [codec.value(placed, None)]
    assert one.shared.ignored[why] == 1
    assert await two.turn(who) == placed


def test_reprs_tell_the_state() -> None:
    shared = Side(Server(), Clock(), b"x" * 8).shared
    assert repr(shared) == ("<SharedPins <Store down: it has not been reached yet, 0 questions under way>, 0 adopted>")


# What is known beside pins


async def test_notes_of_one_router_are_read_by_the_other(sides: tuple[Side, Side], server: Server) -> None:
    one, two = (side.shared.notes(lifetime=60, responses=60) for side in sides)
    one.asked(b"question", b"s" * 16)
    one.head(b"question", Place("a", "1"))
    await until(lambda: not sides[0].store.flights)
    wanted = [(ASKED, b"question"), (HEAD, b"question"), (ASKED, b"other")]
    assert await two.look(wanted) == {wanted[0]: b"s" * 16, wanted[1]: codec.value("a", "1")}
    assert not any(b"question" in key for key in server.values)


async def test_who_looks_for_notes_waits_one_deadline_and_then_not_at_all(
    sides: tuple[Side, Side], server: Server
) -> None:
    notes, store = sides[0].shared.notes(lifetime=60, responses=60), sides[0].store
    loop = asyncio.get_running_loop()
    server.gate.clear()
    began = loop.time()
    assert await notes.look([(ASKED, b"a"), (ASKED, b"b")]) == {}
    assert DEADLINE * 0.9 < loop.time() - began < DEADLINE * 3
    assert store.errors[Op.RECALL] == 2
    suspended: list[bool] = []
    loop.call_soon(suspended.append, True)
    assert await notes.look([(ASKED, b"c")]) == {}
    assert not suspended
    server.gate.set()
    await until(lambda: not store.flights)
    server.fail("gone")
    await until(lambda: not store.up)
    assert not notes.usable
    assert await notes.look([(ASKED, b"a")]) == {}
    notes.asked(b"a", b"s" * 16)
    assert store.flights == {}


async def test_two_who_look_for_the_same_ask_once(sides: tuple[Side, Side], server: Server) -> None:
    notes = sides[0].shared.notes(lifetime=60, responses=60)
    notes.asked(b"a", b"s" * 16)
    server.gate.clear()
    both = asyncio.gather(notes.look([(ASKED, b"a")]), notes.look([(ASKED, b"a")]))
    await asyncio.sleep(0)
    assert sum(flight.op is Op.RECALL for flight in sides[0].store.flights.values()) == 1
    server.gate.set()
    first, second = await both
    assert first == second
