"""What is remembered of conversations without an id, told to other routers, and asked of them where this one does not know.

The recogniser stays synchronous: `wanted` says what might help a turn, `fetch` puts what others know of it into the local
memory, and the turn is recognised again. What is told are digests, keys of sessions and places.
"""

from collections import Counter
from collections.abc import Callable, Container, Sequence

from ..core.history import History, TextHistory
from ..core.identity import CONTENT
from ..core.model import Place, Session
from ..pins import codec
from ..pins.link import RECALLED, none_yet
from ..pins.notes import ASKED, HEAD, HISTORY, RESPONSE, Note, Notes
from .conversations import Conversations, Found, Match
from .heads import SHORTEST, Heads
from .owners import Owner, Owners, digest_of
from .recent import Recent

_MOST_ANSWERS = 4
"""A history that goes on here is known by its last answer, or by one before if clients change the last ones."""
_HEADS = tuple(sorted({SHORTEST - 1, *(round(2 ** (n / 2)) for n in range(3, 13))}))
"""Of a prompt's beginnings those after these cuts are shared, so that few say enough: each half as long again as the last."""
_MOST_HEADS_TOLD = 4
"""Of one request; the next ones with the same beginning tell the rest."""


class SharedMemory:
    """Fills the memory's parts from the store, and tells the store what they learn here. Texts of completions are not shared.

    `backends` holds the names that a place may have, `sources` those that a session may come from.
    """

    def __init__(
        self,
        conversations: Conversations,
        heads: Heads,
        owners: Owners,
        *,
        notes: Notes,
        backends: Container[str],
        sources: Container[str],
        ignored: Counter[str],
        clock: Callable[[], float],
        renew_after: float,
        limit: int,
    ) -> None:
        """A beginning is told again after `renew_after` seconds; at most `limit` are known to have been told.

        `ignored` counts what is stored and of no use.
        """
        self._conversations = conversations
        self._heads = heads
        self._owners = owners
        self._notes = notes
        self._backends = backends
        self._sources = sources
        self._told: Recent[Place] = Recent(clock, expiry=renew_after / 2, limit=limit)
        self.recalled = none_yet(RECALLED)
        self._ignored = ignored

    def __repr__(self) -> str:
        return f"<SharedMemory {self.recalled.total()} recalled>"

    # What others know

    def wanted(
        self, history: History | None, found: Found | None, heads: Sequence[bytes], response: str | None
    ) -> list[Note]:
        """What the store should be asked about a turn without an id; nothing while it is down, or if the turn is known here.

        `response` is one that nobody here knows the maker of.
        """
        if not self._notes.usable:
            return []
        notes = [(RESPONSE, digest_of(response))] if response is not None else []
        if history is None or isinstance(history, TextHistory):
            return notes
        digests, answers = history.digests, history.answers
        if answers and (found is None or found.at < answers[-1]):
            last = [at for at in answers[-_MOST_ANSWERS:] if found is None or at > found.at]
            notes += [(HISTORY, digests[at]) for at in last]
            notes += [(ASKED, history.before(at)) for at in last if history.is_answer(at)]
            notes.append((ASKED, digests[-1]))
        if heads and not self._heads.find(heads):
            notes += [(HEAD, heads[cut]) for cut in _HEADS if cut < len(heads)]
        return notes

    async def fetch(self, notes: Sequence[Note]) -> bool:
        """Ask, and remember what is answered in time; True if there was anything."""
        learned: Counter[str] = Counter()
        for (kind, digest), raw in (await self._notes.look(dict.fromkeys(notes))).items():
            learned[self._learn(kind, digest, raw)] += 1
        del learned[""]
        self.recalled.update(dict.fromkeys(learned, 1))
        return bool(learned)

    def _learn(self, kind: bytes, digest: bytes, raw: bytes) -> str:
        """Take one note into the memory; returns what it tells of, "" if it is of no use."""
        if kind == HISTORY:
            if (held := codec.read_held(raw)) is not None:
                self._conversations.learn(digest, held.last, held.holders)
                return "history"
        elif kind == ASKED:
            if len(raw) == codec.NAME_SIZE:
                self._conversations.learn_asked(digest, raw)
                return "history"
        elif kind == HEAD:
            if (place := codec.read(raw)) is not None:
                if place.backend in self._backends:
                    self._heads.learn(digest, place)
                    return "head"
                return self._ignore("unknown_backend")
        elif (owner := codec.read_owner(raw)) is not None:
            if owner[0] in self._backends:
                self._owners.learn(digest, Owner(owner[0], self._known(owner[1])))
                return "response"
            return self._ignore("unknown_backend")
        return self._ignore("unreadable")

    def _ignore(self, why: str) -> str:
        self._ignored[why] += 1
        return ""

    def _known(self, session: Session | None) -> Session | None:
        return session if session is None or session.source in self._sources else session._replace(source=CONTENT)

    # What others should know

    def goes_on(self, session: Session, history: History, found: Found | None) -> None:
        """A session asks the last question of this history, and goes on from where it was found."""
        if session.source != CONTENT or isinstance(history, TextHistory):
            return
        self._notes.asked(history.digests[-1], session.key)
        if found is not None and found.match is Match.NEXT and found.at + 1 < len(history.digests):
            self._notes.hold(history.digests[found.at], session.key, holds=False)

    def answered(self, session: Session, history: History, digest: bytes) -> None:
        """A session has a whole answer, so that its history has this digest now."""
        if session.source == CONTENT and not isinstance(history, TextHistory):
            self._notes.hold(digest, session.key, holds=True)

    def served(self, heads: Sequence[bytes], place: Place) -> None:
        """A place has computed a prompt with these beginnings."""
        new = [heads[cut] for cut in _HEADS if cut < len(heads) and self._told.get(heads[cut]) != place]
        for head in new[:_MOST_HEADS_TOLD]:
            self._told.put(head, place)
            self._notes.head(head, place)

    def made(self, response_id: str, owner: Owner) -> None:
        """Who made a response."""
        self._notes.made(digest_of(response_id), owner.backend, owner.session)
