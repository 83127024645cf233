"""Whose turn is it, and where had it better go? As the router finds it out by content, with blocks in place of messages."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..core.identity import CONTENT
from ..core.model import Near, Place, Reason, Session
from ..core.policy import NO_WISHES, Wishes
from ..pins.memory import PinTable
from ..recognition.conversations import BRANCHES
from ..recognition.heads import Heads
from ..recognition.recent import Recent
from .clock import Clock
from .workload import Request, Workload

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


def tell_apart(workload: Workload, *, expiry: float, limit: int) -> Workload:
    """The same requests, each with its conversation; those that have one keep it.

    A trace tells neither where a message ends nor what was answered. So a conversation is known by the last whole block of
    its last prompt: the request with the longest chain of blocks that ends with such a one is its next turn. A block
    from which more than `BRANCHES` ways go on is a beginning that many share and names nobody, as in
    `recognition.conversations`. As there, what nobody used for `expiry` seconds is forgotten, and at most `limit` are known.
    """
    clock = Clock()
    ends: Recent[_End] = Recent(clock, expiry=expiry, limit=limit)
    told, seen = [], 0
    for request in workload.requests:
        if request.session is None:
            clock.run_until(request.at)
            session = _find(ends, request.blocks)
            if session is None:
                seen += 1
                session = Session(seen.to_bytes(16, "big"), CONTENT)
            if request.blocks:
                end = ends.get(request.blocks[-1]) or _End(session)
                end.session = session
                ends.put(request.blocks[-1], end)
            request = request._replace(session=session)
        told.append(request)
    return replace(workload, requests=told)


def _find(ends: Recent[_End], blocks: tuple[bytes, ...]) -> Session | None:
    beyond: bytes | None = None
    for block in reversed(blocks):
        end = ends.get(block)
        if end is not None:
            if beyond is not None and len(end.ways) <= BRANCHES:
                end.ways.add(beyond)
            return end.session if len(end.ways) <= BRANCHES else None
        beyond = block
    return None


class Nearness:
    """What `recognition` remembers of places: where conversations were, and who knows the beginnings of prompts."""

    def __init__(
        self, clock: Callable[[], float], pins: PinTable, block_size: int, *, expiry: float, limit: int
    ) -> None:
        self._pins = pins
        self._places: Recent[Place] = Recent(clock, expiry=expiry, limit=limit)
        self._heads = Heads(clock, expiry=expiry, limit=limit)
        self._cuts = _cuts(block_size)

    def __repr__(self) -> str:
        return f"<Nearness {len(self._places)} places, {self._heads!r}>"

    def turn(self, request: Request, session: Session) -> Turn:
        """Where a conversation without a pin had better go; changes nothing."""
        size = kib(request)
        if self._pins.get(session.key) is not None:
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


def kib(request: Request) -> int:
    """A prompt's size as the router sees it."""
    return request.prompt * _TOKEN >> 10


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
