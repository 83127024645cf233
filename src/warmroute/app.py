"""A running router: its listeners, the loops beside them, and the one step in which another configuration comes into force."""

import asyncio
import logging
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TextIO

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from . import assembly, keeping, listeners, settings
from .config import Certificates, Config, ConfigError, needs_restart, read_certificates, read_secret, require_extras
from .core.headers import Headers
from .core.model import Failure, Phase
from .fleet.asking import Asking
from .fleet.broadcast import Broadcaster
from .fleet.changes import Changes
from .housekeeping import Housekeeping, keep
from .listeners import Secure, StartError, renew
from .membership import Membership, Watching, discover, read_again
from .observe.record import RequestRecord
from .observe.reloads import ReloadError
from .observe.writer import BackgroundWriter
from .proxy.data import DataApp
from .proxy.deadlines import Door
from .proxy.handshake import SwitchingProtocol
from .proxy.pools import Pools
from .proxy.refusals import Refusals
from .web.admin import AdminApp

log = logging.getLogger("warmroute")

_STORE_AT_START = 1.0
"""Seconds that a start waits for the shared store, so that sessions which live already are found from the first request."""
_SOURCES_AT_START = 2.0
"""Seconds that a start waits for those who name backends, so that the ring is whole from the first request."""
_ENDED_AGAIN_AFTER = 0.1
"""Seconds after which what has begun since the end of the time for stopping is ended too, such as a request of the queue."""


class Router:
    """Two listeners and the loops beside them, for an `async with` block.

    `read` gives the configuration again for a reload. It runs in a thread and raises ConfigError. `on_reload` is told that a
    reload begins (True) and that it has ended.
    """

    def __init__(
        self,
        config: Config,
        log_stream: TextIO | BackgroundWriter = sys.stderr,
        read: Callable[[], Config] | None = None,
    ) -> None:
        self.config = config
        self._log_stream = log_stream
        self._read = read
        self.stopping = False
        self.on_reload: Callable[[bool], None] = lambda begins: None
        self._clock = time.monotonic
        self._tasks: list[asyncio.Task[None]] = []
        self._servers: tuple[listeners.Server, ...] = ()
        self._hurried = asyncio.Event()
        self._reload_asked = asyncio.Event()
        self._reloading = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Router {len(self.config.backends)} backends{' stopping' if self.stopping else ''}>"

    async def __aenter__(self) -> Self:
        try:
            require_extras(self.config)
            secret = read_secret(self.config.store)
            self._certificates = read_certificates(self.config)
        except ConfigError as error:
            raise StartError(str(error)) from None
        self._listen()
        self._build(secret)
        fault = self.counters.internal_error
        self._tasks = [asyncio.ensure_future(keep(name, run, fault)) for name, run in self._loops()]
        if self.shared is not None:
            await self.shared.store.tried(_STORE_AT_START)
        await self._membership.start(_SOURCES_AT_START)
        await self._serve()
        settings.warn(self.config)
        return self

    def _listen(self) -> None:
        """Open both listening sockets. Raises StartError."""
        listen, found = self.config.listen, self._certificates
        data = listeners.listen(listen.host, listen.port)
        admin = listeners.listen_too([data], listen.admin_host, listen.admin_port)
        self._sockets: tuple[socket.socket, ...] = data, admin
        self.data_url = listeners.url_of(listen.host, data, found.data is not None)
        self.admin_url = listeners.url_of(listen.admin_host, admin, found.admin is not None)

    def _loops(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        """What runs beside requests, by names for people."""
        yield "health checks", self._prober.run
        yield "metrics reader", self._scraper.run
        yield "session expiry", self._housekeeping.run
        yield "reloads", self._reload_when_asked
        yield "changes of backends", self._membership.run
        yield from discover(self.config, self._kept.members, self._clock)
        if self._kv_events is not None:
            yield "KV events", self._kv_events.run
        shared = self.shared
        if shared is not None:
            yield "shared store", lambda: shared.store.run(shared)

    async def _serve(self) -> None:
        self._door = Door(self.config.limits, self._clock, self.counters)
        await self._serve_on(self._data_server(), self._admin_server())

    async def _serve_on(self, *servers: listeners.Server) -> None:
        """Return when these serve, each on its socket."""
        self._servers = servers
        self._serving = [
            asyncio.ensure_future(server.serve(sockets=[sock]))
            for server, sock in zip(servers, self._sockets, strict=True)
        ]
        await asyncio.gather(*(server.ready.wait() for server in servers))

    def _data_server(self) -> listeners.Server:
        limits = self.config.limits
        make = SwitchingProtocol.behind(self._door, self._refusals, self._data_app, self._clock)
        self._data_tls = Secure.by(self._certificates.data, limits.head_timeout, self.counters.handshake_failed)
        return listeners.server(self._data_app, make, limits.shutdown, self._door, self._data_tls)

    def _admin_server(self) -> listeners.Server:
        timeout = self.config.limits.head_timeout
        self._admin_tls = Secure.by(self._certificates.admin, timeout, self.counters.handshake_failed)
        return listeners.server(self._admin_app, HttpToolsProtocol, 1.0, secure=self._admin_tls)

    def _build(self, secret: bytes | None) -> None:
        config = self.config
        self._kept = kept = self._keep(secret)
        self.pins, self.registry, self.shared = kept.pins, kept.registry, kept.shared
        self.memory, self.counters = kept.memory, kept.counters
        contexts = self._certificates.backends
        self._http = Asking(contexts)
        self._prober, self._scraper, self._kv_events = assembly.watch(config, kept, self._http)
        times = settings.connection_times(config)
        self._pools = Pools(asyncio.get_running_loop(), self._clock)
        self._pools.follow(self._pools.planned(config.specs, times, contexts), times)
        self._housekeeping = Housekeeping(
            pins=kept.pins,
            registry=kept.registry,
            pools=self._pools,
            queue=kept.queue,
            events=kept.events,
            clock=self._clock,
            silence=lambda: self.config.outlier.silence,
            forget=kept.forget,
        )
        self._access_log = settings.access_log(config, self._log_stream)
        if isinstance(self._log_stream, BackgroundWriter):
            writer = self._log_stream
            self.counters.log_lines_dropped = lambda: writer.dropped
        watching = Watching(
            self._pools, self._prober, self._scraper, self._kv_events, lambda: self._certificates.backends
        )
        self._membership = Membership(kept, watching, lambda: self.config, self._reloading, lambda: self.stopping)
        self._hooks = assembly.Hooks(
            settle=self._settle,
            backend_failed=self._backend_failed,
            stopping=lambda: self.stopping,
            reload=self._reload_for_admin,
            explain=self._explain,
            add_backend=self._membership.add,
            remove_backend=self._membership.remove,
            broadcaster=Broadcaster(self._http, self._prober.read_models, self._scraper.read),
        )
        made = assembly.make(config, kept, self._pools, self._hooks)
        self._refusals = Refusals(self._settle, self._clock, time.time)
        stopping, fault = self._hooks.stopping, self.counters.internal_error
        self._data_app = DataApp(made.handler, self.registry, stopping, fault, self._refusals, kept.tenants)
        self._admin_app = AdminApp(made.access, made.admin_app)
        self._take(made)

    def _keep(self, secret: bytes | None) -> keeping.Kept:
        return keeping.keep(self.config, secret, self._clock)

    def _take(self, made: assembly.Made) -> None:
        self.recognizer, self._state, self._explainer = made.recognizer, made.state, made.explainer
        self._kept.tenants.follow(settings.tenants(self.config))
        self._data_app.handler, self._admin_app.inner = made.handler, made.admin_app
        self._data_app.keys, self._admin_app.access = made.keys, made.access

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop: no new connections, running requests end within `limits.shutdown`, then everything is closed."""
        self._say_the_end_is_near()
        await self._end_serving()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._pools.close()
        await self._http.aclose()
        if self._kept.spans is not None:
            await self._kept.spans.close()
        if self._access_log is not None:
            self._access_log.close()

    async def pre_drain(self) -> None:
        """Be not ready, but serve as before for `limits.pre_drain`, or until `hurry`. Call it before the `async with` ends.

        A balancer needs that long to see that it should send its requests elsewhere.
        """
        self._say_the_end_is_near()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.limits.pre_drain):
                await self._hurried.wait()

    def hurry(self) -> None:
        """Stop now: end what runs, visibly, and wait for nobody."""
        self._hurried.set()
        if self._servers:
            self._end_exchanges()
        for server in self._servers:
            server.force_exit = True

    async def _end_serving(self) -> None:
        data_server, *others = self._servers
        data_server.should_exit = True
        await self._served_within(self.config.limits.shutdown)
        for server in others:
            server.should_exit = True
        await asyncio.gather(*self._serving)

    def _say_the_end_is_near(self) -> None:
        self.stopping = self._door.closing = True

    async def _served_within(self, seconds: float) -> None:
        """Wait for the data listener, and after so many seconds end whatever keeps it."""
        serving = self._serving[0]
        await asyncio.wait({serving}, timeout=seconds)
        if not serving.done():
            running = sum(backend.in_flight for backend in self.registry.backends.values())
            log.warning("ending %d requests that still run, %g s after the last one was taken", running, seconds)
        while not serving.done():
            self._end_exchanges()
            await asyncio.wait({serving}, timeout=_ENDED_AGAIN_AFTER)
        await serving

    def _end_exchanges(self) -> None:
        self._pools.stop_exchanges(Failure(Phase.HEAD, "own", "the router is stopping", own=True))

    def state(self) -> dict[str, object]:
        """The JSON of GET /api/state."""
        return self._state.state()

    async def _explain(self, method: str, path: bytes, headers: Headers, body: bytes) -> dict[str, Any]:
        return await self._explainer.explain(method, path, headers, body)

    # Reload

    def ask_for_reload(self) -> None:
        """Reload soon; what becomes of it is told in the log."""
        self._reload_asked.set()

    async def reload(self) -> Changes:
        """Read the configuration again and put it in force as a whole. Raises ReloadError, and then nothing has changed."""
        async with self._reloading:
            self.on_reload(True)
            try:
                changes = await self._put_in_force(
                    *await read_again(self._read, lambda: self.stopping, self._certificates)
                )
            except ReloadError as error:
                self._kept.reloads.failed(error)
                self._kept.events.reload_failed(str(error))
                log.error("the configuration of before stays in force: %s", "; ".join(str(error).split("\n")))
                raise
            finally:
                self.on_reload(False)
            self._kept.reloads.succeeded()
            self._kept.events.reloaded(changes)
            log.info("the configuration was reloaded: %s", changes.told() or "the same backends")
            return changes

    async def _put_in_force(self, config: Config, certificates: Certificates) -> Changes:
        """All of a configuration in one step: whatever can fail is done before the first change. Raises ReloadError."""
        members = self._kept.members
        unlisted = {spec.name for spec in self.config.specs} - {spec.name for spec in config.specs}
        planned = self._membership.plan(config, unlisted)
        ring = await self._membership.ring(planned.specs)
        if self.stopping:
            raise ReloadError("the router is stopping", refused=True)
        keys = needs_restart(self.config, config)
        if keys:
            raise ReloadError(
                f"{', '.join(keys)} cannot change while the router runs: restart it, or set the old values again",
                refused=True,
            )
        kept, before, clock = self._kept, self.config, self._clock
        pools = self._membership.pools(config, planned, certificates.backends)
        budget = kept.budget if config.retry == before.retry else settings.budget(config, clock)
        made = assembly.make(config, replace(kept, budget=budget), self._pools, self._hooks)
        kept.budget = budget
        self.config, self._certificates = config, certificates
        self._http.follow(certificates.backends)
        renew(self._data_tls, certificates.data)
        renew(self._admin_tls, certificates.admin)
        changes = self._membership.enter(config, planned, ring, pools)
        kept.queue.configure(length=config.queue.length, timeout=config.queue.timeout)
        if config.log != before.log:
            if self._access_log is not None:
                self._access_log.close()
            self._access_log = settings.access_log(config, self._log_stream)
        self._take(made)
        kept.queue.wake_all()
        settings.warn(config)
        return changes._replace(by_hand=tuple(members.by_hand), removed_by_hand=tuple(members.hidden.values()))

    async def _reload_for_admin(self) -> dict[str, object]:
        return {name: list(names) for name, names in (await self.reload())._asdict().items()}

    async def _reload_when_asked(self) -> None:
        while True:
            await self._reload_asked.wait()
            self._reload_asked.clear()
            with suppress(ReloadError):  # which has been told
                await self.reload()

    # Beside requests

    def _settle(self, record: RequestRecord) -> None:
        self.counters.add(record)
        self._kept.events.settle(record)
        if self._kept.spans is not None:
            self._kept.spans.settle(record)
        if self._access_log is not None:
            self._access_log.write(record)
        if self.config.truth.enabled and (answered := record.answered()) is not None:
            self._kept.ledger.settle(record.prompt, answered)

    def _backend_failed(self, name: str, failure: Failure) -> None:
        if self.registry.failed(name, failure, self._clock()):
            log.warning("backend %s is %s: %s", name, self.registry.backends[name].state, failure.detail)
            self._kept.events.watch(self.registry.backends.values())
        if not failure.stale and failure.phase is not Phase.STREAM:
            self._prober.nudge(name)
