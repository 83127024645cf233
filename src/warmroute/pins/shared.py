"""Pins that several routers agree on: the local table is the one that decisions read, the store settles who was first.

Every question is the same one: "this is where I have this session; may it stand?", asked for a first placement, a move, a
renewal or a withdrawal, and answered in one atomic step. A request waits for it only if its pin is not known to agree with
the store, and only for the store's deadline; all the rest happens beside requests. What other routers change they tell, and
the pin that it concerns is asked for again. While the store is down nothing is asked and nothing waits.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Container

from ..core.model import Decision, Place, Session
from . import codec
from .link import IGNORED, Answer, Look, Op, none_yet
from .memory import Pin, PinTable
from .notes import Notes
from .store import Flight, Store

_CHUNK = 64
_PAUSE = 0.01
"""So many pins at once, and seconds between them, when every pin has to be agreed on again."""


class SharedPins:
    """Keeps a PinTable in agreement with those of other routers. Its sessions are those that `named` gives.

    A pin is trusted if the store has agreed to it since `gap` was last told, and nobody has told of a change after that.
    """

    def __init__(
        self,
        pins: PinTable,
        store: Store,
        naming: codec.Naming,
        *,
        backends: Container[str],
        clock: Callable[[], float],
        idle_expiry: float,
    ) -> None:
        """`backends` holds the names that a pin may have; a pin in use is renewed every quarter of `idle_expiry` seconds."""
        self._pins = pins
        self._naming = naming
        self.backends = backends
        self._clock = clock
        self._renew_after = idle_expiry / 4
        self._since = 0.0
        self._unsure = asyncio.Event()
        self.store = store
        self.ignored = none_yet(IGNORED)
        self.adopted = 0

    def __repr__(self) -> str:
        return f"<SharedPins {self.store!r}, {self.adopted} adopted>"

    def notes(self, *, lifetime: float, responses: float) -> Notes:
        """What else routers can tell each other through the same store: see `Notes`."""
        return Notes(self.store, self._naming, lifetime=lifetime, responses=responses)

    def named(self, session: Session) -> Session:
        """The session under the name by which all routers know it."""
        return Session(self._naming.name(session.key), session.source)

    def agreed(self, name: bytes) -> bool:
        """Whether nothing has to be asked before this session's pin is used. A pin that is due is renewed meanwhile."""
        pin = self._pins.get(name)
        if pin is None or not self.store.up:
            return True
        if self._value(name, pin) != pin.held or pin.shared < self._since:
            return False
        if self._clock() - pin.shared >= self._renew_after:
            self._refresh(name, pin)
        return True

    async def settle(self, name: bytes) -> bool:
        """Ask for a pin that is not agreed on; returns True if the session should be placed again.

        False: the pin stands, or the store has not answered in time and the request goes on as it was placed.
        """
        pin = self._pins.get(name)
        if pin is None:
            return False
        under_way = self.store.flights.get(name)
        flight = under_way or self.store.ask(name, Op.PLACE, self._value(name, pin), pin.held or b"")
        if flight is None:
            return False
        granted = await self.store.wait(flight)
        return granted is False or (granted is True and under_way is not None)

    async def elsewhere(self, name: bytes) -> Place | None:
        """Where the store has a session that this router may not know; None if it has none, or does not say so in time.

        Nothing is remembered of it, here or there.
        """
        key = self._naming.stored(name)
        flight = self.store.flights.get(key) or self.store.ask(key, Op.RECALL, b"", b"", Look(key))
        if flight is None or not await self.store.wait(flight) or not isinstance(flight.answer, bytes):
            return None
        place = codec.read(flight.answer)
        return place if place is not None and place.backend in self.backends else None

    def withdrawn(self, name: bytes, decision: Decision) -> None:
        """The table has taken back what this decision had reserved; so should the store."""
        flight = self.store.flights.get(name)
        if flight is not None:
            flight.withdrawn = True
        else:
            self._take_back(name, codec.value(decision.backend or "", decision.engine))

    def _take_back(self, name: bytes, stored: bytes) -> None:
        pin = self._pins.get(name)
        self.store.ask(name, Op.WITHDRAW, self._value(name, pin) if pin else b"", stored)

    def _refresh(self, name: bytes, pin: Pin) -> Flight | None:
        if name in self.store.flights:
            return None
        return self.store.ask(name, Op.REFRESH, self._value(name, pin), pin.held or b"")

    def _value(self, name: bytes, pin: Pin) -> bytes:
        """What should be stored for a pin.

        Just after its start a router does not know the engines of a backend yet; the one that is stored then stays.
        """
        if pin.engine is None and pin.held is not None:
            held = codec.read(pin.held)
            if held is not None and held.backend == pin.backend and held.engine is not None:
                self._pins.relocate(name, *held)
        return codec.value(pin.backend, pin.engine)

    # As the store's follower

    def gap(self, since: float) -> None:
        """Changes before this time may have been missed: every pin has to be agreed on again."""
        self._since = since
        self._unsure.set()

    async def catch_up(self) -> None:
        """After a gap ask for every pin, the newest first and slowly, so that the store has them all again."""
        while True:
            await self._unsure.wait()
            self._unsure.clear()
            names = deque(self._pins.names())
            while names:
                chunk = [names.popleft() for _ in range(min(_CHUNK, len(names)))]
                pins = [(name, self._pins.get(name)) for name in chunk]
                stale = [(name, pin) for name, pin in pins if pin is not None and pin.shared < self._since]
                flights = [flight for name, pin in stale if (flight := self._refresh(name, pin)) is not None]
                if flights:
                    await asyncio.wait([flight.done for flight in flights])
                await asyncio.sleep(_PAUSE)

    def changed(self, name: bytes) -> None:
        """Another router has changed what is stored."""
        flight = self.store.flights.get(name)
        if flight is not None:
            flight.changed = True
        pin = self._pins.get(name)
        if pin is not None:
            pin.shared = 0.0
            self._refresh(name, pin)

    def answered(self, flight: Flight, answer: Answer) -> bool | None:
        """Take an answer into the table; returns whether the pin stands as it was asked for, None if nothing is known."""
        if answer == 2:
            self.ignored["wrong_type"] += 1
        if not isinstance(answer, bytes):
            return self._granted(flight)
        place = codec.read(answer)
        if place is not None and place.backend in self.backends:
            return self._held_by_others(flight, place)
        self.ignored["unreadable" if place is None else "unknown_backend"] += 1
        if flight.op is not Op.WITHDRAW:
            self.store.ask_again(flight, answer)
        return None

    def _granted(self, flight: Flight) -> bool:
        pin = self._pins.get(flight.name)
        stands = pin is not None and codec.value(pin.backend, pin.engine) == flight.value
        if pin is not None:
            pin.held = flight.value or None
        if flight.withdrawn and not stands:
            self._take_back(flight.name, flight.value)
        self._note(flight)
        return stands

    def _held_by_others(self, flight: Flight, place: Place) -> bool:
        pin = self._pins.get(flight.name)
        if pin is not None:
            pin.held = codec.value(*place)
            if codec.value(pin.backend, pin.engine) == flight.value:  # else it has moved meanwhile, which is asked next
                self._pins.relocate(flight.name, *place)
                self.adopted += 1
        self._note(flight)
        return False

    def _note(self, flight: Flight) -> None:
        """The pin is what the store said, if that has not changed since it was asked."""
        pin = self._pins.get(flight.name)
        if pin is not None:
            pin.shared = 0.0 if flight.changed else flight.sent
            if flight.changed:
                self._refresh(flight.name, pin)
