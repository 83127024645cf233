"""What is asked of a shared store and what it answers; the words that the store and its connections have in common."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import NamedTuple, Protocol

Answer = int | bytes | None
"""To an Ask 0: it was so; 1: it is so now; 2: the same, over a value of another type; bytes: what somebody else has stored.
To a Look what is stored, None for nothing, 2 for a value of another type; to the others nothing of use."""


class Op(StrEnum):
    """What the store is used for. A closed set: it labels metrics."""

    CONNECT = "connect"
    LISTEN = "listen"
    PROBE = "probe"
    PLACE = "place"
    WITHDRAW = "withdraw"
    REFRESH = "refresh"
    RECALL = "recall"
    NOTE = "note"


QUESTIONS = (Op.PLACE, Op.WITHDRAW, Op.REFRESH, Op.RECALL, Op.NOTE)
"""What waits for its turn; the others are the connection's own."""
IGNORED = ("unreadable", "unknown_backend", "wrong_type")
"""Why a stored value is of no use. A closed set: it labels a metric."""
RECALLED = ("history", "head", "response")
"""What may be known of a turn by the store alone. A closed set: it labels a metric."""


def none_yet(labels: Iterable[str]) -> Counter[str]:
    """A count for each label, 0 as long as nothing has happened: of a series that begins with 1 nobody sees an increase."""
    return Counter({str(label): 0 for label in labels})


class Ask(NamedTuple):
    """One question: store `value` (nothing if empty) under `key`, where nothing or `replaces` is; who hears `message`.

    A change of what is stored is always told, a value where there was none only if `announce`.
    """

    key: bytes
    value: bytes
    replaces: bytes
    message: bytes
    announce: bool


class Look(NamedTuple):
    """What is stored under `key`?"""

    key: bytes


class Put(NamedTuple):
    """Store `value` under `key` for so many seconds, whatever was there."""

    key: bytes
    value: bytes
    lifetime: float


class Hold(NamedTuple):
    """Add a session to those that hold `key`, or if not `holds` take it away: somebody has gone on from there.

    The value is `codec.Held`; it lives so many seconds from now on.
    """

    key: bytes
    session: bytes
    holds: bool
    lifetime: float


Question = Ask | Look | Put | Hold


class StoreError(Exception):
    """The store cannot be used; `reason` says why, for people."""

    def __init__(self, op: Op, reason: str) -> None:
        super().__init__(reason)
        self.op, self.reason = op, reason


class Link(Protocol):
    """Connections to a store, as `pins.redis` makes them. Both methods raise StoreError."""

    async def ask(self, asks: Sequence[Question]) -> list[Answer]: ...
    async def hear(self) -> bytes: ...


Connect = Callable[[], AbstractAsyncContextManager[Link]]
