"""Does a backend's engine get on? Told by its own count of steps, long before a request has waited too long."""

from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """What an engine's steps at each scrape tell. Times are seconds of the caller's clock."""

    stalled: bool = False
    _steps: float | None = None
    _since: float = 0.0

    def observe(self, steps: float | None, *, busy: bool, now: float, after: float) -> bool:
        """Take the count of one scrape (None: the server has none); returns whether that changed `stalled`.

        `busy`: requests of this router are there now. An engine stalls that has made no step for `after` seconds with some
        there all the time: one step computes at most `--max-num-batched-tokens` tokens, a matter of a second or two.
        """
        if steps is None or steps != self._steps or not busy:
            self._steps, self._since = (steps if busy else None), now
        before, self.stalled = self.stalled, now - self._since >= after
        return before is not self.stalled
