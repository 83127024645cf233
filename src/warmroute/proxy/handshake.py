"""A WebSocket before it is one: the client's connection holds what comes early, the backend's takes a 101 for an answer."""

import asyncio
from collections.abc import Callable

from ..core import routes, websocket
from ..core.headers import Headers
from ..core.model import Failure, Phase
from . import errors
from .client import Client
from .connection import HIGH_WATER, Connection
from .deadlines import Wait, Waiting
from .errors import RouterError
from .failures import UpstreamError
from .server import DataProtocol

SWITCHED = 101
"""The status of an answer after which the connection is a WebSocket."""


def refusal(client: Client) -> RouterError | None:
    """Why a request that can only be a handshake is none; None if it is one."""
    if client.switches:
        return None
    head = client.head
    told = [] if client.length is None else [(b"content-length", b"%d" % client.length)]
    return _fault([*head.headers, *told], head.version) or errors.bad_handshake("is not understood")


def _fault(headers: Headers, http_version: str) -> RouterError | None:
    if not websocket.asks(headers):
        return errors.upgrade_required("can only be a WebSocket; ask for one with Upgrade: websocket")
    why = websocket.fault(headers, http_version)
    if why is not None:
        return errors.bad_handshake(why)
    if not websocket.is_version(headers):
        return errors.upgrade_required("takes WebSockets of Sec-WebSocket-Version 13 alone")
    return None


class SwitchingProtocol(DataProtocol):
    """One client connection, which becomes a WebSocket where a valid handshake asks for that on a path that has them.

    `early` is None before such a handshake; then it holds what the client has sent behind it, and nothing of that is ever
    read as HTTP. `tunnel`, once there is one, tells what it waits for.
    """

    early: list[bytes] | None = None
    tunnel: Callable[[], Waiting] | None = None

    def data_received(self, data: bytes) -> None:
        if self.early is None:
            super().data_received(data)
        elif not self._deaf:
            self._hold(data)

    def waiting(self) -> Waiting | None:
        seen = super().waiting()
        if seen is not None or self.tunnel is None or self.wire.is_closing():
            return seen
        return self.tunnel()

    def time_out(self, wait: Wait) -> None:
        if self.tunnel is not None:
            assert self.latest is not None
            self.latest.complete = True  # from now on it is waited only for the client to take what is left
        super().time_out(wait)

    def _ignore_upgrade(self, rest: bytes) -> None:
        client = self.latest
        assert client is not None
        head = client.head
        here = head.path == routes.REALTIME.label.encode() and head.method in routes.REALTIME.methods
        if not here or _fault(self.headers, head.version) is not None:
            super()._ignore_upgrade(rest)
            return
        client.switches = True
        client.keep_alive = False  # of an answer that refuses: what follows may be frames already
        self.early = []
        self._hold(rest)

    def _hold(self, data: bytes) -> None:
        assert self.early is not None
        if data:
            self.early.append(data)
        if sum(map(len, self.early)) > HIGH_WATER:
            self.flow.pause_reading()

    def _lingers(self) -> bool:
        if self.early is not None and self.tunnel is None:
            self._deaf = True
        return super()._lingers()


class Handshake(Connection):
    """A fresh connection for one handshake. A 101 to a WebSocket is its answer, after which `take` hands it over."""

    _rest = b""

    @property
    def given_up(self) -> Failure | None:
        """Why the router itself has ended the exchange, if it has."""
        return self._error.failure if isinstance(self._error, UpstreamError) else None

    def take(self, protocol: asyncio.Protocol) -> tuple[asyncio.Transport, bytes]:
        """Let the transport speak to this protocol from now on; returns it, and what has come behind the 101 already.

        Raises UpstreamError or ClientGone if the connection was lost meanwhile.
        """
        if self.closed and self._error is None:
            self._error = EOFError()
        self._raise(Phase.HEAD)
        assert self._transport is not None
        self.switched = True
        self._transport.set_protocol(protocol)
        self._resume()
        return self._transport, self._rest

    def on_headers_complete(self) -> None:
        if self.head is not None or self._parser.get_status_code() != SWITCHED:
            super().on_headers_complete()
        elif websocket.switches(self._headers):
            self.status, self._until_close = SWITCHED, True
            self._has_head(keep_alive=False)
        else:
            self._garbled("it switched to another protocol than a WebSocket")

    def _switch(self, rest: bytes) -> None:
        if self.status != SWITCHED:
            super()._switch(rest)
            return
        self._rest = rest
        self._pause()
