"""The client's side of one request: what comes of its body, the answer that goes back, and whether anybody waits for it."""

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from ..core.relay import Relay
from .body import ClientLeft
from .errors import RouterError
from .heads import Head
from .wire import Wire

_WITHOUT_BODY = (204, 304)

_SWITCHED = 101
_SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"

_HIGH_WATER = 64 << 10
"""Bytes of a body that may wait to be taken before reading pauses, where it is not known to be short."""
_SHORT = 1 << 20
"""Bytes of a body that may come whole: to pause and go on for each piece costs more than to hold it."""


class ClientConnection(Protocol):
    """The connection of a client, as its requests see it. `broken` says why the rest of the body being read will not come."""

    wire: Wire
    flow: FlowControl
    broken: RouterError | None
    pipeline: "deque[Client]"

    def begins_to_answer(self, client: "Client") -> None:
        """The answer's head is made: `client.keep_alive` says whether another request may follow."""

    def answered(self, client: "Client") -> None:
        """The last byte of the answer was handed over."""


class Client:
    """One request of a client. Its answer is sent past ASGI, whose messages cost more than the bytes.

    `length`: bytes of its body, None where it does not say; `whole`: all of it has come. `gone`: the client has left.
    `started` and `complete` tell of the answer, whose body's bytes `bytes_out` counts; `finished` is True once its last byte
    was handed over, or whatever stands for that. `switches`: it asks for a WebSocket, and behind it nothing is HTTP.
    """

    __slots__ = (
        *("_chunked", "_expects", "_flow", "_left", "_line", "_on_gone", "_parts", "_silent", "_size", "_waiter"),
        *("bytes_out", "complete", "connection", "finished", "gone", "has_length", "head", "keep_alive", "started"),
        *("length", "switches", "whole"),
    )

    def __init__(self, connection: ClientConnection, head: Head, length: int | None) -> None:
        self.connection = connection
        self.head = head
        self.length = length
        self.keep_alive = head.keep_alive
        self._flow = connection.flow
        self._expects = head.expects
        self._parts: list[bytes] = []
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._on_gone: Callable[[], None] | None = None
        self._line = b""
        self._left = 0
        self._chunked = self._silent = self.switches = False
        self.whole = self.gone = self.started = self.complete = self.finished = self.has_length = False
        self.bytes_out = 0

    def __repr__(self) -> str:
        state = "gone" if self.gone else "complete" if self.complete else "started" if self.started else "waits"
        return f"<Client {self.head.method} {state}{'' if self.whole else ', its body comes'}>"

    # What the connection tells

    def comes(self, data: bytes) -> None:
        """Some bytes of the body have come."""
        if self.complete:
            return
        self._parts.append(data)
        self._size += len(data)
        if self._size > _HIGH_WATER and (self.length is None or self.length > _SHORT):
            self._flow.pause_reading()
        self.wake()

    def ends(self) -> None:
        """All of the request has come."""
        self.whole = True
        self.wake()

    def left(self) -> None:
        """The client has gone away."""
        self.gone = True
        self.wake()
        if self._on_gone is not None:
            self._on_gone()

    def wake(self) -> None:
        """Let whoever waits for the body look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # What is read of it

    @property
    def broken(self) -> RouterError | None:
        """Why the rest of its body will not come; None while it may."""
        return None if self.whole else self.connection.broken

    async def take(self) -> bytes:
        """What has come of the body since, which may be nothing at its end. Raises ClientLeft."""
        if self._expects and not self.started:
            self._expects = False
            self.connection.wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self._parts or self.whole or self.gone or self.complete or self.connection.broken):
            self._flow.resume_reading()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.here()

    def here(self) -> bytes:
        """What has come of the body since, without waiting. Raises ClientLeft."""
        if self.gone or self.complete:
            raise ClientLeft
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._size = 0
        return data

    # Whether anybody waits

    def __enter__(self) -> None:
        if self.connection.wire.is_closing():
            self.left()
        elif not self.connection.pipeline:
            # A large body may have paused reading, and a paused connection does not notice its end.
            self._flow.resume_reading()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._on_gone = None

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """Call this when the client leaves within the `with` block, or nothing; the last one given counts."""
        self._on_gone = callback

    # The answer

    def for_pages(self) -> list[tuple[bytes, bytes]]:
        """The header that lets a page of a browser read an answer of the router's own, if a page asks.

        As vLLM's own answers by default: nothing here depends on cookies.
        """
        return [(b"access-control-allow-origin", b"*")] if b"origin" in self.head.named else []

    def start(self, status: int, lines: bytes, length: int | None) -> None:
        """Give the head; it travels with the first part of the body, which must follow at once.

        `lines` are headers as they are written, but for those of the body's `length` and of the connection, which ends with
        the answer if `keep_alive` is False. A body whose length is not known is sent in chunks.
        """
        self.started = True
        if status == _SWITCHED:
            self.connection.wire.write(_SWITCHING + lines + b"\r\n")
            return
        self._expects = False
        self.connection.begins_to_answer(self)
        self._silent = self.head.method == "HEAD"
        framing = b""
        if status not in _WITHOUT_BODY:
            if length is not None:
                self.has_length, self._left = True, length
                framing = b"content-length: %d\r\n" % length
            elif not self._silent:
                self._chunked = True
                framing = b"transfer-encoding: chunked\r\n"
        closing = b"" if self.keep_alive else b"connection: close\r\n"
        self._line = b"%b%b%b%b\r\n" % (STATUS_LINE[status], lines, framing, closing)

    async def body(self, data: bytes, *, more: bool) -> None:
        """Send a part of the body; waits while the client reads too slowly."""
        if self.slow:
            await self._flow.drain()
        self.send(data, more=more)

    @property
    def slow(self) -> bool:
        """Whether the client reads too slowly, so that `drained` should be awaited."""
        return self._flow.write_paused and not self.gone

    def send(self, data: bytes, *, more: bool) -> None:
        """Send a part of the body now."""
        self.bytes_out += len(data)
        self.finished = not more
        self.put(data, more=more)

    def put(self, data: bytes, *, more: bool) -> None:
        """Send a part of the body now, uncounted."""
        if self.gone:
            return
        if self._silent:
            data = b""
        elif self._chunked:
            data = _chunk(data) if more else (_chunk(data) + b"0\r\n\r\n")
        else:
            self._left -= len(data)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("an answer is not as long as its content-length says")
        if self._line:
            data, self._line = self._line + data, b""
        if data:
            self.connection.wire.write(data)
        if not more:
            self.complete = True
            self.wake()
            self.connection.answered(self)

    async def drained(self) -> None:
        """Wait until the client has read most of what was sent to it, or has gone."""
        await self._flow.drain()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


_SETTLE_AFTER = 40
"""Chunks after which a stream's figures are brought up to date."""


class Outflow:
    """An answer that streams: every piece goes to the client's connection in the moment it comes, with no task to wake.

    A whole chunk is written as it is, unless the relay has something to take out of it. The relay is told of the bytes many
    chunks at a time, and with `settle` of the last ones.
    """

    __slots__ = ("_client", "_flow", "_framed", "_note", "_passes", "_put", "_take", "_write")

    def __init__(self, client: Client, relay: Relay) -> None:
        connection = client.connection
        self._client = client
        self._note = relay.note
        self._take = relay.takes
        self._passes = relay.passes
        self._framed: list[bytes] = []
        self._put = client.put
        self._flow = connection.flow
        self._write = connection.wire.write

    def piece(self, data: bytes) -> bool:
        """Send some bytes of the body; False if the client reads too slowly and `drained` should be awaited."""
        if self._take is not None:
            data = self._take(data)
        if data:
            self.settle()
            self._sent(data)
            self._put(data, more=True)
        return not self._flow.write_paused

    def chunk(self, framed: bytes) -> bool:
        """Send one whole chunk in its framing; the same return value."""
        if self._take is not None and (self._passes is None or not self._passes(framed)):
            data = self._take(framed[framed.index(b"\n") + 1 : -2])
            if not data:
                return not self._flow.write_paused
            framed = _chunk(data)
        self._write(framed)
        waiting = self._framed
        waiting.append(framed)
        if len(waiting) > _SETTLE_AFTER:
            self.settle()
        return not self._flow.write_paused

    def settle(self) -> None:
        """Tell of what was sent since the last time."""
        if self._framed:
            self._sent(b"".join([framed[framed.index(b"\n") + 1 : -2] for framed in self._framed]))
            self._framed.clear()

    def _sent(self, data: bytes) -> None:
        self._client.bytes_out += len(data)
        self._note(data)
