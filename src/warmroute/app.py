"""The composition root: a Config becomes a running router. The only place that constructs."""

import asyncio
import logging
import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TextIO

import httpx
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from . import listeners
from .config import Config, ConfigError, read_secret
from .core.health import Thresholds
from .core.identity import CONTENT, ladder
from .core.model import Failure, Phase
from .core.outlier import OutlierLimits
from .core.policy import Bounds
from .core.retry import Budget
from .fleet.prober import Prober, ProbeTimes
from .fleet.registry import Registry
from .fleet.scraper import Scraper, ScrapeTimes, series_filter
from .listeners import StartError
from .observe.counters import RequestCounters
from .observe.log import AccessLog, as_json, as_text
from .observe.metrics import MetricsPage, RouterCollector
from .observe.record import RequestRecord
from .observe.state import StateView
from .observe.writer import BackgroundWriter
from .pins import codec
from .pins.memory import PinTable
from .pins.shared import SharedPins
from .proxy.data import DataApp
from .proxy.explain import Explainer
from .proxy.handler import Handler
from .proxy.placement import Placement
from .proxy.pool import Pool
from .proxy.request import decoded, reader_for
from .proxy.resume import Resumer
from .proxy.server import DataProtocol
from .recognition.memory import remember
from .recognition.recognizer import Recognizer
from .web import admin

log = logging.getLogger("warmroute")

_STORE_AT_START = 1.0
"""Seconds that a start waits for the shared store, so that sessions which live already are found from the first request."""


class Router:
    """Two listeners and the loops beside them, for an `async with` block."""

    def __init__(self, config: Config, log_stream: TextIO | BackgroundWriter = sys.stderr) -> None:
        self.config = config
        self._log_stream = log_stream
        self.stopping = False
        self._clock = time.monotonic
        self._secret = secrets.token_bytes(32)
        self._tasks: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"<Router {len(self.config.backends)} backends{' stopping' if self.stopping else ''}>"

    async def __aenter__(self) -> Self:
        config = self.config
        listen = config.listen
        try:
            secret = read_secret(config.store)
        except ConfigError as error:
            raise StartError(str(error)) from None
        data_socket = listeners.listen(listen.host, listen.port)
        try:
            admin_socket = listeners.listen(listen.admin_host, listen.admin_port)
        except StartError:
            data_socket.close()
            raise
        self._build(secret)
        loops: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("health checks", self._prober.run),
            ("metrics reader", self._scraper.run),
            ("session expiry", self._expire),
        ]
        shared = self.shared
        if shared is not None:
            loops.append(("shared store", lambda: shared.store.run(shared)))
        self._tasks = [asyncio.ensure_future(self._keep(name, run)) for name, run in loops]
        if shared is not None:
            await shared.store.tried(_STORE_AT_START)
        self._servers = (
            listeners.server(self._data_app, DataProtocol, config.limits.shutdown),
            listeners.server(self._admin_app, HttpToolsProtocol, 1.0),
        )
        self._serving = [
            asyncio.ensure_future(server.serve(sockets=[sock]))
            for server, sock in zip(self._servers, (data_socket, admin_socket), strict=True)
        ]
        self.data_url = listeners.url_of(listen.host, data_socket)
        self.admin_url = listeners.url_of(listen.admin_host, admin_socket)
        await asyncio.gather(*(server.ready.wait() for server in self._servers))
        return self

    def _build(self, secret: bytes | None) -> None:
        self._build_memory(secret)
        self._build_fleet()
        self._build_apps()

    def _build_memory(self, secret: bytes | None) -> None:
        """What is known of backends and conversations."""
        config, clock = self.config, self._clock
        affinity, health, outlier = config.affinity, config.health, config.outlier
        self.pins = PinTable(
            clock,
            idle_expiry=affinity.idle_expiry,
            unproven_expiry=affinity.unproven_expiry,
            limit=affinity.max_sessions,
        )
        self.registry = Registry(
            config.specs,
            self.pins,
            Thresholds(health.fall, health.rise),
            clock(),
            OutlierLimits(outlier.failures, outlier.rest, outlier.longest_rest),
        )
        self.shared = self._share(secret)
        self.memory = remember(
            clock,
            idle_expiry=affinity.idle_expiry,
            entries=affinity.max_history,
            sessions=affinity.max_sessions,
            backends=len(config.specs),
        )
        self.recognizer = Recognizer(
            self.memory,
            self.pins,
            sources=ladder(affinity.key_sources),
            by_content=CONTENT in affinity.key_sources,
            decode=decoded,
            nonce=lambda: secrets.token_bytes(16),
            known_as=self.shared.named if self.shared else None,
        )
        self.counters = RequestCounters()

    def _build_fleet(self) -> None:
        """What talks with the backends."""
        config, clock, health, metrics = self.config, self._clock, self.config.health, self.config.metrics
        self._http = httpx.AsyncClient(
            trust_env=False, follow_redirects=False, timeout=None, limits=httpx.Limits(max_keepalive_connections=0)
        )
        self._scraper = Scraper(
            self.registry,
            self._http,
            ScrapeTimes(metrics.scrape_interval, metrics.scrape_timeout),
            clock,
            series_filter(metrics.vllm_series),
        )
        self._prober = Prober(
            self.registry,
            self._http,
            ProbeTimes(health.interval, health.unsettled_interval, health.timeout),
            clock,
            came_up=self._scraper.nudge,
        )
        self._pools = {
            spec.name: Pool(
                spec,
                asyncio.get_running_loop(),
                connect_timeout=config.upstream.connect_timeout,
                keepalive_expiry=config.upstream.keepalive_expiry,
                clock=clock,
            )
            for spec in config.specs
        }
        self._access_log = _access_log(config, self._log_stream)
        if isinstance(self._log_stream, BackgroundWriter):
            writer = self._log_stream
            self.counters.log_lines_dropped = lambda: writer.dropped

    def _share(self, secret: bytes | None) -> SharedPins | None:
        store = self.config.store
        if store.redis is None:
            return None
        # Loaded only here, since loading it takes a fifth of the whole start.
        from .pins.redis import share

        return share(
            self.pins,
            store.redis,
            codec.Naming(store.prefix, codec.key_of(secret, store.prefix)),
            backends=self.registry.backends,
            clock=self._clock,
            identity=secrets.token_bytes(codec.SENDER_SIZE),
            idle_expiry=self.config.affinity.idle_expiry,
            deadline=store.deadline,
        )

    def _build_apps(self) -> None:
        config, clock = self.config, self._clock
        affinity = config.affinity
        bounds = Bounds(affinity.session_bound, affinity.even_sessions, affinity.in_flight_bound)
        placement = Placement(self.registry, self.pins, bounds, self.shared)
        reader = reader_for(affinity.key_sources)
        handler = Handler(
            registry=self.registry,
            placement=placement,
            pools=self._pools,
            settle=self._settle,
            backend_failed=self._backend_failed,
            clock=clock,
            budget=Budget(clock, share=config.retry.share, least=config.retry.least),
            secret=self._secret,
            recognizer=self.recognizer,
            resumer=Resumer(
                registry=self.registry,
                placement=placement,
                pools=self._pools,
                backend_failed=self._backend_failed,
                enabled=config.resume.enabled,
                body_limit=config.resume.max_body,
            ),
            reader=reader,
            body_limit=config.limits.body,
            response_headers=config.response_headers,
        )
        self._data_app = DataApp(handler, self.registry, lambda: self.stopping, self._internal_error)
        stale_after = config.metrics.stale_after
        self._state = StateView(
            registry=self.registry,
            pins=self.pins,
            counters=self.counters,
            clock=clock,
            secret=self._secret,
            stale_after=stale_after,
            started=clock(),
            stopping=lambda: self.stopping,
            memory=self.memory,
            store=self.shared.store if self.shared else None,
        )
        collector = RouterCollector(
            self.counters, self.registry, self.pins, clock, stale_after, self.memory, self.shared
        )
        self._admin_app = admin.build(
            state=self._state,
            metrics=MetricsPage(collector, self.registry, clock, stale_after),
            registry=self.registry,
            explainer=Explainer(self.recognizer, placement, reader, ladder(affinity.key_sources), self._secret),
            stopping=lambda: self.stopping,
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop: no new connections, running requests end within `limits.shutdown`, then everything is closed."""
        self.stopping = True
        data_server, admin_server = self._servers
        data_server.should_exit = True
        await asyncio.wait({self._serving[0]}, timeout=self.config.limits.shutdown)
        self._end_exchanges()
        await self._serving[0]
        admin_server.should_exit = True
        await self._serving[1]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pool in self._pools.values():
            pool.close()
        await self._http.aclose()
        if self._access_log is not None:
            self._access_log.close()

    def hurry(self) -> None:
        """Stop now: end what runs, visibly, and wait for nobody."""
        self._end_exchanges()
        for server in self._servers:
            server.force_exit = True

    def _end_exchanges(self) -> None:
        for pool in self._pools.values():
            pool.stop_exchanges(Failure(Phase.HEAD, "own", "the router is stopping", own=True))

    def state(self) -> dict[str, object]:
        """The JSON of GET /api/state."""
        return self._state.state()

    def _settle(self, record: RequestRecord) -> None:
        self.counters.add(record)
        if self._access_log is not None:
            self._access_log.write(record)

    def _backend_failed(self, name: str, failure: Failure) -> None:
        if self.registry.failed(name, failure, self._clock()):
            log.warning("backend %s is %s: %s", name, self.registry.backends[name].state, failure.detail)
        if not failure.stale and failure.phase is not Phase.STREAM:
            self._prober.nudge(name)

    def _internal_error(self, where: str) -> None:
        self.counters.internal_errors[where] += 1

    async def _keep(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run a loop for ever; a fault in it is told and counted, and it begins again."""
        while True:
            try:
                await run()
            except Exception:
                log.exception("the %s failed and begins again; please report this", name)
                self._internal_error(name)
            await asyncio.sleep(1.0)

    async def _expire(self) -> None:
        while True:
            self.pins.expire()
            self._sweep()
            await asyncio.sleep(1.0)

    def _sweep(self) -> None:
        silence = self.config.outlier.silence
        for name in self.registry.sweep(lambda name: self._pools[name].was_heard(), self._clock(), silence):
            log.warning("backend %s rests: %s", name, self.registry.backends[name].reason)
            detail = f"{name} sent nothing for {silence:.0f} s"
            self._pools[name].stop_exchanges(Failure(Phase.HEAD, "timeout", detail))


def _access_log(config: Config, stream: TextIO | BackgroundWriter) -> AccessLog | None:
    choice = config.log.format
    if choice == "off":
        return None
    if choice == "auto":
        choice = "text" if sys.stderr.isatty() else "json"
    return AccessLog(stream, as_text if choice == "text" else as_json)
