"""When a loop looks again: at its interval, or as soon as somebody asks for it."""

import asyncio

_LEAST = 0.1
"""The part of an interval that passes in any case, however often one asks."""


class Pace:
    """The pauses of one loop."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._skipped = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Pace{' asked' if self._asked.is_set() else ''}>"

    def nudge(self) -> None:
        """Look again soon."""
        self._asked.set()

    def skip(self) -> None:
        """Look again now: the interval of this pause is no longer that which is wanted."""
        self._asked.set()
        self._skipped.set()

    async def pause(self, interval: float) -> None:
        """Wait for so many seconds, or for a nudge; at least a tenth of the interval, unless that is skipped."""
        await _within(interval * _LEAST, self._skipped)
        await _within(interval * (1 - _LEAST), self._asked)
        self._asked.clear()
        self._skipped.clear()


async def _within(seconds: float, event: asyncio.Event) -> None:
    """Wait for an event, for so long at most."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
