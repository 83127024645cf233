"""Requests that wait for a place at a full backend: a short queue with a deadline, first come, first served."""

import asyncio
from collections import deque

from .client import Client

_ANY: str | None = None


class Queue:
    """Bounded in length and time. A place that becomes free wakes one request, which then asks for it like any other."""

    def __init__(self, *, length: int, timeout: float) -> None:
        """At most `length` requests wait, each for `timeout` seconds."""
        self._length = length
        self._timeout = timeout
        self._waiting: dict[str | None, deque[asyncio.Future[bool]]] = {}
        self.waiting = 0
        self.refused = 0

    def __repr__(self) -> str:
        return f"<Queue {self.waiting} of {self._length} wait, {self.refused} refused>"

    def configure(self, *, length: int, timeout: float) -> None:
        """Take another length and time for those that come from now on."""
        self._length, self._timeout = length, timeout

    def wake_all(self) -> None:
        """The backends have changed: everybody looks again, and waits on if need be, for the time that is left."""
        for line in self._waiting.values():
            for woken in line:
                _end(woken, True)

    def deadline(self) -> float:
        """When a request that begins to wait now has waited enough."""
        return asyncio.get_running_loop().time() + self._timeout

    async def wait(self, backend: str | None, client: Client, deadline: float, *, again: bool = False) -> bool:
        """Wait for a place at this backend (None: at any). False if there is no room to wait, or the deadline has passed.

        Who was woken in vain waits `again`, before all others. Returns when the client leaves, too: there is nothing to wait
        for then.
        """
        loop = asyncio.get_running_loop()
        left = deadline - loop.time()
        if self.waiting >= self._length or left <= 0:
            self.refused += 1
            return False
        woken: asyncio.Future[bool] = loop.create_future()
        line = self._waiting.setdefault(backend, deque())
        if again:
            line.appendleft(woken)
        else:
            line.append(woken)
        self.waiting += 1
        timer = loop.call_later(left, _end, woken, False)
        client.on_gone(lambda: _end(woken, True))
        try:
            if not await woken:
                self.refused += 1
                return False
            return True
        finally:
            timer.cancel()
            self.waiting -= 1
            if woken in line:
                line.remove(woken)
            if not line and self._waiting.get(backend) is line:  # else it is another line, which others wait in
                del self._waiting[backend]

    def freed(self, backend: str) -> None:
        """A place at this backend has become free."""
        if not self.waiting:
            return
        for name in (backend, _ANY):
            line = self._waiting.get(name)
            while line:
                woken = line.popleft()
                if not woken.done():
                    woken.set_result(True)
                    return


def _end(woken: asyncio.Future[bool], result: bool) -> None:
    if not woken.done():
        woken.set_result(result)
