"""Backends that come and go while the router runs: from all that names them to one step in which they are in force."""

import asyncio
import logging
import os
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import settings
from .config import Certificates, Config, ConfigError, nameserver, query, with_certificates
from .core.model import BackendSpec, Trust
from .core.ring import Ring
from .core.wanted import Plan, plan
from .discovery.file import FileWatch
from .discovery.kubernetes import Cluster, KubernetesWatch
from .discovery.members import Members
from .discovery.source import Source
from .fleet.changes import Changes
from .fleet.prober import Prober
from .fleet.scraper import Scraper, series_filter
from .keeping import Kept
from .observe.reloads import ReloadError
from .proxy.pool import Pool
from .proxy.pools import Pools

if TYPE_CHECKING:
    from .fleet.kv_events import KvEvents

log = logging.getLogger("warmroute.discovery")

Loop = tuple[str, Callable[[], Awaitable[None]]]

_LOOK_EVERY = 1.0
"""Seconds between two looks whether a backend that is emptied is empty."""


def discover(config: Config, members: Members, clock: Callable[[], float]) -> list[Loop]:
    """Give `members` the sources that this configuration wants; returns the loops that ask them, with a name for people."""
    wanted = config.discovery

    def source(name: str) -> Source:
        found = Source(name, clock, members.changed.set)
        members.sources.append(found)
        return found

    loops: list[Loop] = []
    if wanted.file.path is not None:
        watch = FileWatch(source("file"), wanted.file.path, wanted.file.interval, settings.backend)
        loops.append(("watch over a file of backends", watch.run))
    if wanted.dns.names:
        from .discovery.dns import DnsWatch, Query  # only here, since it is an extra

        queries = [Query(*query(name)) for name in wanted.dns.names]
        server = nameserver(wanted.dns.server) if wanted.dns.server is not None else None
        loops.append(
            ("lookups of backends", DnsWatch(source("dns"), settings.backend, queries, wanted.dns.interval, server).run)
        )
    if wanted.kubernetes.labels:
        k8s = wanted.kubernetes
        cluster = Cluster(*k8s.cluster(os.environ), k8s.labels, k8s.token_file, k8s.ca_file)
        pods = KubernetesWatch(source("kubernetes"), settings.backend, cluster, k8s.scheme, k8s.port)
        loops.append(("watch over endpoints in Kubernetes", pods.run))
    return loops


async def read_again(
    read: Callable[[], Config] | None, stopping: Callable[[], bool], before: Certificates
) -> tuple[Config, Certificates]:
    """The configuration as it is now, with its certificates. Raises ReloadError."""
    if read is None:
        raise ReloadError("this router was not started from a configuration that can be read again", refused=True)
    if stopping():
        raise ReloadError("the router is stopping", refused=True)
    try:
        return await asyncio.to_thread(with_certificates, read, before)
    except ConfigError as error:
        raise ReloadError(str(error), refused=False) from None


@dataclass(frozen=True, slots=True)
class Watching:
    """What follows the backends wherever they go. `contexts` says how those with an https URL are known now."""

    pools: Pools
    prober: Prober
    scraper: Scraper
    kv_events: "KvEvents | None"
    contexts: Callable[[], Mapping[Trust, ssl.SSLContext]]


class Membership:
    """Puts in force whom the configuration, discovery and operators want. `config` gives what is in force now.

    Whoever changes the backends holds `lock` from the plan to its step, so that nobody's plan is about others.
    """

    def __init__(
        self,
        kept: Kept,
        watching: Watching,
        config: Callable[[], Config],
        lock: asyncio.Lock,
        stopping: Callable[[], bool],
    ) -> None:
        self._kept = kept
        self._watching = watching
        self._config = config
        self._lock = lock
        self._stopping = stopping
        self._told: frozenset[str] = frozenset()
        self._cut: set[str] = set()
        kept.members.wanted = self.plan(config()).wanted

    def __repr__(self) -> str:
        return f"<Membership {self._kept.members!r}>"

    # The step

    def plan(self, config: Config, cut: Collection[str] = ()) -> Plan:
        """The backends that are to be there, with this configuration. Of those that are `cut` nothing is waited for."""
        kept = self._kept
        key = config.upstream.key.get_secret_value() if config.upstream.key is not None else None
        return plan(
            kept.members.name_all(config.specs, key, config.upstream.trust),
            [state.spec for state in kept.registry.backends.values()],
            {*cut, *self._cut, *kept.registry.gone()},
        )

    async def ring(self, specs: Collection[BackendSpec]) -> Ring:
        """The ring over these backends: the one in force if it is the same, else made in a thread."""
        registry = self._kept.registry
        weights = {spec.name: spec.weight for spec in specs}
        if weights == {state.name: state.weight for state in registry.backends.values()}:
            return registry.fleet().ring
        return await asyncio.to_thread(Ring, weights)

    def pools(self, config: Config, planned: Plan, contexts: Mapping[Trust, ssl.SSLContext]) -> dict[str, Pool]:
        """The pools to these backends; `contexts` say how those with an https URL are known."""
        return self._watching.pools.planned(planned.specs, settings.connection_times(config), contexts)

    def enter(self, config: Config, planned: Plan, ring: Ring, pools: dict[str, Pool]) -> Changes:
        """Let these backends, and this configuration's way to look at them, be in force."""
        kept, watching, now = self._kept, self._watching, self._kept.clock()
        changes = kept.registry.reconfigure(
            planned.specs, ring, settings.thresholds(config), settings.outlier_limits(config), now
        )
        leaving = kept.registry.let_go(planned.leaving, now + config.drain.deadline)
        kept.members.wanted = planned.wanted
        self._cut &= {spec.name for spec in planned.specs}  # cut since the plan was made
        watching.pools.follow(pools, settings.connection_times(config))
        watching.prober.follow(settings.probe_times(config))
        watching.scraper.follow(settings.scrape_times(config), series_filter(config.metrics.vllm_series))
        if watching.kv_events is not None:
            watching.kv_events.follow()
        kept.memory.guards.resize(len(planned.specs))
        for sentence in planned.wanted.refused:
            if sentence not in self._told:
                log.warning("%s", sentence)
        self._told = frozenset(planned.wanted.refused)
        return changes._replace(leaving=leaving)

    # Beside reloads

    async def start(self, within: float) -> None:
        """Put in force what the sources name that answer within so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                for source in self._kept.members.sources:
                    await source.asked.wait()
        await self.follow()

    async def run(self) -> None:
        """Follow for ever; ends by cancellation."""
        members = self._kept.members
        await self.follow()  # again, where a fault ended this before it was done
        while True:
            try:
                async with asyncio.timeout(_LOOK_EVERY):
                    await members.changed.wait()
            except TimeoutError:
                if not self._kept.registry.gone():
                    continue
            members.changed.clear()
            await self.follow()

    async def follow(self) -> None:
        """Put in force what is wanted now, if it is anything else."""
        async with self._lock:
            config, registry = self._config(), self._kept.registry
            planned = self.plan(config)
            same = [state.spec for state in registry.backends.values()] == list(planned.specs)
            going = {state.name for state in registry.backends.values() if state.going}
            if self._stopping() or (same and going == planned.leaving):
                self._kept.members.wanted = planned.wanted
                return
            ring = await self.ring(planned.specs)
            changes = self.enter(config, planned, ring, self.pools(config, planned, self._watching.contexts()))
            self._kept.queue.wake_all()
        if changes.told():
            log.info("the backends have changed: %s", changes.told())
            self._kept.events.backends_changed(changes)

    # By hand

    async def add(self, entry: dict[str, object]) -> dict[str, object]:
        """Want one backend more, as a list of backends would name it. Raises MemberError, and ValueError for what is none."""
        going = [state.spec for state in self._kept.registry.backends.values() if state.going]
        name = self._kept.members.add(settings.backend(entry), going, named=bool(entry.get("name")))
        self._cut.discard(name)
        log.info("backend %s was added by hand; it is gone after a restart", name)
        await self.follow()
        return self._told_of(name)

    async def remove(self, name: str, now: bool) -> dict[str, object]:
        """Let one go once it is empty, or at once if it should be `now`. Raises MemberError."""
        registry = self._kept.registry
        state = registry.backends.get(name)
        if state is None or not state.going:
            self._kept.members.remove(name)
            log.info("backend %s was removed by hand", name)
        if now:
            self._cut.add(name)
        await self.follow()
        return self._told_of(name)

    def _told_of(self, name: str) -> dict[str, object]:
        state = self._kept.registry.backends.get(name)
        return {
            "backend": name,
            "url": state.spec.url if state else None,
            "state": state.state if state else "removed",
            "sessions": state.sessions if state else self._kept.pins.sessions(name),
            "sources": list(self._kept.members.wanted.sources.get(name, ())),
        }
