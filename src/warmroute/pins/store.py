"""The shared store as the router sees it: up or down, a queue of questions, and the loops that serve them.

It knows nothing of pins: what an answer, a change or a gap means is its `Follower`'s matter. Requests never touch the
connection. They leave a question in the queue and wait for its future, so a store that hangs holds one task and not one for
each request; and once a batch of questions is overdue, everybody who waits goes on, and nobody waits until it is answered.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Protocol, Self

from . import codec
from .link import QUESTIONS, Answer, Ask, Connect, Link, Op, Question, StoreError, none_yet

log = logging.getLogger("warmroute.store")

PROBE_INTERVAL = 1.0
"""Seconds between two attempts to reach a store that is down, and between two proofs that it is up."""

_STEADY = 5.0
"""A store that has been up for so many seconds is reached again at once, and after `PROBE_INTERVAL` only then."""

_BATCH = 64
_URGENT_LIMIT = 4096
_LATER_LIMIT = 1024
_BESIDE = (Op.REFRESH, Op.NOTE)
"""What no request waits for."""
_TRIES = 3
_LATE = 3
_PASSES = 4
"""An answer is late only after so many more passes of the event loop: it may have come while this process was busy."""


@dataclass(slots=True, eq=False)
class Flight:
    """One question under way; at most one for each name. `done` tells whether it was granted, None if that is unknown.

    `changed`: another router has changed what is stored since it was asked. `withdrawn`: it should not have been asked.
    One that is not about a pin is a `question` of its own, and has its `answer` once it is done and True.
    """

    name: bytes
    op: Op
    value: bytes
    replaces: bytes
    done: asyncio.Future[bool | None]
    sent: float = 0.0
    tries: int = 1
    changed: bool = False
    withdrawn: bool = False
    question: Question | None = None
    answer: Answer = None


class Follower(Protocol):
    """Who uses the store. The methods are called between requests and must be synchronous and whole."""

    def answered(self, flight: Flight, answer: Answer) -> bool | None: ...
    def changed(self, name: bytes) -> None: ...
    def gap(self, since: float) -> None: ...
    async def catch_up(self) -> None: ...


_MARKER = b"marker"
"""Stands for the marker among the names of pins, which are longer."""


class _Alarm:
    """Rings if its `with` block has not ended after so many seconds, and then some passes of the event loop."""

    def __init__(self, seconds: float, ring: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ring = ring
        self._next: asyncio.Handle = self._loop.call_later(seconds, self._passed, _PASSES)
        self.rung = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._next.cancel()

    def _passed(self, left: int) -> None:
        if left:
            self._next = self._loop.call_soon(self._passed, left - 1)
        else:
            self.rung = True
            self._ring()


class Store:
    """Asks and listens while the store is up; finds out when it is down, and reaches it again."""

    def __init__(
        self,
        connect: Connect,
        naming: codec.Naming,
        *,
        clock: Callable[[], float],
        deadline: float,
        identity: bytes,
    ) -> None:
        """`identity` is 8 random bytes, which tell this router's messages from those of others."""
        self._connect = connect
        self._naming = naming
        self._clock = clock
        self._deadline = deadline
        self._identity = identity
        self._mark = b""
        self._marks = (b"%s.%d" % (identity.hex().encode(), number) for number in count())
        self._next_mark = next(self._marks)
        self._urgent: deque[Flight] = deque()
        self._later: deque[Flight] = deque()
        self._wanted = asyncio.Event()
        self._tried = asyncio.Event()
        self._quiet = False
        self._overdue = False
        self._late = 0
        self.flights: dict[bytes, Flight] = {}
        self.up = False
        self.reason = "it has not been reached yet"
        self.errors = none_yet(Op)
        self.dropped = none_yet(QUESTIONS)

    def __repr__(self) -> str:
        state = "up" if self.up else f"down: {self.reason}"
        return f"<Store {state}, {len(self.flights)} questions under way>"

    def ask(
        self, name: bytes, op: Op, value: bytes, replaces: bytes, question: Question | None = None
    ) -> Flight | None:
        """Queue a question; None if the store is down, the queue full, or one about this name under way already."""
        if not self.up or name in self.flights:
            return None
        queue, limit = (self._later, _LATER_LIMIT) if op in _BESIDE else (self._urgent, _URGENT_LIMIT)
        if len(queue) >= limit:
            self.dropped[op] += 1
            return None
        done = asyncio.get_running_loop().create_future()
        flight = Flight(name, op, value, replaces, done, question=question)
        self.flights[name] = flight
        queue.append(flight)
        self._wanted.set()
        return flight

    def ask_again(self, flight: Flight, replaces: bytes) -> bool:
        """Repeat a question whose answer is of no use, now over that answer; False if that was tried often enough."""
        if flight.tries >= _TRIES:
            return False
        flight.tries += 1
        flight.replaces = replaces
        self.flights[flight.name] = flight
        self._urgent.append(flight)
        self._wanted.set()
        return True

    async def wait(self, flight: Flight) -> bool | None:
        """Whether the question was granted; None as soon as an answer is overdue, or the store lost."""
        if self._overdue:
            return None
        await asyncio.wait((flight.done,))
        return flight.done.result()

    async def wait_for_all(self, flights: Collection[Flight]) -> None:
        """Return once all are answered, or as soon as an answer is overdue, or the store lost."""
        if flights and not self._overdue:
            await asyncio.wait([flight.done for flight in flights])

    async def tried(self, within: float) -> None:
        """Return once the store has been reached or has failed for the first time, at the latest after so many seconds."""
        try:
            async with asyncio.timeout(within):
                await self._tried.wait()
        except TimeoutError:
            log.info("the shared store has not answered yet; starting without it")

    async def run(self, follower: Follower) -> None:
        """Reach the store, use it until it fails, and again, for ever."""
        while True:
            began = self._clock()
            try:
                await self._use(follower)
            except StoreError as error:
                self.errors[error.op] += 1
                self._tell_down(error.reason)
            self._tried.set()
            if self._clock() - began < _STEADY:
                await asyncio.sleep(PROBE_INTERVAL)

    async def _use(self, follower: Follower) -> None:
        try:
            async with self._connect() as link:
                since = self._clock()
                await self._prove(link)
                self._tell_up()
                follower.gap(since)
                async with asyncio.TaskGroup() as group:
                    for loop in (
                        self._work(link, follower),
                        self._listen(link, follower),
                        self._probe(),
                        follower.catch_up(),
                    ):
                        group.create_task(loop)
        except ExceptionGroup as errors:
            lost, others = errors.split(StoreError)
            if lost is None or others is not None:
                raise
            raise lost.exceptions[0] from None
        finally:
            self._lose()

    async def _prove(self, link: Link) -> None:
        """A store is used only if it takes a write, and at least one of a few within the deadline."""
        late = 0
        for _ in range(_TRIES):
            with self._alarm() as alarm:
                (answer,) = await link.ask([self._question(_MARKER, self._next_mark, b"", announce=False)])
            self._marked(answer)
            late += alarm.rung
        if late == _TRIES:
            raise StoreError(Op.PROBE, self._too_slow())

    def _alarm(self) -> "_Alarm":
        return _Alarm(self._deadline, self._release)

    def _release(self) -> None:
        """An answer is overdue: whoever waits goes on, and what is answered later is of use to the next turn."""
        self._overdue = True
        for flight in self.flights.values():
            self._finish(flight, None)

    def _finish(self, flight: Flight, granted: bool | None) -> None:
        if not flight.done.done():
            self.errors[flight.op] += granted is None
            flight.done.set_result(granted)

    def _too_slow(self) -> str:
        return f"its answers take longer than store.deadline, {self._deadline * 1000:g} ms"

    def _tell_up(self) -> None:
        self.up, self.reason, self._quiet = True, "", False
        self._overdue, self._late = False, 0
        self._tried.set()
        log.info("the shared store is in use")

    def _tell_down(self, reason: str) -> None:
        self.reason = reason
        if not self._quiet:
            log.warning(
                "the shared store is not in use: %s; until it is back new sessions go by the ring alone", reason
            )
        self._quiet = True

    def _lose(self) -> None:
        """Nothing can be asked any more: whoever waits goes on."""
        if self.up:
            self.up, self.reason = False, "the connection has ended"
        self._urgent.clear()
        self._later.clear()
        flights, self.flights = self.flights, {}
        for flight in flights.values():
            self._finish(flight, None)

    async def _work(self, link: Link, follower: Follower) -> None:
        """Ask what is in the queue, a batch at a time, what requests wait for first."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._urgent or self._later:
                batch: list[Flight] = []
                while (queue := self._urgent or self._later) and len(batch) < _BATCH:
                    batch.append(queue.popleft())
                await self._ask_batch(link, follower, batch)

    async def _ask_batch(self, link: Link, follower: Follower, batch: list[Flight]) -> None:
        now = self._clock()
        for flight in batch:
            flight.sent = now
        with self._alarm() as alarm:
            answers = await link.ask(
                [f.question or self._question(f.name, f.value, f.replaces, announce=f.op is Op.PLACE) for f in batch]
            )
        self._overdue = False
        self._late = self._late + 1 if alarm.rung else 0
        for flight, answer in zip(batch, answers, strict=True):
            self._answered(follower, flight, answer)
        if self._late >= _LATE:
            raise StoreError(Op.PROBE, self._too_slow())

    def _answered(self, follower: Follower, flight: Flight, answer: Answer) -> None:
        granted: bool | None = None
        del self.flights[flight.name]
        try:
            if flight.question is not None:
                flight.answer, granted = answer, True
            elif flight.name is not _MARKER:
                granted = follower.answered(flight, answer)
            else:
                granted = self._marked(answer)
                if not granted:
                    log.info("the shared store has lost its data and is filled again")
                    follower.gap(self._clock())
        finally:
            if self.flights.get(flight.name) is not flight:  # else it has been asked again
                self._finish(flight, granted)

    def _question(self, name: bytes, value: bytes, replaces: bytes, *, announce: bool) -> Ask:
        key = self._naming.marker if name is _MARKER else self._naming.stored(name)
        return Ask(key, value, replaces, codec.message(self._identity, name), announce)

    def _marked(self, answer: Answer) -> bool:
        """Whether the marker is the one that was there before. It is new each time that one of the routers finds none."""
        before = self._mark
        if isinstance(answer, bytes):
            self._mark = answer
        else:
            self._mark, self._next_mark = self._next_mark, next(self._marks)
        return self._mark == before

    async def _listen(self, link: Link, follower: Follower) -> None:
        while True:
            name = codec.changed(await link.hear(), self._identity)
            if name is not None:
                follower.changed(name)

    async def _probe(self) -> None:
        """Prove that the store takes writes and still has its data, also while no request needs it."""
        while True:
            await asyncio.sleep(PROBE_INTERVAL)
            if _MARKER not in self.flights:
                self.ask(_MARKER, Op.PROBE, self._next_mark, b"")
