"""Probe results and connection failures -> up or down, and whether that changed."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Consecutive failures until down, consecutive successes until up again (HAProxy's fall and rise)."""

    fall: int = 3
    rise: int = 2


@dataclass(slots=True)
class Health:
    """Whether one backend can be used. `up` is None until the first result: usable, since most backends are.

    The first result decides alone, so a backend that is down at the start is known to be down after one probe, and one
    that is up serves at once.
    """

    up: bool | None = None
    failures: int = 0
    successes: int = 0
    reason: str = ""

    @property
    def usable(self) -> bool:
        return self.up is not False

    @property
    def settled(self) -> bool:
        """False while a change is under way; such a backend is probed more often."""
        return self.up is True and self.failures == 0

    def probed(self, error: str | None, limits: Thresholds) -> bool:
        """Count one active check (None: it passed); returns True if the state changed."""
        if error is None:
            self.failures, self.successes = 0, self.successes + 1
            if self.up is None or (self.up is False and self.successes >= limits.rise):
                return self._become(True, "")
            return False
        self.failures, self.successes = self.failures + 1, 0
        if self.up is False:
            self.reason = error
        elif self.up is None or self.failures >= limits.fall:
            return self._become(False, error)
        return False

    def connect_failed(self, error: str) -> bool:
        """A request could not connect: nothing listens there, so it is down for everybody at once."""
        self.successes = 0
        self.failures += 1
        if self.up is False:
            return False
        return self._become(False, error)

    def _become(self, up: bool, reason: str) -> bool:
        changed = self.up is not up
        self.up, self.reason = up, reason
        self.failures = self.successes = 0
        return changed
