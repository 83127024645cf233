"""What tenants may use over all workers: requests in flight and the rate. Sessions each worker counts itself."""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from ..proxy.errors import RouterError
from ..proxy.tenants import Tenant, Tenants
from .rows import Cell, Rows

_MICRO = 1e6


class SharedTenant(Tenant):
    """One tenant as a worker sees it; `slot` is where the rows have what all of them count of it.

    When the next request is due stands in the supervisor's row, where all write: two that do so at once may let one pass
    too soon, and that is all.
    """

    def __init__(self, rows: Rows, slot: int, name: str, clock: Callable[[], float], **expiries: float) -> None:
        super().__init__(name, clock, **expiries)
        self._rows = rows
        self.slot = slot

    def enter(self) -> RouterError | None:
        """Count first and look then, so that of two that take the last place at once none has it."""
        rows, slot = self._rows, self.slot
        rows.add(slot, Cell.IN_FLIGHT, 1)
        self.in_flight = rows.sum(slot, Cell.IN_FLIGHT) - 1
        self._due = rows.due(slot) / _MICRO
        refused = super().enter()
        if refused is not None:
            rows.add(slot, Cell.IN_FLIGHT, -1)
        elif self.limits.rate is not None:
            rows.set_due(slot, round(self._due * _MICRO))
        return refused

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._rows.add(self.slot, Cell.IN_FLIGHT, -1)


class SharedTenants(Tenants):
    """All tenants of a worker. `slots` has the slot of each name; it may change before a configuration comes into force."""

    def __init__(self, rows: Rows, slots: Mapping[str, int], clock: Callable[[], float], **expiries: Any) -> None:
        super().__init__(clock, **expiries)
        self._rows = rows
        self.slots = slots

    def _new(self, name: str) -> Tenant:
        expiries = {"expiry": self._expiry, "unproven": self._unproven}
        return SharedTenant(self._rows, self.slots.get(name, 0), name, self._clock, **expiries)
