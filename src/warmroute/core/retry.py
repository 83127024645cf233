"""May a failed exchange be tried again, and where?"""

from collections.abc import Callable, Collection
from enum import StrEnum

from .model import Failure, Phase

FAULTY = frozenset({500, 502, 503, 504})
"""Statuses that say the server failed, and not the request. vLLM answers what was waiting when its engine dies with 500."""


def is_fault(status: int, headers: Collection[bytes]) -> bool:
    """Whether an answer is a fault of its backend's. A 503 with Retry-After is that of a busy one."""
    return status in FAULTY and not (status == 503 and b"retry-after" in headers)


class Verdict(StrEnum):
    SAME = "same"  # the same backend, on a fresh connection
    OTHER = "other"  # the next backend
    GIVE_UP = "give_up"


MAX_SENT = 2
"""Backends that may see one request: a request can kill an engine, so one that took down two is not given a third."""


def verdict(failure: Failure, *, sent: int) -> Verdict:
    """What to do after a failure; `sent` counts the backends that have had the request sent to them, this one included.

    A refused connection has carried nothing, so it uses up no try; but a backend that died of the request and then refused
    has had it. After content has reached the client nothing may be sent again.
    """
    if failure.phase is Phase.STREAM or failure.own:
        return Verdict.GIVE_UP
    if failure.stale:
        return Verdict.SAME
    return Verdict.OTHER if sent < MAX_SENT else Verdict.GIVE_UP


class Budget:
    """Retries that faulty answers of living backends may cause: a share of the requests of the last window, and some at least.

    A connection that broke needs none: what it had cost is gone with it, and each request is tried once more at most. Times
    are seconds of `clock`.
    """

    def __init__(self, clock: Callable[[], float], *, share: float = 0.2, least: int = 3, window: float = 10.0) -> None:
        self._clock = clock
        self._share, self._least, self._window = share, least, window
        self._began = clock()
        self._requests = self._retries = 0
        self._requests_before = self._retries_before = 0
        self.refused = 0

    def __repr__(self) -> str:
        return f"<Budget {self._retries} retries of {self._requests} requests, {self.refused} refused>"

    def request(self) -> None:
        """A request has come."""
        if self._clock() - self._began >= self._window:
            self._age()
        self._requests += 1

    def take(self) -> bool:
        """Whether one more retry may be made; it counts if so."""
        self._age()
        allowed = max(self._least, self._share * (self._requests + self._requests_before))
        if self._retries + self._retries_before >= allowed:
            self.refused += 1
            return False
        self._retries += 1
        return True

    def _age(self) -> None:
        passed = self._clock() - self._began
        if passed >= self._window:
            once = passed < 2 * self._window
            self._requests_before, self._retries_before = (self._requests, self._retries) if once else (0, 0)
            self._requests = self._retries = 0
            self._began += passed // self._window * self._window
