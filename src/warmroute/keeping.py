"""What is known of backends and conversations, and what runs: made once, and outliving every reload."""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from . import settings
from .config import Config
from .core.retry import Budget
from .core.split import BLOCK
from .discovery.members import Members
from .fleet.heard import HeardResidents
from .fleet.moves import move_cause
from .fleet.registry import Registry
from .fleet.residents import Residents
from .observe.counters import RequestCounters
from .observe.events import Events
from .observe.reloads import Reloads
from .observe.spans import Spans, spans
from .observe.store_view import SharedView
from .observe.work_metrics import Work
from .pins import codec
from .pins.memory import PinTable
from .pins.shared import SharedPins
from .proxy.queue import Queue
from .proxy.tenants import Tenants
from .recognition import conversations as history
from .recognition.heads import Heads
from .recognition.memory import RESPONSES_KEPT, Memory, remember
from .recognition.owners import Owners
from .recognition.sharing import SharedMemory
from .truth.conversations import Conversations
from .truth.ledger import Ledger

Clock = Callable[[], float]


@dataclass(slots=True)
class Kept:
    """What is known and what runs, whatever the configuration becomes."""

    clock: Clock
    secret: bytes
    salt_key: bytes
    started: float
    tenants: Tenants
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
    figures: SharedView | None
    work: Work

    @property
    def heard(self) -> HeardResidents | None:
        """The caches, where this process is the one that hears of them."""
        return self.residents if isinstance(self.residents, HeardResidents) else None

    def forget(self, backend: str) -> None:
        """A backend is gone for good: what was counted of it goes too."""
        self.counters.forget(backend)
        self.ledger.tally.forget(backend)
        self.ledger.warmth.pop(backend, None)


def keep(
    config: Config,
    store_secret: bytes | None,
    clock: Clock,
    *,
    table: Callable[..., PinTable] = PinTable,
    fleet: Callable[..., Registry] = Registry,
    caches: Callable[[bytes, int], Residents] = HeardResidents,
    shares: bool = True,
) -> Kept:
    """What is known of backends and conversations: nothing yet. `table`, `fleet` and `caches` make what holds it.

    Unless it `shares`, this process leaves the store of the configuration to others.
    """
    affinity = config.affinity
    pins = table(
        clock,
        idle_expiry=affinity.idle_expiry,
        unproven_expiry=affinity.unproven_expiry,
        limit=affinity.max_sessions,
    )
    registry = fleet(config.specs, pins, settings.thresholds(config), clock(), settings.outlier_limits(config))
    secret = secrets.token_bytes(32)
    # Routers that share pins call a session by the same name, so that each understands what backends tell of it.
    naming = codec.key_of(store_secret, config.store.prefix) if config.store.redis is not None else secret
    residents = caches(naming, config.kv_events.max_blocks) if config.kv_events.enabled else None
    shared = _share(config, pins, registry, store_secret, clock) if shares else None
    queue = Queue(length=config.queue.length, timeout=config.queue.timeout)
    return Kept(
        clock=clock,
        secret=secret,
        salt_key=codec.key_of(store_secret, config.store.prefix),
        started=clock(),
        tenants=Tenants(clock, expiry=affinity.idle_expiry, unproven=affinity.unproven_expiry),
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
        figures=shared,
        work=Work(tasks=lambda: len(asyncio.all_tasks()), waiting=lambda: queue.waiting),
        queue=queue,
    )


def _ledger(config: Config, registry: Registry, residents: Residents | None) -> Ledger:
    return Ledger(
        Conversations(config.truth.max_conversations),
        move_cause=partial(move_cause, registry),
        process_of=lambda name: state.processes if (state := registry.backends.get(name)) else 0,
        block_of=lambda name: (state.scrape.block_size if (state := registry.backends.get(name)) else None) or BLOCK,
        evicted=residents.evicted if residents is not None else None,
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
