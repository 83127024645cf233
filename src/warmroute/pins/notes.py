"""What routers leave for each other in the shared store beside pins: small values under keyed digests, each with an end.

Reading is for requests: one batch, within the store's deadline, nothing while the store is down. Writing is beside them.
"""

from collections.abc import Iterable
from itertools import count

from ..core.model import Place, Session
from . import codec
from .codec import Naming
from .link import Hold, Look, Op, Put, Question
from .store import Store

Note = tuple[bytes, bytes]
"""A kind, one letter, and a digest."""

HISTORY = b"h"
"""Who said a history up to an answer (`codec.Held`)."""
ASKED = b"q"
"""The session that asked a question last, with all before it."""
HEAD = b"s"
"""A place that has computed a prompt's beginning."""
RESPONSE = b"r"
"""Who made a response."""


class Notes:
    """`lifetime` in seconds is that of all but responses, which live `responses` seconds."""

    def __init__(self, store: Store, naming: Naming, *, lifetime: float, responses: float) -> None:
        self._store = store
        self._naming = naming
        self._lifetime = lifetime
        self._responses = responses
        self._numbers = count()

    def __repr__(self) -> str:
        return f"<Notes {self._store!r}>"

    @property
    def usable(self) -> bool:
        return self._store.up

    async def look(self, notes: Iterable[Note]) -> dict[Note, bytes]:
        """What is stored of these; nothing if the store does not answer in time."""
        flights = {}
        for note in notes:
            key = self._naming.note(*note)
            flight = self._store.flights.get(key) or self._store.ask(key, Op.RECALL, b"", b"", Look(key))
            if flight is not None:
                flights[note] = flight
        await self._store.wait_for_all(flights.values())
        return {note: flight.answer for note, flight in flights.items() if isinstance(flight.answer, bytes)}

    def hold(self, history: bytes, session: bytes, *, holds: bool) -> None:
        """A session's last answer is at the end of this history; or it is no longer, since the session has gone on."""
        self._write(Hold(self._naming.note(HISTORY, history), session, holds, self._lifetime))

    def asked(self, history: bytes, session: bytes) -> None:
        self._put(ASKED, history, session)

    def head(self, head: bytes, place: Place) -> None:
        self._put(HEAD, head, codec.value(*place))

    def made(self, response: bytes, backend: str, session: Session | None) -> None:
        self._put(RESPONSE, response, codec.owner_value(backend, session))

    def _put(self, kind: bytes, digest: bytes, value: bytes) -> None:
        lifetime = self._responses if kind == RESPONSE else self._lifetime
        self._write(Put(self._naming.note(kind, digest), value, lifetime))

    def _write(self, question: Question) -> None:
        """Each write is one of its own, whatever else is under way for its key; they are done in this order."""
        self._store.ask(b"note%d" % next(self._numbers), Op.NOTE, b"", b"", question)
