"""Simulated time: what happens when, in order, without waiting for it."""

from collections.abc import Callable
from heapq import heappop, heappush


class Clock:
    """Seconds since the start, told when called. What is planned for the same time happens in the order of planning."""

    def __init__(self) -> None:
        self._now = 0.0
        self._plans: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0

    def __call__(self) -> float:
        return self._now

    def __repr__(self) -> str:
        return f"<Clock {self._now:.3f} s, {len(self._plans)} plans>"

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Plan something; what lies in the past happens now."""
        self._planned += 1
        heappush(self._plans, (max(when, self._now), self._planned, what))

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Plan something for so many seconds from now."""
        self.at(self._now + seconds, what)

    def run_until(self, when: float) -> None:
        """Let everything happen that is planned up to and including this time, which is then the time."""
        plans = self._plans
        while plans and plans[0][0] <= when:
            self._now, _, what = heappop(plans)
            what()
        if when != float("inf"):
            self._now = max(self._now, when)
