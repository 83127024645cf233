"""Messages of several workers in the order in which things happened: the next turn may come through another worker."""

import asyncio
from collections.abc import Callable
from itertools import count

from .messages import Message
from .voice import SOON

LAG = 2.5 * SOON
"""Seconds for which a message waits for earlier ones of other workers, which may have waited themselves for so long."""


class InOrder:
    """Gives every message to `give` once, `LAG` after what it tells of. All processes of a machine have one clock."""

    def __init__(self, give: Callable[[int, Message], None], clock: Callable[[], float]) -> None:
        self._give = give
        self._clock = clock
        self._waiting: list[tuple[float, int, int, Message]] = []
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<InOrder {len(self._waiting)} waiting>"

    def put(self, worker: int, at: float, message: Message) -> None:
        """Take a message of what happened at this time."""
        self._waiting.append((at, next(self._numbers), worker, message))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LAG, self._due)

    def give_all(self) -> None:
        """Wait for nobody: a worker has ended."""
        self._give_until(float("inf"))

    def _due(self) -> None:
        self._timer = None
        self._give_until(self._clock() - LAG)
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(SOON, self._due)

    def _give_until(self, time: float) -> None:
        waiting = self._waiting
        waiting.sort()  # of some sorted runs, which takes one pass
        due = next((i for i, (at, *_) in enumerate(waiting) if at > time), len(waiting))
        self._waiting = waiting[due:]
        for _, _, worker, message in waiting[:due]:
            self._give(worker, message)
