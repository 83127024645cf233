"""The pools of all backends, and those of backends that were removed until their last answer has ended."""

import asyncio
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from ..core.model import BackendSpec, Failure, Phase, Trust
from .pool import Pool

_KEPT_FOR = 60.0
"""Seconds for which a removed backend's pool can still be found by its name: a request may just be on its way to it."""


class ConnectionTimes(NamedTuple):
    """Seconds until a connection must be there, and for which an idle one is kept."""

    connect: float
    idle: float


class Pools(dict[str, Pool]):
    """Backend name -> pool. Others hold it, so it changes in place. Times are seconds of `clock`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        super().__init__()
        self._loop = loop
        self._clock = clock
        self._gone: dict[Pool, tuple[float, float]] = {}

    def __repr__(self) -> str:
        return f"<Pools {list(self.values())}, {len(self._gone)} of removed backends>"

    def planned(
        self, specs: Iterable[BackendSpec], times: ConnectionTimes, contexts: Mapping[Trust, ssl.SSLContext]
    ) -> dict[str, Pool]:
        """The pools that these backends need: those that are there, if name, URL and TLS are the same, else new ones.

        `contexts` say how servers with an https URL are known.
        """
        pools = {}
        for spec in specs:
            pool, tls = self.get(spec.name), contexts.get(spec.trust)
            if pool is None or pool.retired or not pool.is_for(spec, tls):
                pool = Pool(
                    spec,
                    self._loop,
                    connect_timeout=times.connect,
                    keepalive_expiry=times.idle,
                    clock=self._clock,
                    tls=tls,
                )
            pools[spec.name] = pool
        return pools

    def follow(self, planned: dict[str, Pool], times: ConnectionTimes) -> None:
        """Put planned pools and times in force. The others retire, and stay until what runs there has ended."""
        now = self._clock()
        for name, pool in self.items():
            if planned.get(name) is not pool and not pool.retired:
                pool.retire()
                self._gone[pool] = (now, now)
        for pool in planned.values():
            pool.configure(connect_timeout=times.connect, keepalive_expiry=times.idle)
        self.update(planned)

    def sweep(self, silence: float) -> list[str]:
        """Forget removed backends to which nothing is open any more; end what they leave waiting for `silence` seconds.

        Returns the names of which nothing is left at all.
        """
        now, forgotten = self._clock(), []
        for pool, (since, heard) in list(self._gone.items()):
            if pool.was_heard():
                self._gone[pool] = (since, now)
            elif now - heard >= silence:
                pool.stop_exchanges(silent(pool.spec.name, silence), tunnels=False)
            if not pool.connections and now - since >= _KEPT_FOR:
                del self._gone[pool]
                if self.get(pool.spec.name) is pool:
                    del self[pool.spec.name]
                    forgotten.append(pool.spec.name)
        return forgotten

    def was_heard(self, name: str) -> bool:
        """Whether a backend has sent anything since this was last asked."""
        return self[name].was_heard()

    def end_silent(self, name: str, seconds: float) -> None:
        """End every exchange with a backend that has sent nothing for so many seconds."""
        self[name].stop_exchanges(silent(name, seconds))

    def end_asleep(self, name: str) -> None:
        """End every exchange with a backend that was put to sleep."""
        self[name].stop_exchanges(asleep(name))

    def end_tunnels(self, name: str) -> None:
        """End every WebSocket of a backend that is being emptied."""
        self[name].stop_tunnels(Failure(Phase.STREAM, "own", "the backend is being emptied", own=True))

    def stop_exchanges(self, failure: Failure) -> None:
        """End every exchange that runs, at removed backends too."""
        for pool in self._all():
            pool.stop_exchanges(failure)

    def close(self) -> None:
        """Close everything, running exchanges too."""
        for pool in self._all():
            pool.close()

    def _all(self) -> Iterator[Pool]:
        return iter(dict.fromkeys(chain(self.values(), self._gone)))


def asleep(name: str) -> Failure:
    """A backend was put to sleep with requests there, and would answer when it is awake."""
    return Failure(Phase.HEAD, "asleep", f"{name} was put to sleep")


def silent(name: str, seconds: float) -> Failure:
    """A backend has sent nothing for so many seconds while requests waited."""
    return Failure(Phase.HEAD, "timeout", f"{name} sent nothing for {seconds:g} s")
