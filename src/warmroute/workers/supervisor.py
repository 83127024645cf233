"""The router whose data port has several processes: it does all that is done once, and shows what all of them do."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import fields
from typing import Any

from .. import keeping, listeners, settings
from ..app import Router
from ..config import Certificates, Config
from ..core.headers import Headers
from ..core.model import BackendSpec
from ..fleet.changes import Changes
from ..housekeeping import Housekeeping, keep
from ..listeners import StartError
from ..observe.work_metrics import Work, Workers
from ..recognition.memory import Memory
from .caches import CacheTeller
from .crew import Crew
from .figures import Figures, SummedMemory
from .intake import Intake
from .messages import Message
from .order import InOrder
from .rows import Head, Rows, shared_file
from .shown import FarConnections, FreshAdmin, Shown
from .sockets import listen_for
from .valkey import EmbeddedValkey
from .views import View
from .voice import IN_ORDER
from .worker import Start

log = logging.getLogger("warmroute.workers")

_LOOK = 0.05
"""Seconds between two looks for what workers should know of the backends; what they need at once is told at once."""
_TAKEN, _STEP = 2.0, 0.002
"""Seconds in which all workers must have taken a change over before whoever made it gets an answer; and between two looks."""
_EXPLAIN = 2.0
"""Seconds in which workers must say what they know of a request."""
_OWN_STORE = 0.25
"""Seconds that a request waits for the embedded store: it is near, and late only where the machine has too much to do."""


class Supervisor(Router):
    """For an `async with` block, as every router; requests are served by `listen.workers` processes meanwhile."""

    _crew: Crew | None = None
    _valkey: EmbeddedValkey | None = None
    _specs: tuple[BackendSpec, ...] = ()
    _views: tuple[View, ...] = ()
    _version = 0
    _lost = 0

    def _listen(self) -> None:
        listen = self.config.listen
        sockets = listen_for(listen.host, listen.port, listen.workers)
        admin_socket = listeners.listen_too(sockets, listen.admin_host, listen.admin_port)
        self._data_sockets, self._sockets = sockets, (admin_socket,)
        self.data_url = listeners.url_of(listen.host, sockets[0], self._certificates.data is not None)
        self.admin_url = listeners.url_of(listen.admin_host, admin_socket, self._certificates.admin is not None)

    def _keep(self, secret: bytes | None) -> keeping.Kept:
        self._rows_fd = shared_file(self.config.listen.workers)
        self._rows = rows = Rows(self._rows_fd, self.config.listen.workers, 0)
        kept = keeping.keep(self.config, secret, self._clock, shares=False)  # the workers ask the store
        self._figures = figures = Figures(kept.counters)
        memory = {field.name: getattr(kept.memory, field.name) for field in fields(Memory)}
        kept.memory = SummedMemory(**memory, figures=figures)
        kept.figures = figures.shared
        kept.work = Work(
            tasks=lambda: figures.tasks(len(asyncio.all_tasks())),
            waiting=lambda: rows.head(Head.WAITING),
            workers=self._workers,
        )
        return kept

    def _build(self, secret: bytes | None) -> None:
        super()._build(secret)
        kept = self._kept
        self._caches = CacheTeller(kept.heard, self._tell) if kept.heard is not None else None
        self._shown = Shown(kept.registry, kept.pins, self._rows)
        self._housekeeping = Housekeeping(
            pins=kept.pins,
            registry=kept.registry,
            pools=FarConnections(self._shown, self._pools, lambda: self._crew),
            queue=kept.queue,
            events=kept.events,
            clock=self._clock,
            silence=lambda: self.config.outlier.silence,
            forget=kept.forget,
        )
        self._intake = Intake(
            pins=kept.pins,
            rows=self._rows,
            ledger=kept.ledger,
            settle=self._settle,
            backend_failed=self._backend_failed,
            succeeded=self._succeeded,
        )
        self._order = InOrder(self._give, self._clock)
        self._admin_app = FreshAdmin(self._admin_app.access, self._admin_app.inner, self._shown.refresh, self.agreed)

    def _loops(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        yield from super()._loops()
        yield "word to the workers", self._watch_over
        if self._caches is not None:
            yield "word of caches to the workers", self._caches.run

    async def _serve(self) -> None:
        try:
            if self.config.store.redis is None:
                self._valkey = valkey = EmbeddedValkey()
                await valkey.start()
                self._store_keeper = self._beside("store of pins", valkey.run)
            self._crew = Crew(
                self._data_sockets,
                self._rows_fd,
                take=self._take_batch,
                start_of=self._start_of,
                died=self._worker_died,
                clock=self._clock,
            )
            self._publish()
            await self._crew.start()
            self._beside("watch over the workers", self._crew.watch)
        except (StartError, OSError) as error:
            await self._give_up()
            raise StartError(str(error)) from None
        self._data_tls = None
        await self._serve_on(self._admin_server())

    def _beside(self, name: str, run: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(keep(name, run, self.counters.internal_error))
        self._tasks.append(task)
        return task

    async def _give_up(self) -> None:
        """It cannot start: nothing stays."""
        for sock in (*self._data_sockets, *self._sockets):
            sock.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._crew is not None:
            await self._crew.stop(0.0)
        os.close(self._rows_fd)
        if self._valkey is not None:
            await self._valkey.close()
        await self._http.aclose()

    async def _end_serving(self) -> None:
        for sock in self._data_sockets:
            sock.close()
        assert self._crew is not None
        await self._crew.stop(self.config.limits.shutdown)
        self._order.give_all()
        for server in self._servers:
            server.should_exit = True
        await asyncio.gather(*self._serving)
        os.close(self._rows_fd)
        if self._valkey is not None:
            self._store_keeper.cancel()
            await self._valkey.close()

    def _say_the_end_is_near(self) -> None:
        self.stopping = True
        if self._crew is not None:
            self._crew.tell("end_is_near")

    def hurry(self) -> None:
        """Stop now: end what runs, visibly, and wait for nobody."""
        self._hurried.set()
        if self._crew is not None:
            self._crew.tell("hurry")
        for server in self._servers:
            server.force_exit = True

    # The workers

    def _workers(self) -> Workers:
        crew = self._crew
        wanted, restarts = self.config.listen.workers, crew.restarts if crew else 0
        return Workers(wanted, crew.serving if crew else 0, restarts, self._lost)

    def _start_of(self, number: int) -> Start:
        kept, config, caches = self._kept, self._for_workers(self.config), self._caches
        return Start(
            config=config,
            secret=kept.secret,
            number=number,
            workers=config.listen.workers,
            specs=self._specs,
            views=self._views,
            version=self._version,
            tenants=self._tenants(),
            naming=kept.residents.key if kept.residents is not None else b"",
            caches=caches.everything() if caches is not None else (),
        )

    def _tenants(self) -> dict[str, int]:
        return self._shown.tenants(settings.tenants(self.config))

    def _for_workers(self, config: Config) -> Config:
        """A configuration with the store that the workers share where it names none."""
        if self._valkey is None:
            return config
        own = {"redis": self._valkey.url, "deadline": _OWN_STORE}
        return config.model_copy(update={"store": config.store.model_copy(update=own)})

    def _take_batch(self, worker: int, batch: list[Message]) -> None:
        intake, told = self._intake, False
        for name, *values in batch:
            if name == "figures":
                counts, holds = values
                self._figures.take(worker, counts, holds, self.memory)
            elif name == "called":
                if self._kept.residents is not None:
                    self._kept.residents.also_called(*values)
            elif name in IN_ORDER:
                self._order.put(worker, values[0], (name, *values[1:]))
            else:
                getattr(intake, name)(worker, *values)
                told = told or name in ("failed", "succeeded")
        self._shown.refresh()
        if told:
            self._publish()

    def _tell(self, *message: Any) -> None:
        if self._crew is not None:
            self._crew.tell(*message)

    def _give(self, worker: int, message: Message) -> None:
        getattr(self._intake, message[0])(worker, *message[1:])

    def _worker_died(self, worker: int, how: str) -> None:
        self._order.give_all()
        lost = self._shown.clear(worker)
        self._intake.forget(worker)
        self._figures.forget(worker)
        self._lost += lost
        log.error("worker %d %s with %d requests, which are broken off; it is replaced", worker, how, lost)

    async def _watch_over(self) -> None:
        """Let the workers know of what checks, reads of metrics and time have changed."""
        while True:
            self._shown.refresh()
            self._publish()
            await asyncio.sleep(_LOOK)

    def _publish(self) -> None:
        specs, views = self._wanted(), self._shown.views()
        if specs != self._specs and self._crew is not None:
            self._specs = specs
            self._crew.tell("members", specs)
        if views != self._views and self._crew is not None:
            self._views = views
            self._version += 1
            self._crew.tell("views", views, self._version)

    def _wanted(self) -> tuple[BackendSpec, ...]:
        return tuple(state.spec for state in self.registry.backends.values())

    async def agreed(self) -> None:
        """Return when all workers have taken over what is known now."""
        self._publish()
        crew, version = self._crew, self._version
        for _ in range(int(_TAKEN / _STEP)):
            serving = [hand.number for hand in crew.hands if hand.serves] if crew is not None else []
            if all(self._rows.cells[number][Head.VERSION] >= version for number in serving):
                return
            await asyncio.sleep(_STEP)
        log.warning("not all workers have taken the change over within %g s", _TAKEN)

    def _succeeded(self, name: str) -> None:
        self.registry.succeeded(name, self._clock())

    # As the admin port wants it

    async def _explain(self, method: str, path: bytes, headers: Headers, body: bytes) -> dict[str, Any]:
        """What the workers say; that of one which knows the conversation, where one does."""
        crew = self._crew
        found = await crew.ask("explain", method, path, headers, body, within=_EXPLAIN) if crew is not None else []
        if not found:
            return {"error": "no worker answers now; ask again"}
        return next((one for one in found if one.get("known")), found[0])

    async def _put_in_force(self, config: Config, certificates: Certificates) -> Changes:
        changes = await super()._put_in_force(config, certificates)
        self._specs = self._wanted()
        if self._crew is not None:
            self._crew.tell("configure", self._for_workers(config), self._specs, self._tenants())
        self._publish()
        return changes

    async def reload(self) -> Changes:
        """Read the configuration again and put it in force as a whole, in all workers. Raises ReloadError."""
        changes = await super().reload()
        await self.agreed()
        return changes
