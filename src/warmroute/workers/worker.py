"""One worker: the data path in a process of its own, which does what its supervisor tells and tells it everything."""

import asyncio
import logging
import signal
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from .. import keeping, listeners
from ..app import Router
from ..config import Config, with_certificates
from ..core.model import BackendSpec, Failure
from ..core.wanted import Plan, Wanted
from ..membership import Membership, Watching
from ..observe.record import RequestRecord
from ..recognition.recent import Recent
from ..tuning import quiet_libraries, raise_descriptor_limit, settle_memory
from .caches import CacheView, ToldResidents
from .messages import Channel, Message, open_channel
from .replica import Replica
from .rows import Cell, Head, Rows
from .shares import SharedTenants
from .views import Slots, View
from .voice import SOON, Last, ToldLedger, ToldPins, settled
from .waiting import SharedDoor, SharedQueue

_TOLD_EVERY = 0.5
"""Seconds between two accounts of what this worker holds and has counted."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a worker is told first: everything that it has in common with the others.

    `naming` is the key of the labels by which backends know sessions, `caches` what they are known to hold.
    """

    config: Config
    secret: bytes
    number: int
    workers: int
    specs: tuple[BackendSpec, ...]
    views: tuple[View, ...]
    version: int
    tenants: dict[str, int]
    naming: bytes
    caches: tuple[CacheView, ...]


class Told(Membership):
    """The backends are those that the supervisor names, who has asked all that name some."""

    def __init__(self, specs: tuple[BackendSpec, ...], *of: Any) -> None:
        """`of` is what every membership is made of."""
        self.specs = specs
        super().__init__(*of)

    def plan(self, config: Config, cut: Collection[str] = ()) -> Plan:
        """These and no others; that some of them are emptied their views tell."""
        return Plan(Wanted(self.specs), self.specs, frozenset())


class Worker(Router):
    """A router without an admin listener, whose backends are checked and read by the supervisor."""

    def __init__(self, start: Start, channel: Channel, rows: Rows, sock: socket.socket) -> None:
        super().__init__(start.config)
        self._start = start
        self._channel = channel
        self._rows = rows
        self._sock = sock
        self._slots = Slots()
        self._views = start.views, start.version
        self._counted: Counter[tuple[str, ...]] = Counter()

    def __repr__(self) -> str:
        return f"<Worker {self._start.number}{' stopping' if self.stopping else ''}>"

    def _listen(self) -> None:
        self._sockets = (self._sock,)
        self.data_url = listeners.url_of(self.config.listen.host, self._sock, self._certificates.data is not None)

    def _keep(self, secret: bytes | None) -> keeping.Kept:
        rows, slots, tell = self._rows, self._slots, self._channel.tell
        kept = keeping.keep(
            self.config,
            secret,
            self._clock,
            table=partial(ToldPins, rows, slots, tell),
            fleet=partial(Replica, rows, slots, tell),
            caches=lambda naming, blocks: ToldResidents(self._start.naming, tell),
        )
        affinity, queue, truth = self.config.affinity, self.config.queue, self.config.truth
        last = Recent[Last](self._clock, expiry=affinity.idle_expiry, limit=truth.max_conversations)
        kept.secret = self._start.secret
        kept.tenants = self._tenants = SharedTenants(
            rows, self._start.tenants, self._clock, expiry=affinity.idle_expiry, unproven=affinity.unproven_expiry
        )
        kept.ledger = ToldLedger(tell, self._clock, last, kept.ledger)
        kept.queue = SharedQueue(rows, self._has_place, length=queue.length, timeout=queue.timeout)
        return kept

    def _loops(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        yield "session expiry", self._look_around
        shared = self.shared
        if shared is not None:
            yield "shared store", lambda: shared.store.run(shared)

    def _build(self, secret: bytes | None) -> None:
        super()._build(secret)
        watching = Watching(self._pools, self._prober, self._scraper, None, lambda: self._certificates.backends)
        self._membership: Told = Told(
            self._start.specs, self._kept, watching, lambda: self.config, self._reloading, lambda: self.stopping
        )

    async def _serve(self) -> None:
        self.take_views(*self._views)
        self.take_caches(self._start.caches)
        self._door = SharedDoor(self._rows, self.config.limits, self._clock, self.counters)
        self._admin_tls = None
        await self._serve_on(self._data_server())

    def _has_place(self, backend: str | None) -> bool:
        most = self.config.queue.in_flight
        names = self.registry.backends if backend is None else (backend,)
        return any(self._rows.sum(self._slots.of(name), Cell.IN_FLIGHT) < most for name in names)

    def end_is_near(self) -> None:
        """Not ready from now on, but serving."""
        self._say_the_end_is_near()

    # Beside requests

    def _settle(self, record: RequestRecord) -> None:
        if self._kept.spans is not None:
            self._kept.spans.settle(record)
        self._channel.tell("settled", *settled(record, self._clock()), within=SOON)

    def _backend_failed(self, name: str, failure: Failure) -> None:
        self.registry.failed(name, failure, self._clock())

    async def _look_around(self) -> None:
        while True:
            self.pins.expire()
            self._pools.sweep(self.config.outlier.silence)
            self.tell_figures()
            await asyncio.sleep(_TOLD_EVERY)

    def tell_figures(self) -> None:
        """Tell what this worker holds, and what it has counted since it was last told."""
        for name in self.registry.backends:
            if self._pools.was_heard(name):
                self._rows.add(self._slots.of(name), Cell.HEARD, 1)
        counters, memory, shared = self.counters, self.memory, self.shared
        counts: Counter[tuple[str, ...]] = Counter({("refused",): counters.connections_refused})
        counts["handshakes",] = counters.handshakes_failed
        counts.update({("timeout", what): n for what, n in counters.client_timeouts.items()})
        counts.update({("internal", where): n for where, n in counters.internal_errors.items()})
        counts["internal", "reports"] += self._channel.lost
        counts["memory", "evicted"] = memory.evicted
        counts["memory", "unknown_owners"] = memory.unknown_owners
        if shared is not None:
            counts["adopted",] = shared.adopted
            counts.update({("recalled", of): n for of, n in (memory.recalled or {}).items()})
            for kind in ("errors", "dropped"):
                counts.update({(kind, op): n for op, n in getattr(shared.store, kind).items()})
            counts.update({("ignored", why): n for why, n in shared.ignored.items()})
        new, self._counted = counts - self._counted, counts
        store = None if shared is None else (shared.store.up, shared.store.reason)
        holds = memory.entries(), len(asyncio.all_tasks()), store, dict(memory.guards.told)
        self._channel.tell("figures", dict(new), holds, within=SOON)

    # What the supervisor wants

    def take_views(self, views: tuple[View, ...], version: int) -> None:
        """Take over how the backends are, and say that it was done."""
        self._views = views, version
        registry = self.registry
        assert isinstance(registry, Replica)
        before = self._available()
        over = registry.take(views)
        for name in over:
            self._pools.end_tunnels(name)
        if over or self._available() - before:
            self._kept.queue.wake_all()
        self._rows.own[Head.VERSION] = version

    def take_caches(self, views: Collection[CacheView]) -> None:
        """Take over what has changed in the backends' caches."""
        residents = self._kept.residents
        if isinstance(residents, ToldResidents):
            residents.take(views)

    def _available(self) -> set[str]:
        return {name for name, state in self.registry.backends.items() if state.available}

    async def configure(self, config: Config, specs: tuple[BackendSpec, ...], tenants: dict[str, int]) -> None:
        """Put another configuration in force, which the supervisor has found good."""
        self._tenants.slots = tenants
        self._membership.specs = specs
        await self._put_in_force(*await asyncio.to_thread(with_certificates, lambda: config, self._certificates))
        self.take_views(*self._views)

    async def members(self, specs: tuple[BackendSpec, ...]) -> None:
        """Have these backends, whoever names them."""
        self._membership.specs = specs
        await self._membership.follow()
        self.take_views(*self._views)

    def silent(self, name: str, seconds: float) -> None:
        """End what waits for a backend that sends nothing."""
        if name in self._pools:
            self._pools.end_silent(name, seconds)

    def asleep(self, name: str) -> None:
        """End what waits for a backend that was put to sleep."""
        if name in self._pools:
            self._pools.end_asleep(name)


class Forward(logging.Handler):
    """Lets the supervisor write what this process logs."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if self._loop.is_closed():
            print(text, file=sys.stderr)
            return
        self._loop.call_soon_threadsafe(partial(self._channel.tell, "log", record.name, record.levelno, text))


class Orders:
    """Carries out what the supervisor says, in its order."""

    def __init__(self) -> None:
        self.started: asyncio.Future[Start] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        self._waiting: asyncio.Queue[Message] = asyncio.Queue()

    def take(self, batch: list[Message]) -> None:
        """The channel's messages."""
        for message in batch:
            if message[0] == "start":
                self.started.set_result(message[1])
            elif message[0] == "stop":
                self.ended.set()
            else:
                self._waiting.put_nowait(message)

    async def follow(self, worker: Worker, channel: Channel) -> None:
        """For ever."""
        while True:
            name, *values = await self._waiting.get()
            match name:
                case "views":
                    worker.take_views(*values)
                case "caches":
                    worker.take_caches(*values)
                case "silent":
                    worker.silent(*values)
                case "asleep":
                    worker.asleep(*values)
                case "members":
                    await worker.members(*values)
                case "end_is_near":
                    worker.end_is_near()
                case "hurry":
                    worker.hurry()
                case "explain":
                    number, *request = values
                    channel.tell("explained", number, await worker._explain(*request))
                case "configure":
                    await worker.configure(*values)


async def run(control: socket.socket, data: socket.socket, rows_fd: int) -> None:
    """Until the supervisor says so, or is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # what they mean is the supervisor's to say, who gets them too
    raise_descriptor_limit()
    quiet_libraries()
    orders = Orders()
    channel = await open_channel(control, orders.take)
    root = logging.getLogger()
    root.handlers[:] = [Forward(channel)]
    root.setLevel(logging.INFO)  # the supervisor leaves out what it would not write of its own
    start = await orders.started
    rows = Rows(rows_fd, start.workers, start.number)
    channel.closed.add_done_callback(lambda _: orders.ended.set())
    ended = asyncio.ensure_future(orders.ended.wait())
    worker = Worker(start, channel, rows, data)
    try:
        async with worker:
            following = asyncio.ensure_future(orders.follow(worker, channel))
            channel.tell("ready")
            settle_memory()
            await asyncio.wait({following, ended}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
        following.cancel()
        worker.tell_figures()
    except listeners.StartError as error:
        print(f"warmroute: a worker cannot start: {error}", file=sys.stderr)
    await channel.close()
