"""Which session has this history? Digests of what was said -> the session that said it; no text."""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from ..core.history import History, TextHistory
from ..core.messages import Message
from .recent import Recent

BRANCHES = 3
"""So many times may a history be gone on with differently, by edits and branches of one person; a beginning that is gone
on with more often is one that many conversations share (examples before a question), and names none of them."""

_MOST_HOLDERS = 64
"""Conversations with the very same history that are told apart."""
_MOST_LENGTHS = 8
"""Texts with the same beginning that are told apart."""


class Match(StrEnum):
    """How a history was recognised."""

    AGAIN = "again"  # the same turn as before: regenerated, repeated, or a branch that was left and is taken up again
    NEXT = "next"  # the turn after the last answer
    BRANCH = "branch"  # a history that was already gone on with differently
    SHARED = "shared"  # a beginning that many conversations share
    OPENING = "opening"  # only what came before the first answer is known, since the client changed the answers


class Found(NamedTuple):
    """The session that a history belongs to or comes from; `at` is the last known answer's position."""

    session: bytes
    match: Match
    at: int


class _Position:
    """After one answer: the sessions whose last answer it is, and who went on from here last."""

    __slots__ = ("branches", "holders", "last")

    def __init__(self, last: bytes) -> None:
        self.holders: list[bytes] = []
        self.last = last
        self.branches = 0


class _Opening:
    __slots__ = ("last", "sessions")

    def __init__(self, last: bytes) -> None:
        self.last = last
        self.sessions = 1


class Conversations:
    """Looks histories up from their end; every change is synchronous and whole.

    An entry is made for each answer, for each message that followed one and for each opening. Conversations with equal
    histories are interchangeable, cache and all: the next turn of any of them takes one that has not gone on yet, so that
    each keeps one of its own from then on.
    """

    def __init__(self, clock: Callable[[], float], *, idle_expiry: float, limit: int) -> None:
        """`limit` bounds the entries altogether, some 0.2 KB each; a turn makes two."""
        third = max(1, limit // 3)
        self._positions: Recent[_Position] = Recent(clock, expiry=idle_expiry, limit=third)
        self._followed: Recent[bytes] = Recent(clock, expiry=idle_expiry, limit=third)
        self._openings: Recent[_Opening] = Recent(clock, expiry=idle_expiry, limit=third)
        self._lengths: Recent[tuple[int, ...]] = Recent(clock, expiry=idle_expiry, limit=third)

    def __repr__(self) -> str:
        return f"<Conversations {len(self)} entries>"

    def __len__(self) -> int:
        return len(self._positions) + len(self._followed) + len(self._openings)

    @property
    def evicted(self) -> int:
        """Entries that were forgotten for lack of room."""
        return self._positions.evicted + self._followed.evicted + self._openings.evicted

    def find(self, history: History) -> Found | None:
        """The session with the longest known part of this history; changes nothing."""
        if isinstance(history, TextHistory):
            self._split(history)
        digests = history.all()
        for at in reversed(history.answers):
            if at + 1 < len(digests) and (session := self._followed.get(digests[at + 1])) is not None:
                return Found(session, Match.AGAIN, at)
            position = self._positions.get(digests[at])
            if position is None:
                continue
            if position.holders:
                return Found(position.holders[0], Match.NEXT, at)
            branch = position.branches < BRANCHES
            return Found(position.last, Match.BRANCH if branch else Match.SHARED, at)
        if history.answers and (digest := history.opening) is not None:
            opening = self._openings.get(digest)
            if opening is not None and opening.sessions <= BRANCHES:
                return Found(opening.last, Match.OPENING, -1)
        return None

    def goes_on(self, history: History, found: Found, session: bytes) -> None:
        """Note that a session goes on from where a history was found, before anybody else looks."""
        digests = history.digests
        if found.at < 0:
            return
        if found.at + 1 < len(digests):
            self._followed.put(digests[found.at + 1], session)
        position = self._positions.get(digests[found.at])
        if position is None:
            return
        if found.match in (Match.BRANCH, Match.SHARED):
            position.branches += 1
        elif found.session in position.holders and found.at + 1 < len(digests):
            position.holders.remove(found.session)
        position.last = session
        self._positions.put(digests[found.at], position)

    def served(self, history: History, found: Found | None, session: bytes) -> None:
        """Note what a session's request said, once a backend has begun to answer it."""
        digests = history.digests
        known = found.at if found is not None else -1
        for at in history.answers:
            if at > known and self._positions.get(digests[at]) is None:
                self._positions.put(digests[at], _Position(session))
        if (digest := history.opening) is not None:
            opening = self._openings.get(digest)
            if opening is None:
                opening = _Opening(session)
            elif opening.last != session:
                opening.last = session
                opening.sessions += 1
            self._openings.put(digest, opening)

    def answered(self, history: History, answer: Message, session: bytes) -> None:
        """Note a whole answer: the next turn's request will have it in its history."""
        digest = history.answered(answer)
        position = self._positions.get(digest) or _Position(session)
        if session not in position.holders and len(position.holders) < _MOST_HOLDERS:
            position.holders.append(session)
        self._positions.put(digest, position)
        if isinstance(history, TextHistory):
            known = self._lengths.get(history.anchor) or ()
            self._lengths.put(history.anchor, (history.length, *known)[:_MOST_LENGTHS])

    def _split(self, text: TextHistory) -> None:
        """Find the longest known text that this one begins with."""
        for head in (*reversed(text.heads), text.start):
            for length in sorted(self._lengths.get(head) or (), reverse=True):
                if text.split(length) and self._positions.get(text.digests[0]) is not None:
                    return
        text.join()
