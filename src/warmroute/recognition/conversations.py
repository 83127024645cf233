"""Which session has this history? Digests of what was said -> the session that said it; no text."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from ..core.history import History, TextHistory
from ..core.messages import Message
from .recent import Recent

BRANCHES = 3
"""So many times may a history be gone on with differently, by edits and branches of one person; a beginning that is gone
on with more often is one that many conversations share (examples before a question), and names none of them."""

_MOST_HOLDERS = 64
"""Conversations with the very same history that are told apart."""
_MOST_LENGTHS = 128
"""Lengths of texts with the same beginning that are told apart."""


class Match(StrEnum):
    """How a history was recognised."""

    AGAIN = "again"  # the same turn as before: regenerated, repeated, or a branch that was left and is taken up again
    NEXT = "next"  # the turn after the last answer
    BRANCH = "branch"  # a history that was already gone on with differently
    SHARED = "shared"  # a beginning that many conversations share
    ASKED = "asked"  # what was asked is known, and its answer is not, since the client changed it


class Found(NamedTuple):
    """The session that a history belongs to or comes from; `at` is the last known answer's position."""

    session: bytes
    match: Match
    at: int


class _Position(Struct, gc=False):
    """After one answer that passed here: the sessions whose last one it is, and who went on from here last."""

    last: bytes
    holders: tuple[bytes, ...] = ()
    branches: int = 0


class _Asked(Struct, gc=False):
    """One question with all that came before it: who asked it last, and how many have."""

    last: bytes
    sessions: int = 1


class Conversations:
    """Looks histories up from their end; every change is synchronous and whole.

    An entry is made for each question, with all that came before it, and for each answer that passed. Answers that only a
    request tells of (examples, a greeting, a history from elsewhere) name no conversation, since any number may have them.
    Conversations with equal histories are interchangeable, cache and all: the next turn of any of them takes one that has
    not gone on yet, so that each keeps one of its own from then on.
    """

    def __init__(self, clock: Callable[[], float], *, idle_expiry: float, limit: int) -> None:
        """`limit` bounds the entries altogether, some 0.2 KB each; a turn makes two."""
        third = max(1, limit // 3)
        self._positions: Recent[_Position] = Recent(clock, expiry=idle_expiry, limit=third)
        self._asked: Recent[_Asked] = Recent(clock, expiry=idle_expiry, limit=third)
        self._lengths: Recent[tuple[int, ...]] = Recent(clock, expiry=idle_expiry, limit=third)

    def __repr__(self) -> str:
        return f"<Conversations {len(self)} entries>"

    def __len__(self) -> int:
        return len(self._positions) + len(self._asked) + len(self._lengths)

    @property
    def evicted(self) -> int:
        """Entries that were forgotten for lack of room."""
        return self._positions.evicted + self._asked.evicted + self._lengths.evicted

    def find(self, history: History) -> Found | None:
        """The session with the longest known part of this history; changes nothing."""
        if isinstance(history, TextHistory):
            self._split(history)
        digests = history.all()
        for at in reversed(history.answers):
            position = self._positions.get(digests[at])
            asked = self._asked.get(history.before(at)) if position is None and history.is_answer(at) else None
            if position is not None:
                return self._after(position, history, at)
            if asked is not None and asked.sessions <= BRANCHES:
                return Found(asked.last, Match.ASKED, at)
        return None

    def _after(self, position: _Position, history: History, at: int) -> Found:
        if position.branches >= BRANCHES and not position.holders:
            return Found(position.last, Match.SHARED, at)
        again = self._asked.get(history.digests[-1]) if at == history.answers[-1] else None
        if again is not None and at + 1 < len(history.digests):
            return Found(again.last, Match.AGAIN, at)
        if position.holders:
            return Found(position.holders[0], Match.NEXT, at)
        return Found(position.last, Match.BRANCH, at)

    def goes_on(self, history: History, found: Found | None, session: bytes) -> None:
        """Note what a session asks, and where it goes on from, before anybody else looks."""
        digests = history.digests
        asked = self._asked.get(digests[-1])
        if asked is None:
            asked = _Asked(session)
        elif asked.last != session:
            asked.last = session
            asked.sessions += 1
        self._asked.put(digests[-1], asked)
        position = self._positions.get(digests[found.at]) if found is not None else None
        if found is None or position is None:
            return
        if found.match in (Match.BRANCH, Match.SHARED):
            position.branches += 1
        elif found.session in position.holders and found.at + 1 < len(digests):
            position.holders = tuple(holder for holder in position.holders if holder != found.session)
        position.last = session
        self._positions.put(digests[found.at], position)

    def learn(self, history: bytes, last: bytes, holders: Sequence[bytes]) -> None:
        """Another router has passed an answer with this history before it; what is known here already stays."""
        if self._positions.get(history) is None:
            self._positions.put(history, _Position(last, tuple(holders[:_MOST_HOLDERS])))

    def learn_asked(self, question: bytes, session: bytes) -> None:
        """Another router was asked this, with all that came before it."""
        if self._asked.get(question) is None:
            self._asked.put(question, _Asked(session))

    def answered(self, history: History, answer: Message, session: bytes) -> bytes:
        """Note a whole answer: the next turn's request will have it in its history. Returns the digest of all that."""
        digest = history.answered(answer)
        position = self._positions.get(digest) or _Position(session)
        if session not in position.holders and len(position.holders) < _MOST_HOLDERS:
            position.holders = (*position.holders, session)
        self._positions.put(digest, position)
        if isinstance(history, TextHistory):
            anchor, length = history.known
            others = (other for other in self._lengths.get(anchor) or () if other != length)
            self._lengths.put(anchor, (length, *others)[:_MOST_LENGTHS])
        return digest

    def _split(self, text: TextHistory) -> None:
        """Find the longest known text that this one begins with."""
        for cut in reversed(range(len(text.cuts))):
            for length in sorted(self._lengths.get(text.cuts[cut]) or (), reverse=True):
                if text.split(cut, length) and self._positions.get(text.digests[0]) is not None:
                    return
        text.join()
