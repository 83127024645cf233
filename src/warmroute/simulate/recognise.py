"""Whose turn is it? The conversation that has the longest known beginning of a prompt, as the router knows it by content."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ..core.identity import CONTENT
from ..core.model import Near, Place, Reason, Session
from ..core.policy import NO_WISHES, Wishes
from ..pins.memory import PinTable
from ..recognition.conversations import BRANCHES
from ..recognition.heads import Heads
from ..recognition.recent import Recent
from .workload import Request

_TOKEN = 4
"""Bytes of text in a token, roughly."""
_LONGEST_HEAD = (64 << 10) // _TOKEN
"""Tokens of a prompt's beginning that are compared with those of other conversations: 64 KiB of text."""
_FINEST, _COARSER = 128, 16
"""A beginning is cut every 128 tokens at first, and then every sixteenth of what lies before, as `core.history` does."""


@dataclass(slots=True)
class _End:
    """After one whole prompt: whose it was, and in how many ways it was gone on with (no more are kept than are asked for)."""

    session: Session
    ways: set[bytes] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Turn:
    """Whose turn a request is, and what it asks of its placement.

    `size` is that of its prompt in KiB. `heads` are the beginnings of a prompt that belongs to no known conversation.
    """

    session: Session
    size: int
    wishes: Wishes = NO_WISHES
    heads: tuple[bytes, ...] = ()


class Conversations:
    """What `recognition` remembers, with names of blocks in the place of digests of messages.

    A trace tells neither where a message ends nor what was answered. So a conversation is known by the last whole block of
    its last prompt: the request with the longest chain of blocks that ends with such a one is its next turn. A block
    from which more than `BRANCHES` ways go on is a beginning that many share and names nobody, as in
    `recognition.conversations`. Where a workload tells whose turn a request is, that is taken.
    """

    def __init__(
        self, clock: Callable[[], float], pins: PinTable, block_size: int, *, expiry: float, limit: int
    ) -> None:
        self._pins = pins
        self._ends: Recent[_End] = Recent(clock, expiry=expiry, limit=limit)
        self._places: Recent[Place] = Recent(clock, expiry=expiry, limit=limit)
        self._heads = Heads(clock, expiry=expiry, limit=limit)
        self._cuts = _cuts(block_size)
        self._sessions = 0

    def __repr__(self) -> str:
        return f"<Conversations {self._sessions} begun, {len(self._ends)} ends>"

    def recognise(self, request: Request, *, near: bool = True) -> Turn:
        """Find a request's conversation, or begin one; and remember that it goes on from there.

        Without `near` only whose it is is told, and not where a conversation without a pin had better go.
        """
        session = request.session or self._find(request.blocks)
        if session is None:
            self._sessions += 1
            session = Session(self._sessions.to_bytes(16, "big"), CONTENT)
        if request.session is None and request.blocks:
            self._ended(request.blocks[-1], session)
        size = request.prompt * _TOKEN >> 10
        if not near or self._pins.get(session.key) is not None:
            return Turn(session, size)
        place = self._places.get(session.key)
        if place is not None:
            return Turn(session, size, Wishes(near=Near(Reason.HISTORY, (place,))))
        if session.source != CONTENT:
            return Turn(session, size)
        heads = (b"", *(request.blocks[at] for at in self._cuts if at < len(request.blocks)))
        places = self._heads.find(heads)
        return Turn(session, size, Wishes(near=Near(Reason.HEAD, places)) if places else NO_WISHES, heads)

    def served(self, turn: Turn, place: Place) -> None:
        """A backend has begun to answer: what the request says can be found there."""
        self._places.put(turn.session.key, place)
        if turn.heads:
            self._heads.served(turn.heads, place)

    def _find(self, blocks: tuple[bytes, ...]) -> Session | None:
        beyond: bytes | None = None
        for block in reversed(blocks):
            end = self._ends.get(block)
            if end is not None:
                if beyond is not None and len(end.ways) <= BRANCHES:
                    end.ways.add(beyond)
                return end.session if len(end.ways) <= BRANCHES else None
            beyond = block
        return None

    def _ended(self, block: bytes, session: Session) -> None:
        end = self._ends.get(block) or _End(session)
        end.session = session
        self._ends.put(block, end)


def _cuts(block_size: int) -> tuple[int, ...]:
    """The blocks at whose ends beginnings are compared."""
    at = 0
    found: list[int] = []
    while at < _LONGEST_HEAD:
        at += max(_FINEST, at // _COARSER, block_size)
        block = at // block_size - 1
        if block >= 0 and (not found or found[-1] != block):
            found.append(block)
    return tuple(found)
