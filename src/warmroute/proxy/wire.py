"""The client's transport, whose closing can be taken over."""

import asyncio
from collections.abc import Callable
from typing import Any


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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
