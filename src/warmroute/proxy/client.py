"""The client's side of one request: sends the answer, and knows when nobody waits for it any more."""

from collections.abc import Callable, Coroutine, MutableMapping
from types import TracebackType
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from ..core.headers import Headers
from .server import EXTENSION, DataProtocol

Scope = MutableMapping[str, Any]
Receive = Callable[[], Coroutine[Any, Any, MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Coroutine[Any, Any, None]]
_WITHOUT_BODY = (204, 304)

_SWITCHED = 101
_SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"


class Client:
    """Sends head and body past ASGI, whose messages cost more than the bytes. Within its `with` block `gone` tells whether the
    client has left.

    `finished` is True once the last byte of an answer was handed over; `bytes_out` counts its body.
    """

    __slots__ = (
        *("_chunked", "_cycle", "_flow", "_head", "_left", "_on_gone", "_scope", "_silent"),
        *("bytes_out", "connection", "finished", "gone", "has_length", "started"),
    )

    def __init__(self, scope: Scope) -> None:
        self.connection: DataProtocol = scope["extensions"][EXTENSION]
        self._cycle = self.connection.running
        self._flow = self.connection.flow
        self._scope = scope
        self._on_gone: Callable[[], None] | None = None
        self._head = b""
        self._chunked = self._silent = False
        self._left = 0
        self.gone = False
        self.started = False
        self.has_length = False
        self.finished = False
        self.bytes_out = 0

    def __enter__(self) -> None:
        self.connection.watch(self._has_left)

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

    def _has_left(self) -> None:
        self.gone = True
        if self._on_gone is not None:
            self._on_gone()

    def start(self, status: int, headers: Headers) -> None:
        """Give the head; it travels with the first part of the body, which must follow at once.

        Names are lower case. A body of no stated length is sent in chunks.
        """
        self.started = True
        cycle = self._cycle
        cycle.response_started = True
        if status == _SWITCHED:
            lines = [_SWITCHING, *(b"%b: %b\r\n" % pair for pair in headers), b"\r\n"]
            self.connection.wire.write(b"".join(lines))
            return
        cycle.waiting_for_100_continue = False
        self.connection.answer_begins()
        parts = [STATUS_LINE[status]]
        closes = False
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
            if name == b"content-length":
                self.has_length = True
                self._left = int(value)
            elif name == b"connection" and b"close" in value.lower():
                closes, cycle.keep_alive = True, False
        if not cycle.keep_alive and not closes:
            parts.append(b"connection: close\r\n")
        self._silent = self._scope["method"] == "HEAD"
        if not (self.has_length or self._silent or status in _WITHOUT_BODY):
            self._chunked = True
            parts.append(b"transfer-encoding: chunked\r\n")
        parts.append(b"\r\n")
        self._head = b"".join(parts)
        if self._head.count(b"\r\n") != len(headers) + 2 + (not cycle.keep_alive and not closes) + self._chunked:
            raise RuntimeError("a header of the answer has a line break in it")

    async def body(self, data: bytes, *, more: bool) -> None:
        """Send a part of the body; waits while the client reads too slowly."""
        self.bytes_out += len(data)
        self.finished = not more
        if self._flow.write_paused and not self._cycle.disconnected:
            await self._flow.drain()
        self.put(data, more=more)

    def put(self, data: bytes, *, more: bool) -> None:
        """Send a part of the body now, uncounted."""
        cycle = self._cycle
        if cycle.disconnected:
            return
        if self._silent:
            data = b""
        elif self._chunked:
            data = _chunk(data) if more else (_chunk(data) + b"0\r\n\r\n")
        else:
            self._left -= len(data)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("an answer is not as long as its content-length says")
        if self._head:
            data, self._head = self._head + data, b""
        if data:
            self.connection.wire.write(data)
        if not more:
            cycle.response_complete = True
            cycle.message_event.set()
            if not cycle.keep_alive:
                self.connection.wire.close()
            cycle.on_response()

    async def drained(self) -> None:
        """Wait until the client has read most of what was sent to it, or has gone."""
        await self._flow.drain()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


_SETTLE_AFTER = 8192
"""Bytes after which a stream's figures are brought up to date."""


class Outflow:
    """An answer that streams: every piece goes to the client's connection in the moment it comes, with no task to wake.

    A whole chunk is written as it is. `take`, if given, turns what came into what is sent. `note` is told of the bytes some
    thousands at a time, and with `settle` of the last ones.
    """

    __slots__ = ("_client", "_flow", "_note", "_put", "_recent", "_size", "_take", "_write")

    def __init__(
        self, client: Client, note: Callable[[bytes], None], take: Callable[[bytes], bytes] | None = None
    ) -> None:
        connection = client.connection
        self._client = client
        self._note = note
        self._take = take
        self._recent: list[bytes] = []
        self._size = 0
        self._put = client.put
        self._flow = connection.flow
        self._write = connection.wire.write

    def piece(self, data: bytes) -> bool:
        """Send some bytes of the body; False if the client reads too slowly and `drained` should be awaited."""
        if self._take is not None:
            data = self._take(data)
            if not data:
                return not self._flow.write_paused
        self._recent.append(data)
        self._size += len(data)
        self.settle()
        self._put(data, more=True)
        return not self._flow.write_paused

    def chunk(self, framed: bytes, start: int) -> bool:
        """Send one whole chunk in its framing; the same return value."""
        data = framed[start:-2]
        if self._take is not None:
            taken = self._take(data)
            if taken is not data:
                if not taken:
                    return not self._flow.write_paused
                data = taken
                framed = b"%x\r\n%b\r\n" % (len(data), data)
        self._write(framed)
        self._recent.append(data)
        self._size += len(data)
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
