"""The dashboard's figures as server-sent events, made once a second for everybody who looks, and never for nobody."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

Json = dict[str, object]

EVERY = 1.0
"""Seconds between two states."""
HISTORY_EVERY = 10.0
"""Seconds between two histories."""
MOST = 32
"""Pages that are served at a time; others have to ask again and again."""
_AWAKE = 0.1
"""Seconds after which the end of the router is seen."""
_FRESH = 0.5
"""Seconds for which pages share what was made for one of them."""


@dataclass(slots=True)
class _Shared:
    """One kind of event, as it was last made."""

    make: Callable[[], Json]
    at: float = float("-inf")
    text: bytes = b""


@dataclass(slots=True)
class Live:
    """`pages` are open now. `version` is of the events: they are sent when it changes."""

    state: Callable[[], Json]
    history: Callable[[], Json]
    events: Callable[[], Json]
    version: Callable[[], int]
    stopping: Callable[[], bool]
    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    pages: int = 0
    _made: dict[str, _Shared] = field(init=False)

    def __post_init__(self) -> None:
        makers = {"state": self.state, "history": self.history, "events": self.events}
        self._made = {name: _Shared(make) for name, make in makers.items()}

    def __repr__(self) -> str:
        return f"<Live {self.pages} pages>"

    @property
    def full(self) -> bool:
        return self.pages >= MOST

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Events for one page until it goes or the router stops."""
        self.pages += 1
        try:
            yield b"retry: 2000\n\n"
            due, told, told_version = self.clock(), float("-inf"), -1
            while not self.stopping():
                now = self.clock()
                if now >= due:
                    due = now + EVERY
                    yield self._event("state")
                    if self.version() != told_version:
                        told_version = self.version()
                        yield self._event("events")
                    if now - told >= HISTORY_EVERY:
                        told = now
                        yield self._event("history")
                await self.sleep(_AWAKE)
        finally:
            self.pages -= 1

    def _event(self, name: str) -> bytes:
        """The event's bytes; JSON of one line, as the protocol needs it."""
        shared, now = self._made[name], self.clock()
        if now - shared.at >= _FRESH:
            shared.at, shared.text = now, msgspec.json.encode(shared.make())
        return b"event: %b\ndata: %b\n\n" % (name.encode(), shared.text)
