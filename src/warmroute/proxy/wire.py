"""The client's transport, whose closing can be taken over."""

import asyncio
from collections.abc import Callable
from typing import Any


def _never() -> bool:
    return False


class Wire:
    """A transport for which `linger` may take over the closing, where the client may be sending still."""

    is_closing: Callable[[], bool]

    def __init__(self, transport: asyncio.Transport, linger: Callable[[], bool]) -> None:
        self._transport = transport
        self._linger = linger
        self.lingering = False
        for name in ("write", "is_closing", "pause_reading", "resume_reading", "get_extra_info"):
            setattr(self, name, getattr(transport, name))

    write: Callable[[bytes], None]

    def close(self) -> None:
        if self.lingering or not self._linger():
            self._transport.close()
        else:
            self.lingering = True
            self.is_closing = lambda: True

    def lost(self) -> None:
        """The connection is no more: there is nothing to take over, and whoever did is let go."""
        self.lingering = True
        self._linger = _never

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
