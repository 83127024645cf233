"""`--watch`: the same check again and again, one line each."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from .target import CheckError


class Judged(Protocol):
    """What every report has."""

    @property
    def passed(self) -> bool: ...
    @property
    def verdict(self) -> str: ...


@dataclass
class Watched:
    """Checks made so far, and those that did not pass or could not be made."""

    made: int = 0
    failed: int = 0


async def watch(
    once: Callable[[], Awaitable[Judged]],
    every: float,
    tell: Callable[[Judged | CheckError], None],
    watched: Watched,
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    clock: Callable[[], float] | None = None,
) -> None:
    """Make the check every so many seconds, for ever; one that cannot be made is told, and the next one tried."""
    clock = clock or asyncio.get_running_loop().time
    while True:
        began = clock()
        found: Judged | CheckError
        try:
            found = await once()
        except CheckError as error:
            found = error
        watched.made += 1
        watched.failed += isinstance(found, CheckError) or not found.passed
        tell(found)
        await pause(max(0.0, began + every - clock()))
