"""From a Config to what each one makes anew over what is kept: the data path and the admin pages."""

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import httpx

from . import settings
from .config import Config
from .core.headers import Headers
from .core.identity import CONTENT, ladder
from .core.model import Failure
from .fleet.broadcast import Broadcaster
from .fleet.hearing import hear
from .fleet.prober import Prober
from .fleet.registry import BackendState
from .fleet.scraper import Scraper, series_filter
from .keeping import Kept
from .observe.metrics import MetricsPage, RouterCollector
from .observe.record import RequestRecord
from .observe.state import StateView
from .observe.truth_view import TruthView
from .proxy.explain import Explainer
from .proxy.handler import Handler
from .proxy.intake import Intake
from .proxy.isolation import Isolation
from .proxy.keys import Keys
from .proxy.placement import Placement
from .proxy.pools import Pools
from .proxy.request import decoded, reader_for
from .proxy.resume import Resumer
from .proxy.tenants import DEFAULT
from .recognition.recognizer import Recognizer
from .truth.ledger import Ledger
from .web import admin
from .web.access import Access, App
from .web.admin import Explain

if TYPE_CHECKING:
    from .fleet.kv_events import KvEvents

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the parts tell and ask the router."""

    settle: Callable[[RequestRecord], None]
    backend_failed: Callable[[str, Failure], None]
    stopping: Callable[[], bool]
    reload: Callable[[], Awaitable[dict[str, object]]]
    explain: Explain
    add_backend: Callable[[dict[str, object]], Awaitable[dict[str, object]]]
    remove_backend: Callable[[str, bool], Awaitable[dict[str, object]]]
    broadcaster: Broadcaster


@dataclass(frozen=True, slots=True)
class Made:
    """What each configuration makes anew over what is kept."""

    recognizer: Recognizer
    handler: Handler
    keys: Keys | None
    explainer: Explainer
    state: StateView
    admin_app: App
    access: Access


def watch(config: Config, kept: Kept, http: httpx.AsyncClient) -> tuple[Prober, Scraper, "KvEvents | None"]:
    """What looks at the backends, and hears them where that is wanted."""
    keep_series = series_filter(config.metrics.vllm_series)
    read, wake_all = partial(_read, kept.ledger), kept.queue.wake_all
    scraper = Scraper(kept.registry, http, settings.scrape_times(config), kept.clock, keep_series, read, wake_all)
    hearing = hear(kept.registry, http, kept.heard)

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
    keys = settings.keys(config)

    def theirs(headers: Headers) -> str:
        return kept.tenants.get((keys.tenant(headers) if keys is not None else None) or DEFAULT).name

    token = config.listen.admin_token.get_secret_value() if config.listen.admin_token is not None else None
    return Made(
        access=Access(token, config.listen.admin_open_metrics, time.time),
        recognizer=recognizer,
        keys=keys,
        handler=_handler(config, kept, pools, hooks, recognizer, placement),
        explainer=Explainer(recognizer, placement, reader, sources, kept.secret, theirs, kept.residents),
        state=state,
        admin_app=admin.build(
            state=state,
            metrics=_metrics(config, kept),
            registry=kept.registry,
            explain=hooks.explain,
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
        intake=Intake(
            recognizer=recognizer,
            placement=placement,
            reader=reader_for(config.affinity.key_sources, forward.owned.names),
            owned=forward.owned,
            isolation=Isolation(config.isolation.cache_salt, kept.salt_key),
            asks=settings.asks(config),
        ),
        resumer=Resumer(
            registry=kept.registry,
            placement=placement,
            pools=pools,
            backend_failed=hooks.backend_failed,
            freed=kept.queue.freed,
            drop=forward.drop,
            enabled=config.resume.enabled,
        ),
        drop=forward.drop,
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
        store=kept.figures.store if kept.figures else None,
        residents=kept.residents,
        is_open=config.listen.is_open,
        members=kept.members,
        workers=kept.work.workers,
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
        kept.figures,
        kept.reloads,
        kept.work,
        kept.ledger if config.truth.enabled else None,
        kept.heard,
        kept.members,
    )
    return MetricsPage(collector, kept.registry, kept.clock, stale_after)
