"""Emptying a backend: it keeps its sessions and takes no new ones, and after a deadline it is asked nothing at all."""

from dataclasses import dataclass


@dataclass(slots=True)
class Drain:
    """Whether one backend is being emptied. `until` is None while it is not; `over` from the deadline on."""

    until: float | None = None
    over: bool = False

    def begin(self, until: float) -> None:
        """Empty it, or give it another deadline."""
        self.until, self.over = until, False

    def end(self) -> None:
        """Use it again like any other."""
        self.until, self.over = None, False

    def tick(self, now: float) -> bool:
        """Let time pass; returns True if the deadline has just passed."""
        if self.until is None or self.over or now < self.until:
            return False
        self.over = True
        return True

    def left(self, now: float) -> float | None:
        """Seconds until the deadline; 0 once it is over, None where nothing is emptied."""
        if self.until is None:
            return None
        return 0.0 if self.over else max(0.0, self.until - now)
