"""Connections to backends: HTTP/1.1 on httptools, kept alive in a small pool, every exception mapped to a Failure once."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import cast
from urllib.parse import urlsplit

import httptools

from ..core.model import BackendSpec, Failure, Phase

HIGH_WATER = 64 * 1024
"""Bytes of an answer that may wait for a slow client before reading from the backend pauses."""


Sink = Callable[[bytes], bool]
"""Takes a piece of a body; returns False if its reader is too slow for more now."""


class UpstreamError(Exception):
    """An exchange failed; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class ClientGone(Exception):
    """The client left, so the exchange was given up."""


class Connection(asyncio.Protocol):
    """One connection and the exchange that runs on it: write the request, read head and body, one after another."""

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._loop = pool.loop
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self.idle_since = 0.0
        self.reused = False
        self.closed = False
        self._begin(head_only=False)

    def __repr__(self) -> str:
        return f"<Connection to {self._pool.spec.name} {'closed' if self.closed else 'complete' if self.complete else 'busy'}>"

    def _begin(self, head_only: bool) -> None:
        self._head_only = head_only
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.head_seen = False
        self.complete = False
        self.bytes_in = 0
        self._keep_alive = False
        self._until_close = False
        self._chunks: list[bytes] = []
        self.waiting_bytes = 0
        self._paused = False
        self._sink: Sink | None = None
        self._error: BaseException | None = None

    # What the owner of the exchange calls

    def send(self, head: bytes, body: bytes, *, head_only: bool) -> None:
        """Begin an exchange. `head_only`: the answer has no body whatever its headers say (HEAD)."""
        assert self._transport is not None
        self._begin(head_only)
        if body and len(body) < HIGH_WATER:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            if body:
                self._transport.write(body)

    async def read_head(self) -> None:
        """Wait until `status` and `headers` are there. Raises UpstreamError or ClientGone."""
        while not self.head_seen:
            self._raise(Phase.HEAD)
            await self._wait()

    async def read(self) -> bytes:
        """All that has come of the body, at least one byte; b"" at its end. Raises UpstreamError or ClientGone."""
        while not self._chunks:
            if self.complete:
                return b""
            self._raise(Phase.HEAD)
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
                if not sink(self._take()):
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

    def abandon(self) -> None:
        """The client has gone: close at once, so that the backend stops generating, and wake the reader."""
        if not self.complete and self._error is None:
            self._error = ClientGone()
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
        return self.complete and self._keep_alive and not self.closed and not self._head_only

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _raise(self, phase: Phase) -> None:
        if self._error is None:
            return
        if isinstance(self._error, UpstreamError | ClientGone):
            raise self._error
        stale = self.reused and self.bytes_in == 0
        raise UpstreamError(_broken(self._error, phase, self._pool.spec, stale))

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.bytes_in += len(data)
        if self.complete:  # bytes after the end of an answer belong to nobody
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._garbled("it switched protocols unasked")
        except httptools.HttpParserError as error:
            self._garbled(str(error))
        if self.waiting_bytes > HIGH_WATER:
            self._pause()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._until_close and exc is None and not self.complete:
            self.complete = True
        if not self.complete and self._error is None:
            self._error = exc or EOFError()
        self._wake()
        self._pool.lost(self)

    def _garbled(self, detail: str) -> None:
        spec = self._pool.spec
        if self._error is None:
            self._error = UpstreamError(Failure(Phase.HEAD, "garbage", f"{spec.name} sent no valid HTTP: {detail}"))
        self.close()
        self._wake()

    # What the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.head_seen:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.head_seen:  # a second answer in the same bytes: nobody asked for it
            self._keep_alive = False
            return
        self.status = self._parser.get_status_code()
        if self.status < 200:
            return
        self._keep_alive = self._parser.should_keep_alive()
        names = {name.lower() for name, _ in self.headers}
        has_body = self.status not in (204, 304)
        self._until_close = has_body and not names & {b"content-length", b"transfer-encoding"}
        self.head_seen = True
        if self._head_only:
            self.complete = True
        self._wake()

    def on_body(self, data: bytes) -> None:
        if self._sink is not None:
            if not self._sink(data):
                self._sink = None
                self._pause()
                self._wake()
        elif not self.complete:
            self._chunks.append(data)
            self.waiting_bytes += len(data)
            self._wake()

    def on_message_complete(self) -> None:
        if not self.head_seen:  # an interim answer (1xx): the real one follows
            self.headers.clear()
            return
        if not self._until_close:
            self.complete = True
            self._wake()


def _broken(error: BaseException, phase: Phase, spec: BackendSpec, stale: bool) -> Failure:
    if isinstance(error, EOFError):
        return Failure(phase, "closed", f"{spec.name} closed the connection without finishing its answer", stale)
    return Failure(phase, "reset", f"the connection to {spec.name} broke: {error}", stale)


def _connect_failure(error: OSError | TimeoutError, spec: BackendSpec, timeout: float) -> Failure:
    if isinstance(error, ConnectionRefusedError):
        return Failure(Phase.CONNECT, "refused", f"connection refused by {spec.host}:{spec.port}")
    if isinstance(error, TimeoutError):
        return Failure(Phase.CONNECT, "timeout", f"no connection to {spec.host}:{spec.port} within {timeout:g} s")
    if isinstance(error, ssl.SSLError):
        return Failure(Phase.CONNECT, "tls", f"TLS with {spec.host}:{spec.port} failed: {error.reason or error}")
    return Failure(
        Phase.CONNECT, "unreachable", f"cannot connect to {spec.host}:{spec.port}: {error.strerror or error}"
    )


class Pool:
    """The connections to one backend. Nothing waits here: a free one is reused, else a new one is opened."""

    def __init__(
        self,
        spec: BackendSpec,
        loop: asyncio.AbstractEventLoop,
        *,
        connect_timeout: float,
        keepalive_expiry: float,
        clock: Callable[[], float],
    ) -> None:
        self.spec = spec
        self.loop = loop
        self.host_header = urlsplit(spec.url).netloc.encode()
        self.base_path = spec.base_path.encode()
        self._connect_timeout = connect_timeout
        self._expiry = keepalive_expiry
        self._clock = clock
        self._tls = ssl.create_default_context() if spec.tls else None
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Pool {self.spec.name} {len(self._open)} open, {len(self._idle)} idle>"

    @property
    def connections(self) -> frozenset[Connection]:
        """Every open connection, idle or busy."""
        return frozenset(self._open)

    def idle(self) -> Connection | None:
        """A kept-alive connection, the one used last; None if there is none."""
        limit = self._clock() - self._expiry
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and connection.idle_since > limit:
                connection.reused = True
                return connection
            connection.close()
        return None

    async def connect(self) -> Connection:
        """A new connection. Raises UpstreamError with phase CONNECT."""
        spec = self.spec
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await self.loop.create_connection(
                    lambda: Connection(self),
                    spec.host,
                    spec.port,
                    ssl=self._tls,
                    server_hostname=spec.host if self._tls else None,
                )
        except OSError as error:  # TimeoutError and ssl.SSLError are OSErrors too
            raise UpstreamError(_connect_failure(error, spec, self._connect_timeout)) from error
        self._open.add(connection)
        return connection

    def release(self, connection: Connection) -> None:
        """Take a connection back after an exchange; one that did not end cleanly is closed."""
        if connection.reusable:
            connection.idle_since = self._clock()
            self._idle.append(connection)
            if self._sweep is None:
                self._sweep = self.loop.call_later(self._expiry, self._close_expired)
        else:
            connection.close()

    def lost(self, connection: Connection) -> None:
        self._open.discard(connection)

    def close(self) -> None:
        """Close everything, running exchanges too."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._open):
            connection.close()
        self._idle.clear()

    def _close_expired(self) -> None:
        limit = self._clock() - self._expiry
        kept = [c for c in self._idle if not c.closed and c.idle_since > limit]
        for connection in set(self._idle) - set(kept):
            connection.close()
        self._idle = kept
        self._sweep = self.loop.call_later(self._expiry / 2, self._close_expired) if kept else None


class Exchange:
    """One request on one connection, which goes back to its pool on every way out of the `with` block."""

    __slots__ = ("_pool", "connection")

    def __init__(self, pool: Pool, connection: Connection) -> None:
        self._pool = pool
        self.connection = connection

    def __enter__(self) -> Connection:
        return self.connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.release(self.connection)
