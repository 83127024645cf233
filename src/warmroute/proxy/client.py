"""The client's side of one exchange: sends the answer, and notices when nobody waits for it any more."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ..core.headers import Headers

Receive = Callable[[], Any]
Send = Callable[[Any], Any]


class Client:
    """Sends head and body through ASGI; `bytes_out` counts the body. `gone` is set once the client has left."""

    __slots__ = ("_on_gone", "_receive", "_send", "_task", "bytes_out", "finished", "gone", "started")

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._task: asyncio.Task[None] | None = None
        self._on_gone: Callable[[], None] | None = None
        self.gone = False
        self.started = False
        self.finished = False
        self.bytes_out = 0

    def __enter__(self) -> "Client":
        self._task = asyncio.get_running_loop().create_task(self._watch())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._on_gone = None
        if self._task is not None:
            self._task.cancel()

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """Call this when the client leaves, once; at once if it has left already."""
        self._on_gone = callback
        if self.gone and callback is not None:
            callback()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        if self._on_gone is not None:
            self._on_gone()

    async def start(self, status: int, headers: Headers) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def body(self, data: bytes, *, more: bool) -> None:
        """Send a part of the body; waits while the client reads too slowly."""
        self.bytes_out += len(data)
        self.finished = not more
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
