"""From a Config to the parts of a router: what is made once and outlives every reload, and what each one makes anew."""

import asyncio
import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TextIO

import httpx

from . import settings
from .config import Config
from .core.identity import CONTENT, ladder
from .core.model import Failure
from .core.retry import Budget
from .core.split import BLOCK
from .discovery.members import Members
from .fleet.broadcast import Broadcaster
from .fleet.hearing import hear
from .fleet.moves import move_cause
from .fleet.prober import Prober
from .fleet.registry import BackendState, Registry
from .fleet.residents import Residents
from .fleet.scraper import Scraper, series_filter
from .observe.counters import RequestCounters
from .observe.events import Events
from .observe.log import AccessLog, as_json, as_text
from .observe.metrics import MetricsPage, RouterCollector, Work
from .observe.record import RequestRecord
from .observe.reloads import Reloads
from .observe.spans import Spans, spans
from .observe.state import StateView
from .observe.truth_view import TruthView
from .observe.writer import BackgroundWriter
from .pins import codec
from .pins.memory import PinTable
from .pins.shared import SharedPins
from .proxy.explain import Explainer
from .proxy.handler import Handler
from .proxy.keys import Keys
from .proxy.placement import Placement
from .proxy.pools import Pools
from .proxy.queue import Queue
from .proxy.request import decoded, reader_for
from .proxy.resume import Resumer
from .recognition import conversations as history
from .recognition.heads import Heads
from .recognition.memory import RESPONSES_KEPT, Memory, remember
from .recognition.owners import Owners
from .recognition.recognizer import Recognizer
from .recognition.sharing import SharedMemory
from .truth.conversations import Conversations
from .truth.ledger import Ledger
from .web import admin
from .web.access import Access, App

if TYPE_CHECKING:
    from .fleet.kv_events import KvEvents

Clock = Callable[[], float]


@dataclass(slots=True)
class Kept:
    """What is known and what runs, whatever the configuration becomes."""

    clock: Clock
    secret: bytes
    started: float
    pins: PinTable
    registry: Registry
    shared: SharedPins | None
    memory: Memory
    counters: RequestCounters
    reloads: Reloads
    budget: Budget
    queue: Queue
    residents: Residents | None
    spans: Spans | None
    ledger: Ledger
    events: Events
    members: Members

    def forget(self, backend: str) -> None:
        """A backend is gone for good: what was counted of it goes too."""
        self.counters.forget(backend)
        self.ledger.tally.forget(backend)
        self.ledger.warmth.pop(backend, None)


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the parts tell and ask the router."""

    settle: Callable[[RequestRecord], None]
    backend_failed: Callable[[str, Failure], None]
    stopping: Callable[[], bool]
    reload: Callable[[], Awaitable[dict[str, object]]]
    add_backend: Callable[[dict[str, object]], Awaitable[dict[str, object]]]
    remove_backend: Callable[[str, bool], Awaitable[dict[str, object]]]
    broadcaster: Broadcaster


@dataclass(frozen=True, slots=True)
class Made:
    """What each configuration makes anew over what is kept."""

    recognizer: Recognizer
    handler: Handler
    keys: Keys | None
    state: StateView
    admin_app: App
    access: Access


def keep(config: Config, store_secret: bytes | None, clock: Clock) -> Kept:
    """What is known of backends and conversations: nothing yet."""
    affinity = config.affinity
    pins = PinTable(
        clock,
        idle_expiry=affinity.idle_expiry,
        unproven_expiry=affinity.unproven_expiry,
        limit=affinity.max_sessions,
    )
    registry = Registry(config.specs, pins, settings.thresholds(config), clock(), settings.outlier_limits(config))
    secret = secrets.token_bytes(32)
    # Routers that share pins call a session by the same name, so that each understands what backends tell of it.
    naming = codec.key_of(store_secret, config.store.prefix) if config.store.redis is not None else secret
    residents = Residents(naming, config.kv_events.max_blocks) if config.kv_events.enabled else None
    shared = _share(config, pins, registry, store_secret, clock)
    return Kept(
        clock=clock,
        secret=secret,
        started=clock(),
        pins=pins,
        registry=registry,
        shared=shared,
        memory=remember(
            clock,
            idle_expiry=affinity.idle_expiry,
            entries=affinity.max_history,
            sessions=affinity.max_sessions,
            backends=len(config.specs),
            share=partial(_tell_others, config, shared, clock) if shared is not None else None,
        ),
        counters=RequestCounters(),
        reloads=Reloads(),
        budget=settings.budget(config, clock),
        ledger=_ledger(config, registry, residents),
        residents=residents,
        spans=spans(config.tracing.endpoint, config.tracing.share),
        events=Events(partial(move_cause, registry), time.time),
        members=Members(),
        queue=Queue(length=config.queue.length, timeout=config.queue.timeout),
    )


def _ledger(config: Config, registry: Registry, residents: Residents | None) -> Ledger:
    return Ledger(
        Conversations(config.truth.max_conversations),
        move_cause=partial(move_cause, registry),
        process_of=lambda name: state.processes if (state := registry.backends.get(name)) else 0,
        block_of=lambda name: (state.scrape.block_size if (state := registry.backends.get(name)) else None) or BLOCK,
        evicted=residents.evicted if residents is not None else lambda *_: None,
    )


def _share(
    config: Config, pins: PinTable, registry: Registry, store_secret: bytes | None, clock: Clock
) -> SharedPins | None:
    store = config.store
    if store.redis is None:
        return None
    # Loaded only here, since loading it takes a fifth of the whole start.
    from .pins.redis import share

    return share(
        pins,
        store.redis,
        codec.Naming(store.prefix, codec.key_of(store_secret, store.prefix)),
        backends=registry.backends,
        clock=clock,
        identity=secrets.token_bytes(codec.SENDER_SIZE),
        idle_expiry=config.affinity.idle_expiry,
        deadline=store.deadline,
    )


def _tell_others(
    config: Config, shared: SharedPins, clock: Clock, conversations: history.Conversations, heads: Heads, owners: Owners
) -> SharedMemory:
    """What routers know of conversations without an id, through the store that has their pins, and for as long."""
    idle_expiry = config.affinity.idle_expiry
    return SharedMemory(
        conversations,
        heads,
        owners,
        notes=shared.notes(lifetime=idle_expiry * 1.25, responses=RESPONSES_KEPT),
        backends=shared.backends,
        sources=frozenset(config.affinity.key_sources),
        ignored=shared.ignored,
        clock=clock,
        renew_after=idle_expiry / 2,
        limit=config.affinity.max_history,
    )


def watch(config: Config, kept: Kept, http: httpx.AsyncClient) -> tuple[Prober, Scraper, "KvEvents | None"]:
    """What looks at the backends, and hears them where that is wanted."""
    keep_series = series_filter(config.metrics.vllm_series)
    read, wake_all = partial(_read, kept.ledger), kept.queue.wake_all
    scraper = Scraper(kept.registry, http, settings.scrape_times(config), kept.clock, keep_series, read, wake_all)
    hearing = hear(kept.registry, http, kept.residents)

    def came_up(name: str) -> None:
        scraper.nudge(name)
        wake_all()  # those who wait for a full one may go there
        if hearing is not None:
            hearing.nudge(name)

    prober = Prober(kept.registry, http, settings.probe_times(config), kept.clock, came_up)
    return prober, scraper, hearing


def _read(ledger: Ledger, state: BackendState) -> None:
    if state.scrape.reloaded is not None:
        ledger.tally.reloaded(state.name, state.scrape.reloaded)


def make(config: Config, kept: Kept, pools: Pools, hooks: Hooks) -> Made:
    """The data path and the admin pages that this configuration wants."""
    sources = ladder(config.affinity.key_sources)
    recognizer = Recognizer(
        kept.memory,
        kept.pins,
        sources=sources,
        by_content=CONTENT in config.affinity.key_sources,
        decode=decoded,
        nonce=lambda: secrets.token_bytes(16),
        known_as=kept.shared.named if kept.shared else None,
    )
    placement = Placement(kept.registry, kept.pins, settings.bounds(config), kept.shared, kept.residents)
    reader = reader_for(config.affinity.key_sources)
    state = _state(config, kept, hooks)
    token = config.listen.admin_token.get_secret_value() if config.listen.admin_token is not None else None
    return Made(
        access=Access(token, config.listen.admin_open_metrics, time.time),
        recognizer=recognizer,
        keys=Keys(key.get_secret_value() for key in config.listen.keys) if config.listen.keys else None,
        handler=_handler(config, kept, pools, hooks, recognizer, placement),
        state=state,
        admin_app=admin.build(
            state=state,
            metrics=_metrics(config, kept),
            registry=kept.registry,
            explainer=Explainer(recognizer, placement, reader, sources, kept.secret, kept.residents),
            stopping=hooks.stopping,
            clock=kept.clock,
            drain_deadline=config.drain.deadline,
            reload=hooks.reload,
            add_backend=hooks.add_backend,
            remove_backend=hooks.remove_backend,
            broadcaster=hooks.broadcaster,
            events=kept.events,
        ),
    )


def _handler(
    config: Config, kept: Kept, pools: Pools, hooks: Hooks, recognizer: Recognizer, placement: Placement
) -> Handler:
    forward = settings.forward(config)
    return Handler(
        registry=kept.registry,
        placement=placement,
        pools=pools,
        settle=hooks.settle,
        backend_failed=hooks.backend_failed,
        clock=kept.clock,
        budget=kept.budget,
        queue=kept.queue,
        secret=kept.secret,
        recognizer=recognizer,
        ledger=kept.ledger if config.truth.enabled else None,
        residents=kept.residents,
        hop=kept.spans.hop if kept.spans is not None else None,
        asks=settings.asks(config),
        resumer=Resumer(
            registry=kept.registry,
            placement=placement,
            pools=pools,
            backend_failed=hooks.backend_failed,
            freed=kept.queue.freed,
            drop=forward.drop,
            enabled=config.resume.enabled,
        ),
        reader=reader_for(config.affinity.key_sources, forward.owned.names),
        forward=forward,
        body_limit=config.limits.body,
        response_headers=config.response_headers,
    )


def _state(config: Config, kept: Kept, hooks: Hooks) -> StateView:
    return StateView(
        registry=kept.registry,
        pins=kept.pins,
        counters=kept.counters,
        clock=kept.clock,
        secret=kept.secret,
        stale_after=config.metrics.stale_after,
        started=kept.started,
        stopping=hooks.stopping,
        memory=kept.memory,
        reloads=kept.reloads,
        store=kept.shared.store if kept.shared else None,
        residents=kept.residents,
        is_open=config.listen.is_open,
        members=kept.members,
        truth=TruthView(kept.ledger, kept.registry, kept.clock, kept.secret) if config.truth.enabled else None,
    )


def _metrics(config: Config, kept: Kept) -> MetricsPage:
    stale_after = config.metrics.stale_after
    collector = RouterCollector(
        kept.counters,
        kept.registry,
        kept.pins,
        kept.clock,
        stale_after,
        kept.memory,
        kept.shared,
        kept.reloads,
        Work(tasks=lambda: len(asyncio.all_tasks()), waiting=lambda: kept.queue.waiting),
        kept.ledger if config.truth.enabled else None,
        kept.residents,
        kept.members,
    )
    return MetricsPage(collector, kept.registry, kept.clock, stale_after)


def access_log(config: Config, stream: TextIO | BackgroundWriter) -> AccessLog | None:
    """What writes a line for each request; None if nothing should."""
    choice = config.log.format
    if choice == "off":
        return None
    if choice == "auto":
        choice = "text" if sys.stderr.isatty() else "json"
    return AccessLog(stream, as_text if choice == "text" else as_json)
