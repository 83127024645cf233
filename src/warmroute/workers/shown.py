"""What the supervisor reads from the rows into its own backends, and which numbers of the rows belong to which of them."""

from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, NamedTuple

from ..fleet.backend import BackendState
from ..fleet.registry import Registry
from ..pins.memory import PinTable
from ..proxy.pools import Pools
from ..web.access import Access, App, Receive, Scope, Send
from ..web.admin import AdminApp
from .crew import Crew
from .rows import SLOTS, Cell, Rows
from .views import View, view


class _Key(NamedTuple):
    name: str
    url: str
    engine: str | None


_TENANT = "tenant:"
"""In place of a URL in the keys of tenants."""


class Shown:
    """Gives out slots, makes views of the backends, and keeps their numbers up to date."""

    def __init__(self, registry: Registry, pins: PinTable, rows: Rows) -> None:
        self._registry = registry
        self._pins = pins
        self._rows = rows
        self._given: dict[_Key, int] = {}
        self._free = list(range(SLOTS - 1, 0, -1))
        self._requests_before: dict[int, int] = {}
        self._heard: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Shown {len(self._given)} slots>"

    def views(self) -> tuple[View, ...]:
        """The backends as they are now, for the workers."""
        self._take_back()
        return tuple(view(state, self._slot(state, None), self._engines(state)) for state in self._states())

    def tenants(self, names: Iterable[str]) -> dict[str, int]:
        """The slot of each of these tenants; those of others stay theirs."""
        return {name: self._give(_Key(name, _TENANT, None)) for name in names}

    def refresh(self) -> None:
        """Read what runs in all workers, and tell them how many sessions there are."""
        rows, pins = self._rows, self._pins
        for state in self._states():
            slot = self._slot(state, None)
            state.in_flight, state.silent = rows.sum(slot, Cell.IN_FLIGHT), rows.sum(slot, Cell.SILENT)
            state.outlier.trying = rows.sum(slot, Cell.TRYING) > 0
            state.requests = rows.sum(slot, Cell.REQUESTS) - self._requests_before.get(slot, 0)
            rows.put(slot, Cell.SESSIONS, pins.sessions(state.name))
            rows.put(slot, Cell.SIZE, pins.size(state.name))
            for name, inner in self._engines(state):
                engine = next(engine for engine in state.engines if engine.engine == name)
                engine.in_flight = rows.sum(inner, Cell.IN_FLIGHT)
                rows.put(inner, Cell.SESSIONS, pins.engine_sessions(state.name, name))

    def was_heard(self, name: str) -> bool:
        """Whether any worker has heard from this backend since this was last asked."""
        state = self._registry.backends[name]
        before, now = self._heard.get(name), self._rows.sum(self._slot(state, None), Cell.HEARD)
        self._heard[name] = now
        return now != before

    def clear(self, worker: int) -> int:
        """A worker is dead: nothing is in flight there any more. Returns how many requests were."""
        lost = 0
        for key, slot in self._given.items():
            if key.engine is None and key.url != _TENANT:
                lost += self._rows.of(worker, slot, Cell.IN_FLIGHT)
                self._requests_before[slot] = self._requests_before.get(slot, 0) - self._rows.of(
                    worker, slot, Cell.REQUESTS
                )
        self._rows.clear(worker)
        return lost

    def _states(self) -> Iterable[BackendState]:
        return self._registry.backends.values()

    def _engines(self, state: BackendState) -> list[tuple[str, int]]:
        """Its engines where it has several, and their slots."""
        return [(e.engine, self._slot(state, e.engine)) for e in state.engines] if len(state.engines) > 1 else []

    def _slot(self, state: BackendState, engine: str | None) -> int:
        return self._give(_Key(state.name, state.spec.url, engine))

    def _give(self, key: _Key) -> int:
        slot = self._given.get(key)
        if slot is None:
            slot = self._free.pop() if self._free else 0
            self._given[key] = slot
            self._requests_before[slot] = self._rows.sum(slot, Cell.REQUESTS)
        return slot

    def _take_back(self) -> None:
        """Backends that went leave their slots once nothing runs there any more."""
        here = {(state.name, state.spec.url) for state in self._states()}
        for key, slot in list(self._given.items()):
            if key.url != _TENANT and key[:2] not in here and not self._rows.sum(slot, Cell.IN_FLIGHT):
                del self._given[key]
                self._free.append(slot)


class FarConnections:
    """The connections of all workers to the backends, as the housekeeping sees them."""

    def __init__(self, shown: Shown, own: Pools, crew: Callable[[], Crew | None]) -> None:
        """`own` have no connections, but know who was removed and when."""
        self._shown = shown
        self._own = own
        self._crew = crew

    def was_heard(self, name: str) -> bool:
        """Whether a backend has sent anything to any worker since this was last asked."""
        return self._shown.was_heard(name)

    def end_silent(self, name: str, seconds: float) -> None:
        """Every worker ends its exchanges with this backend."""
        self._tell("silent", name, seconds)

    def end_asleep(self, name: str) -> None:
        """The same for one that was put to sleep."""
        self._tell("asleep", name)

    def _tell(self, *message: Any) -> None:
        crew = self._crew()
        if crew is not None:
            crew.tell(*message)

    def end_tunnels(self, name: str) -> None:
        """Nothing to do: workers do that when they learn that a drain is over."""

    def sweep(self, silence: float) -> list[str]:
        """The names of which nothing is left; each worker sweeps its own connections."""
        return self._own.sweep(silence)


class FreshAdmin(AdminApp):
    """The admin pages over numbers of this moment; what was changed by them is true in all workers when they answer."""

    def __init__(self, access: Access, inner: App, refresh: Callable[[], None], agreed: Callable[[], Any]) -> None:
        super().__init__(access, inner)
        self._refresh = refresh
        self._agreed = agreed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._refresh()
        await super().__call__(scope, receive, self._after(send) if scope.get("method") == "POST" else send)

    def _after(self, send: Send) -> Send:
        async def later(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                await self._agreed()
            await send(message)

        return later
