"""What goes on beside requests: loops that are kept running, and the sweep over sessions, backends and connections."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from .fleet.registry import Registry
from .observe.events import Events
from .pins.memory import PinTable
from .proxy.queue import Queue

log = logging.getLogger("warmroute")


async def keep(name: str, run: Callable[[], Awaitable[None]], failed: Callable[[str], None]) -> None:
    """Run a loop for ever; a fault in it is told, counted by `failed`, and it begins again."""
    while True:
        try:
            await run()
        except Exception:  # whatever it is: nobody else would begin the loop again
            log.exception("the %s failed and begins again; please report this", name)
            failed(name)
        await asyncio.sleep(1.0)


class Connections(Protocol):
    """The connections to all backends, whichever process has them; `proxy.pools.Pools` are those of this one."""

    def was_heard(self, name: str) -> bool: ...
    def end_silent(self, name: str, seconds: float) -> None: ...
    def end_asleep(self, name: str) -> None: ...
    def end_tunnels(self, name: str) -> None: ...
    def sweep(self, silence: float) -> list[str]: ...


class Housekeeping:
    """Once a second: sessions expire, backends that are silent rest, those asleep are left, drains end.

    `silence` gives a time in seconds; `forget` is told who is gone for good.
    """

    def __init__(
        self,
        *,
        pins: PinTable,
        registry: Registry,
        pools: Connections,
        queue: Queue,
        events: Events,
        clock: Callable[[], float],
        silence: Callable[[], float],
        forget: Callable[[str], None],
    ) -> None:
        self._pins = pins
        self._registry = registry
        self._pools = pools
        self._queue = queue
        self._events = events
        self._clock = clock
        self._silence = silence
        self._forget = forget

    def __repr__(self) -> str:
        return f"<Housekeeping of {self._registry!r}>"

    async def run(self) -> None:
        while True:
            self._pins.expire()
            self.sweep()
            await asyncio.sleep(1.0)

    def sweep(self) -> None:
        """Look at every backend once."""
        now, silence = self._clock(), self._silence()
        for name in self._registry.sweep(self._pools.was_heard, now, silence):
            log.warning("backend %s rests: %s", name, self._registry.backends[name].reason)
            self._pools.end_silent(name, silence)
        for backend in self._registry.backends.values():
            if backend.asleep and backend.in_flight:
                self._pools.end_asleep(backend.name)
        for name in self._pools.sweep(silence):
            self._forget(name)
        over = self._registry.end_drains(now)
        for name in over:
            left = self._pins.sessions(name)
            log.info("backend %s is drained: %d sessions that are left move at their next turn", name, left)
            self._pools.end_tunnels(name)
        self._events.watch(self._registry.backends.values())
        if over:
            self._queue.wake_all()
