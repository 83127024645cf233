"""The connections to one backend: kept alive, reused or newly opened, closed before vLLM closes them."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from urllib.parse import quote, urlsplit

from ..core.model import BackendSpec, Failure
from .answer_head import LastHead
from .connection import Connection
from .failures import UpstreamError, removed, unconnected

_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (
            ("TCP_KEEPIDLE", 15),
            ("TCP_KEEPINTVL", 5),
            ("TCP_KEEPCNT", 4),
            ("TCP_USER_TIMEOUT", 30_000),
        )
        if hasattr(socket, name)
    ),
)
"""A host that has lost its power says nothing: half a minute of silence to the kernel's questions ends a connection."""

_TLS_END = 2.0
"""Seconds in which a backend may end its side of TLS when ours has ended."""


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
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls` is how a backend with an https URL is known: it must be there for one."""
        if spec.tls and tls is None:
            raise ValueError(f"no TLS context for {spec.url}")
        self.spec = spec
        self.loop = loop
        self.host_header = urlsplit(spec.url).netloc.encode()
        self.shown_name = quote(spec.name, safe=":/[]@").encode()
        self.base_path = spec.base_path.encode()
        self._connect_timeout = connect_timeout
        self._expiry = keepalive_expiry
        self._clock = clock
        self._tls = tls if spec.tls else None
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self.heard = False
        self.last_head = LastHead()
        self.retired = False

    def __repr__(self) -> str:
        retired = " retired" if self.retired else ""
        return f"<Pool {self.spec.name}{retired} {len(self._open)} open, {len(self._idle)} idle>"

    def is_for(self, spec: BackendSpec, tls: ssl.SSLContext | None) -> bool:
        """Whether its connections are those that this backend wants, to the same server and known in the same way."""
        mine = self.spec
        return (mine.url, mine.server_name) == (spec.url, spec.server_name) and self._tls is (tls if spec.tls else None)

    def configure(self, *, connect_timeout: float, keepalive_expiry: float) -> None:
        """Take other times, in seconds, from now on."""
        self._connect_timeout, self._expiry = connect_timeout, keepalive_expiry

    def retire(self) -> None:
        """The backend is no longer configured: running exchanges end, and no new one begins."""
        self.retired = True
        self._close_idle()

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

    async def connect(self, make: type[Connection] = Connection) -> Connection:
        """A new connection, of a kind. Raises UpstreamError with phase CONNECT."""
        spec, tls = self.spec, self._tls
        if self.retired:
            raise UpstreamError(removed(spec))
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await self.loop.create_connection(
                    lambda: make(self),
                    spec.host,
                    spec.port,
                    ssl=tls,
                    server_hostname=(spec.server_name or spec.host) if tls else None,
                    ssl_shutdown_timeout=_TLS_END if tls else None,
                )
        except OSError as error:  # TimeoutError and ssl.SSLError are OSErrors too
            raise UpstreamError(unconnected(error, self._connect_timeout)) from error
        if self.retired:
            connection.close()
            raise UpstreamError(removed(spec))
        self._open.add(connection)
        connection.set_options(_KEEP_ALIVE)
        return connection

    def release(self, connection: Connection) -> None:
        """Take a connection back after an exchange; one that did not end cleanly is closed."""
        if connection.reusable and not self.retired:
            connection.idle_since = self._clock()
            self._idle.append(connection)
            if self._sweep is None:
                self._sweep = self.loop.call_later(self._expiry, self._close_expired)
        else:
            connection.close()

    def lost(self, connection: Connection) -> None:
        self._open.discard(connection)

    def was_heard(self) -> bool:
        """Whether the backend has sent anything since this was last asked."""
        heard, self.heard = self.heard, False
        return heard

    def stop_exchanges(self, failure: Failure, *, tunnels: bool = True) -> None:
        """End every running exchange with this failure; WebSockets too, if `tunnels`."""
        for connection in self.connections:
            if tunnels or not connection.switched:
                connection.abandon(UpstreamError(failure))

    def stop_tunnels(self, failure: Failure) -> None:
        """End every WebSocket with this failure."""
        for connection in self.connections:
            if connection.switched:
                connection.abandon(UpstreamError(failure))

    def close(self) -> None:
        """Close everything, running exchanges too."""
        self._close_idle()
        for connection in list(self._open):
            connection.close()

    def _close_idle(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _close_expired(self) -> None:
        limit = self._clock() - self._expiry
        kept = [c for c in self._idle if not c.closed and c.idle_since > limit]
        for connection in set(self._idle) - set(kept):
            connection.close()
        self._idle = kept
        self._sweep = self.loop.call_later(self._expiry / 2, self._close_expired) if kept else None
