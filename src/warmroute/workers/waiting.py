"""What workers bound together: the requests that wait for a full backend, and the connections of clients."""

import asyncio
from collections.abc import Callable

from ..observe.counters import RequestCounters
from ..proxy.client import Client
from ..proxy.deadlines import Door, Guest, Limits
from ..proxy.queue import Queue
from .rows import Head, Rows

_LOOK = 0.005
"""Seconds between two looks for places that other workers have given back, while requests wait here."""


class SharedQueue(Queue):
    """The queue of one worker. A place that another worker gives back is found by looking; places go to all in turn."""

    def __init__(self, rows: Rows, free: Callable[[str | None], bool], *, length: int, timeout: float) -> None:
        """`free` tells whether a backend (None: any) has a place now."""
        super().__init__(length=length, timeout=timeout)
        self._rows = rows
        self._free = free
        self._looking: asyncio.TimerHandle | None = None
        self._turn = 0

    async def wait(self, backend: str | None, client: Client, deadline: float, *, again: bool = False) -> bool:
        if self._rows.head(Head.WAITING) >= self._length:
            self.refused += 1
            return False
        self._rows.own[Head.WAITING] += 1
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(_LOOK, self._look)
        try:
            return await super().wait(backend, client, deadline, again=again)
        finally:
            self._rows.own[Head.WAITING] -= 1

    def freed(self, backend: str) -> None:
        """A place has become free here: it is for those who wait here as often as they are many among all who wait."""
        everybody = self._rows.head(Head.WAITING)
        if not everybody:
            return
        self._turn += self.waiting
        if self._turn >= everybody:
            self._turn -= everybody
            super().freed(backend)

    def _look(self) -> None:
        self._looking = None
        for backend in [name for name in self._waiting if self._free(name)]:
            super().freed(backend if backend is not None else "")
        if self.waiting:
            self._looking = asyncio.get_running_loop().call_later(_LOOK, self._look)


class SharedDoor(Door):
    """The clients of one worker, of whom all workers together have no more than `limits.max_connections`."""

    def __init__(self, rows: Rows, limits: Limits, clock: Callable[[], float], counters: RequestCounters) -> None:
        super().__init__(limits, clock, counters)
        self._rows = rows

    def enter(self, guest: Guest) -> bool:
        if self._rows.head(Head.GUESTS) >= self.limit:
            self._counters.connections_refused += 1
            return False
        entered = super().enter(guest)
        self._rows.own[Head.GUESTS] = len(self.guests)
        return entered

    def leave(self, guest: Guest) -> None:
        super().leave(guest)
        self._rows.own[Head.GUESTS] = len(self.guests)
