"""One HTTP/1.1 connection to a backend; everything that goes wrong on it becomes a Failure here."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, cast

from ..core.chunks import HEADS
from ..core.model import BackendSpec, Failure, Phase
from .answer_head import AnswerHead, LastHead
from .client import Client
from .failures import ClientGone, UpstreamError, broken
from .hearing import Hearing

HIGH_WATER = 64 * 1024
"""Bytes of an answer that may wait for a slow client before reading from the backend pauses."""

_STALE_WITHIN = 0.5
"""Seconds after sending in which a kept-alive connection that breaks was closed before; later, the request broke it."""

_TOO_LONG = len(HEADS)
_OF_HEAD = Phase.HEAD


class Sink(Protocol):
    """Where a body goes while it streams. Both return False if the reader is too slow for more now."""

    def piece(self, data: bytes) -> bool:
        """Take some bytes of the body."""

    def chunk(self, framed: bytes) -> bool:
        """Take one whole chunk, of some kilobytes at most, in its framing."""


class _Owner(Protocol):
    """The pool, as a connection sees it."""

    loop: asyncio.AbstractEventLoop
    spec: BackendSpec
    heard: bool
    last_head: LastHead

    def lost(self, connection: "Connection") -> None: ...
    def release(self, connection: "Connection") -> None: ...


class Connection(Hearing, asyncio.Protocol):
    """One connection and the exchange that runs on it: write the request, read head and body, one after another.

    `switched`: it is a WebSocket's now.
    """

    switched = False

    def __init__(self, pool: _Owner) -> None:
        super().__init__(pool.last_head)
        self._pool = pool
        self._loop = pool.loop
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._client: Client | None = None
        self.idle_since = self._sent_at = self._lost_at = 0.0
        self.reused = self.closed = self._paused = False
        self.waiting_bytes = 0
        self._chunks: list[bytes] = []
        self._sink: Sink | None = None
        self._writable: asyncio.Future[None] | None = None
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<Connection to {self._pool.spec.name} {'closed' if self.closed else 'complete' if self.complete else 'busy'}>"

    def __enter__(self) -> "Connection":
        """For one exchange, at the end of which it goes back to its pool."""
        return self

    def __exit__(self, *_: object) -> None:
        client, self._client = self._client, None
        if client is not None:  # whose leaving must not end what is asked on this connection next
            client.on_gone(None)
        self._pool.release(self)

    # What the owner of the exchange calls

    def set_options(self, options: Iterable[tuple[int, int, int]]) -> None:
        """Set options of the socket: level, name, value."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is not None:
            for option in options:
                sock.setsockopt(*option)

    def send(self, head: bytes, body: bytes, client: Client, *, head_only: bool) -> None:
        """Begin an exchange, given up if the client leaves. `head_only`: the answer has no body whatever its headers say."""
        assert self._transport is not None
        self._head_only, self._client = head_only, client
        self._sent_at = self._loop.time()
        self._next()
        self.waiting_bytes, self._chunks = 0, []
        if len(body) < HIGH_WATER:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        client.on_gone(self.abandon)

    def write(self, data: bytes) -> None:
        """Send more of a body that `send` has begun."""
        if data and self._transport is not None and not self.closed:
            self._pool.heard = True  # a backend that takes an upload is at work
            self._transport.write(data)

    async def writable(self) -> None:
        """Wait until the backend has taken most of what was sent to it, or is gone."""
        if self._writable is not None:
            await self._writable

    async def read_head(self) -> AnswerHead:
        """Wait for the answer's head. Raises UpstreamError or ClientGone."""
        while self.head is None:
            self._raise(_OF_HEAD)
            await self._wait()
        return self.head

    def here(self) -> bytes:
        """What has come of the body, b"" if nothing has."""
        return self._take() if self._chunks else b""

    async def read(self) -> bytes:
        """All that has come of the body, at least one byte; b"" at its end. Raises UpstreamError or ClientGone."""
        while not self._chunks:
            if self.complete:
                return b""
            self._raise(_OF_HEAD)
            await self._wait()
        return self._take()

    async def pour(self, sink: Sink, drained: Callable[[], Awaitable[None]]) -> None:
        """Give every piece of the body to `sink` in the moment it arrives, until the body ends.

        No task wakes up for a piece, which is a third of what relaying a token costs. When `sink` returns False its reader
        is slow: reading pauses until `drained` returns. Raises UpstreamError or ClientGone.
        """
        while True:
            if self._paused:
                await drained()
                self._resume()
            if self._chunks:
                if not sink.piece(self._take()):
                    self._pause()
            elif self.complete:
                return
            else:
                self._raise(Phase.STREAM)
                self._sink = sink
                try:
                    await self._wait()
                finally:
                    self._sink = None

    def _take(self) -> bytes:
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self.waiting_bytes = 0
        if self._paused:
            self._resume()
        return data

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            if not self.closed:
                self._transport.resume_reading()

    def abandon(self, error: UpstreamError | None = None) -> None:
        """The client has gone (or, with an error, the router stops): close at once, so that the backend stops generating,
        and wake the reader."""
        if not self.complete and self._error is None:
            self._error = error or ClientGone()
        self.close()
        self._wake()

    def close(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def finished(self) -> bool:
        """True once the whole answer has come and been read."""
        return self.complete and not self._chunks

    @property
    def reusable(self) -> bool:
        clean = self.complete and self._keep_alive and not (self.closed or self._head_only or self._chunks)
        # A backend may answer before it has read the whole request; what is left of that must not meet the next one.
        return clean and self._transport is not None and self._transport.get_write_buffer_size() == 0

    def _wait(self) -> asyncio.Future[None]:
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _raise(self, phase: Phase) -> None:
        if self._error is None:
            return
        # A new one each time: one that was raised holds, by its traceback, the frames that hold this connection, a cycle that
        # would keep the request's body until the next garbage collection.
        if isinstance(self._error, ClientGone):
            raise ClientGone
        if isinstance(self._error, UpstreamError):
            raise UpstreamError(self._error.failure)
        stale = self.reused and self.bytes_in == 0 and self._lost_at - self._sent_at < _STALE_WITHIN
        raise UpstreamError(broken(self._error, phase, self._pool.spec, stale))

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._pool.heard = True
        sink = self._sink
        size = len(data)
        if (
            sink is not None
            and self._between_chunks
            and size < _TOO_LONG
            and data.startswith(HEADS[size])
            and data.endswith(b"\r\n")
        ):
            if not sink.chunk(data):
                self._flow(on=False)
            return
        if self.complete:  # bytes after the end of an answer belong to nobody
            self.bytes_in += size
            self.close()
            return
        self._hear(data)
        if self.waiting_bytes > HIGH_WATER:
            self._pause()
        if self._sink is None or self.complete:  # to a sink it has gone already
            self._wake()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def _flow(self, on: bool) -> None:
        if not on:
            self._sink = None
            self._pause()
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._lost_at = self._loop.time()
        if self._until_close and exc is None and not self.complete:
            self.complete = True
        if not self.complete and self._error is None:
            self._error = exc or EOFError()
        self._wake()
        self.resume_writing()
        self._pool.lost(self)
        del self._parser  # which holds this connection

    def _switch(self, rest: bytes) -> None:
        self._garbled("it switched protocols unasked")

    def _garbled(self, detail: str) -> None:
        spec = self._pool.spec
        if self._error is None:
            self._error = UpstreamError(Failure(Phase.HEAD, "garbage", f"{spec.name} sent no valid HTTP: {detail}"))
        self.close()
        self._wake()

    def _body(self, data: bytes) -> None:
        if self._sink is not None:
            self._flow(self._sink.piece(data))
        else:
            self._chunks.append(data)
            self.waiting_bytes += len(data)
