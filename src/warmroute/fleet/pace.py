"""When a loop looks again: at its interval, or as soon as somebody asks for it."""

import asyncio

_LEAST = 0.1
"""The part of an interval that passes in any case, however often one asks."""


class Pace:
    """The pauses of one loop."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()

    def nudge(self) -> None:
        """Look again soon."""
        self._asked.set()

    async def pause(self, interval: float) -> None:
        """Wait for so many seconds, or for a nudge; at least a tenth of the interval."""
        await asyncio.sleep(interval * _LEAST)
        try:
            async with asyncio.timeout(interval * (1 - _LEAST)):
                await self._asked.wait()
        except TimeoutError:
            pass
        self._asked.clear()
