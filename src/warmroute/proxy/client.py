"""The client's side of one request: sends the answer, and knows when nobody waits for it any more."""

from collections.abc import Callable, Coroutine, MutableMapping
from types import TracebackType
from typing import Any

from ..core.headers import Headers
from .server import EXTENSION, DataProtocol

Scope = MutableMapping[str, Any]
Receive = Callable[[], Coroutine[Any, Any, MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Coroutine[Any, Any, None]]

_SWITCHED = 101
_SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"


class Client:
    """Sends head and body through ASGI. Within its `with` block `gone` tells whether the client has left.

    `finished` is True once the last byte of an answer was handed over; `bytes_out` counts its body.
    """

    __slots__ = ("_on_gone", "_scope", "bytes_out", "connection", "finished", "gone", "has_length", "send", "started")

    def __init__(self, scope: Scope, send: Send) -> None:
        self.connection: DataProtocol = scope["extensions"][EXTENSION]
        self.send = send
        self._scope = scope
        self._on_gone: Callable[[], None] | None = None
        self.gone = False
        self.started = False
        self.has_length = False
        self.finished = False
        self.bytes_out = 0

    def __enter__(self) -> None:
        self.connection.watch(self._left)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._on_gone = None
        self.connection.watch(None)

    def for_pages(self) -> list[tuple[bytes, bytes]]:
        """The header that lets a page of a browser read an answer of the router's own, if a page asks.

        As vLLM's own answers by default: nothing here depends on cookies.
        """
        asked = any(name == b"origin" for name, _ in self._scope["headers"])
        return [(b"access-control-allow-origin", b"*")] if asked else []

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call this when the client leaves; the last one given counts."""
        self._on_gone = callback

    def _left(self) -> None:
        self.gone = True
        if self._on_gone is not None:
            self._on_gone()

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head; it travels with the first part of the body, which must follow at once."""
        self.started = True
        self.has_length = any(name == b"content-length" for name, _ in headers)
        if status == _SWITCHED:
            self._switch(headers)
            return
        self.connection.corked.cork()
        self.connection.answer_begins()
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    def _switch(self, headers: Headers) -> None:
        """Send the head after which the connection is a WebSocket: past uvicorn, whose answers have an end."""
        self.connection.cycle.response_started = True
        lines = [_SWITCHING, *(b"%b: %b\r\n" % pair for pair in headers), b"\r\n"]
        self.connection.corked.write(b"".join(lines))

    async def body(self, data: bytes, *, more: bool) -> None:
        """Send a part of the body; waits while the client reads too slowly."""
        self.bytes_out += len(data)
        self.finished = not more
        await self.send({"type": "http.response.body", "body": data, "more_body": more})
        self.connection.corked.uncork()

    async def drained(self) -> None:
        """Wait until the client has read most of what was sent to it, or has gone."""
        await self.connection.flow.drain()


_SETTLE_AFTER = 8192
"""Bytes after which a stream's figures are brought up to date."""


class Outflow:
    """An answer that streams: every piece goes to the client's connection in the moment it comes.

    ASGI's send waits only for a slow reader. Where there is none it ends without a pause, so it can be run to its end here
    with no task to wake. A whole chunk is written as it is, past ASGI: head and framing are uvicorn's own already.
    `take`, if given, turns what came into what is sent. `note` is told of the bytes some thousands at a time, and with
    `settle` of the last ones.
    """

    __slots__ = ("_client", "_flow", "_note", "_recent", "_send", "_size", "_take", "_write")

    def __init__(
        self, client: Client, note: Callable[[bytes], None], take: Callable[[bytes], bytes] | None = None
    ) -> None:
        connection = client.connection
        self._client = client
        self._note = note
        self._take = take
        self._recent: list[bytes] = []
        self._size = 0
        self._send = client.send
        self._flow = connection.flow
        self._write = connection.corked.uncorked_write

    def piece(self, data: bytes) -> bool:
        """Send some bytes of the body; False if the client reads too slowly and `drained` should be awaited."""
        if self._take is not None:
            data = self._take(data)
            if not data:
                return not self._flow.write_paused
        self._recent.append(data)
        self._size += len(data)
        self.settle()
        try:
            self._send({"type": "http.response.body", "body": data, "more_body": True}).send(None)
        except StopIteration:
            return not self._flow.write_paused
        raise RuntimeError("a piece was sent to a client that reads too slowly")

    def chunk(self, framed: bytes, start: int) -> bool:
        """Send one whole chunk in its framing; the same return value."""
        if self._take is not None:
            data = self._take(framed[start:-2])
            if not data:
                return not self._flow.write_paused
            size = b"%x\r\n" % len(data)
            framed, start = size + data + b"\r\n", len(size)
        self._write(framed)
        self._recent.append(framed[start:-2])
        self._size += len(framed) - start - 2
        if self._size > _SETTLE_AFTER:
            self.settle()
        return not self._flow.write_paused

    def settle(self) -> None:
        """Tell of what was sent since the last time."""
        if self._recent:
            self._note(b"".join(self._recent))
            self._client.bytes_out += self._size
            self._recent.clear()
            self._size = 0
