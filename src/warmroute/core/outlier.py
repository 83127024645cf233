"""What its own traffic says of a backend: after too many failures in a row it rests, and one request tries it again."""

from dataclasses import dataclass
from enum import StrEnum


class Rest(StrEnum):
    """IN: in rotation. OUT: resting. TRIAL: one request at a time may try it."""

    IN = "in"
    OUT = "out"
    TRIAL = "trial"


_IN = Rest.IN


@dataclass(frozen=True, slots=True)
class OutlierLimits:
    """So many failures in a row until a backend rests; seconds of the first rest, which doubles each time it fails again,
    up to the longest. The defaults are Envoy's, but for a shorter first rest.

    After `stall` seconds without a step of its engine a backend with requests takes no new sessions.
    """

    failures: int = 5
    rest: float = 10.0
    longest: float = 300.0
    stall: float = 10.0


@dataclass(slots=True)
class Outlier:
    """Passive health of one backend, beside its active checks: those ask whether it lives, this whether it works."""

    state: Rest = Rest.IN
    failures: int = 0
    rests: int = 0
    until: float = 0.0
    trying: bool = False
    reason: str = ""

    @property
    def admits(self) -> bool:
        """Whether a request may be sent there now."""
        return self.state is _IN or (self.state is Rest.TRIAL and not self.trying)

    def failed(self, reason: str, now: float, limits: OutlierLimits, *, may_rest: bool) -> bool:
        """Count a failure; returns True if the backend rests from now on. `may_rest`: others can do its work."""
        if self.state is Rest.OUT:
            return False
        self.failures += 1
        if self.state is Rest.TRIAL or (self.failures >= limits.failures and may_rest):
            return self.rest(reason, now, limits)
        return False

    def rest(self, reason: str, now: float, limits: OutlierLimits) -> bool:
        """Take it out of rotation; returns True."""
        self.state, self.reason = Rest.OUT, reason
        self.until = now + min(limits.longest, limits.rest * 2.0**self.rests)
        self.rests = min(self.rests + 1, 32)
        self.failures = 0
        return True

    def succeeded(self) -> bool:
        """Count an answer that was none of its failures; returns True if that ends its rest."""
        self.failures = 0
        if self.state is _IN:
            return False
        self.state, self.reason, self.rests = _IN, "", 0
        return True

    def tick(self, now: float) -> bool:
        """Let time pass; returns True if one request may try it from now on."""
        if self.state is Rest.OUT and now >= self.until:
            self.state = Rest.TRIAL
            return True
        return False
