"""How long clients may keep a listener waiting, and how many may be connected: looked at from time to time, all together.

A timer for each request would cost more than the rest of its bookkeeping. One sweep a second looks at every connection
instead, and the connections do nothing for it but keep their state.
"""

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, Protocol

from ..observe.counters import RequestCounters

_LONGEST_PAUSE = 1.0
"""Seconds between two sweeps; deadlines shorter than some seconds are looked at more often."""
_SWEEPS_PER_DEADLINE = 5
_LEAST_TAKEN = 1024
"""Bytes that a reader must take within its deadline; fewer are as good as none."""
_LINGER = 2.0
"""Seconds in which a client that was refused may go on sending, so that it reads why instead of a broken connection."""
_MOST_LINGERING = 256


class Limits(Protocol):
    """What the configuration says. Times are in seconds, `min_body_rate` in bytes a second."""

    @property
    def head_timeout(self) -> float: ...
    @property
    def body_timeout(self) -> float: ...
    @property
    def min_body_rate(self) -> int: ...
    @property
    def idle_timeout(self) -> float: ...
    @property
    def send_timeout(self) -> float: ...
    @property
    def tunnel_timeout(self) -> float: ...
    @property
    def max_connections(self) -> int: ...


class Wait(StrEnum):
    """What a client is waited for: the rest of a head, of a body, another request, that it reads its answer, or that anything
    passes through its WebSocket."""

    HEAD = "head"
    BODY = "body"
    IDLE = "idle"
    SEND = "send"
    TUNNEL = "tunnel"


class Waiting(NamedTuple):
    """One connection's state: what is waited for, of which request, and how far it has come (bytes; it only grows)."""

    wait: Wait
    of: object
    progress: int


class Deadlines:
    """When a wait is over. Pure: the time is told.

    A wait begins where it is first seen, and begins anew when enough has come since: a body's deadline is a period that must
    bring its share of the least rate, so single bytes do not stretch it.
    """

    def __init__(self, limits: Limits) -> None:
        self._seconds = {
            Wait.HEAD: limits.head_timeout,
            Wait.BODY: limits.body_timeout,
            Wait.IDLE: limits.idle_timeout,
            Wait.SEND: limits.send_timeout,
            Wait.TUNNEL: limits.tunnel_timeout,
        }
        self._enough = {
            Wait.HEAD: 1,
            Wait.BODY: max(1, int(limits.body_timeout * limits.min_body_rate)),
            Wait.IDLE: 1,
            Wait.SEND: _LEAST_TAKEN,
            Wait.TUNNEL: 1,
        }
        self.pause = min(_LONGEST_PAUSE, min(self._seconds.values()) / _SWEEPS_PER_DEADLINE)

    def begin(self, seen: "Mark | None", now: Waiting, time: float) -> "Mark":
        """The mark to keep: the one of before while nothing has changed."""
        if seen is not None:
            then = seen.waiting
            if then.wait is now.wait and then.of == now.of and now.progress - then.progress < self._enough[now.wait]:
                return seen
        return Mark(now, time)

    def over(self, mark: "Mark", time: float) -> bool:
        return time - mark.since >= self._seconds[mark.waiting.wait]


class Mark(NamedTuple):
    """What a connection waited for when it was last seen to get on, and when that was."""

    waiting: Waiting
    since: float


class Guest(Protocol):
    """A connection, as the door sees it."""

    mark: Mark | None

    def waiting(self) -> Waiting | None:
        """What the client is waited for now; None while it is the client that waits."""

    def time_out(self, wait: Wait) -> None:
        """The client has taken too long: say so where that is possible, and end the connection."""


class Door:
    """Everyone who is connected to one listener. Whoever runs the listener calls `sweep` some times a second.

    `closing`: the listener will soon be closed, so that each answer that begins is the last one on its connection.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float], counters: RequestCounters) -> None:
        self.guests: set[Guest] = set()
        self.limit = limits.max_connections
        self.closing = False
        self._deadlines = Deadlines(limits)
        self._clock = clock
        self._counters = counters
        self._due = 0.0
        self._lingering: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def __repr__(self) -> str:
        return f"<Door {len(self.guests)} of {self.limit} connections, {len(self._lingering)} lingering>"

    def enter(self, guest: Guest) -> bool:
        """Take a connection in; False, and counted, if there are too many."""
        if len(self.guests) >= self.limit:
            self._counters.connections_refused += 1
            return False
        guest.mark = Mark(Waiting(Wait.HEAD, None, 0), self._clock())
        self.guests.add(guest)
        return True

    def leave(self, guest: Guest) -> None:
        self.guests.discard(guest)

    def sweep(self) -> None:
        """End the waits that are over, if the last look was long enough ago."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + self._deadlines.pause
        for guest in tuple(self.guests):
            waiting = guest.waiting()
            if waiting is None:
                guest.mark = None
                continue
            mark = guest.mark = self._deadlines.begin(guest.mark, waiting, now)
            if self._deadlines.over(mark, now):
                self._counters.client_timeouts[waiting.wait] += 1
                guest.time_out(waiting.wait)
                guest.mark = None

    def linger(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        """Close a connection whose client may still be sending: our end now, all of it when the client has ended too.

        To close at once would reset the connection under unread bytes, and the client would never see its answer.
        """
        if len(self._lingering) >= _MOST_LINGERING or not transport.can_write_eof():
            transport.close()
            return
        transport.write_eof()
        self._lingering[transport] = loop.call_later(_LINGER, self._end, transport)

    def _end(self, transport: asyncio.Transport) -> None:
        self.gone(transport)
        transport.abort()

    def gone(self, transport: asyncio.Transport) -> None:
        """A connection has closed."""
        timer = self._lingering.pop(transport, None)
        if timer is not None:
            timer.cancel()
