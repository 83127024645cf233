"""A WebSocket through the router: two connections whose bytes go to each other, with no task between them."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..core.model import Decision, Failure, Phase
from ..core.websocket import Frames, close_frame
from .client import Client
from .connection import Connection
from .deadlines import Wait, Waiting
from .failures import ClientGone, UpstreamError
from .handshake import Handshake, SwitchingProtocol
from .in_flight import InFlight
from .placement import Placed

_SERVICE_RESTART = 1012
_INTERNAL_ERROR = 1011

Begin = Callable[[InFlight, Decision, Connection], None]


async def through(x: InFlight, placed: Placed, connection: Connection, begin: Begin) -> None:
    """Relay a WebSocket until the backend's side has ended. `begin` tells the client that it is one, and must not wait.

    Raises UpstreamError (Phase.STREAM, if it has begun) where the backend or the router ended it without a close frame of
    the backend's, ClientGone where the client did.
    """
    assert isinstance(connection, Handshake)
    if x.client.gone:
        raise ClientGone
    tunnel = Tunnel(x.client, connection)
    placed.lease.may_be_silent()
    begin(x, placed.decision, connection)
    try:
        await tunnel.run()
    finally:
        x.record.bytes_in, x.client.bytes_out = tunnel.bytes_in, tunnel.bytes_out


class _End(asyncio.Protocol):
    """One side of a tunnel: what comes from it goes to the other, and what the other cannot take yet makes it wait.

    `owner` is the protocol that the transport had before, which still wants to know how it fares. `ended`: nothing more
    comes from this side; `finished`: nothing more is sent to it.
    """

    other: "_End"
    transport: Any

    def __init__(self, owner: asyncio.Protocol, tell: Callable[["_End", Exception | None], None]) -> None:
        self._owner = owner
        self._tell = tell
        self.bytes = 0
        self.ended = self.lost = self.finished = False
        self.frames: Frames | None = None

    def __repr__(self) -> str:
        return f"<_End of {self._owner!r} {self.bytes} bytes{' lost' if self.lost else ' ended' if self.ended else ''}>"

    def data_received(self, data: bytes) -> None:
        if self.other.transport.is_closing():
            return
        self.bytes += len(data)
        if self.frames is not None:
            self.frames.feed(data)
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        self._owner.pause_writing()
        if not self.other.transport.is_closing():
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        self._owner.resume_writing()
        self.other.go_on_reading()

    def eof_received(self) -> bool:
        self.ended = True
        self._tell(self, None)
        return self.half_closes and not self.transport.is_closing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = self.lost = True
        self._tell(self, exc)
        self._owner.connection_lost(exc)

    @property
    def half_closes(self) -> bool:
        """Whether one direction can end alone; under TLS it cannot."""
        return self.transport.get_extra_info("ssl_object") is None

    def finish(self) -> None:
        """Send what is left, and that it is the end; this side may go on."""
        if self.finished or self.transport.is_closing():
            return
        self.finished = True
        if self.half_closes:
            self.transport.write_eof()
        else:
            self.transport.close()

    def close(self) -> None:
        """Send what is left, and end."""
        if not self.transport.is_closing():
            self.transport.close()

    def go_on_reading(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()


class Tunnel:
    """The two sides, and which of them has ended it.

    Making one takes the backend's connection over; raises UpstreamError or ClientGone if that is lost. A client may end its
    direction alone, and still gets the rest. The backend's end is that of the whole: no WebSocket goes on when its server
    has ended its direction. The client may then take what is left, under the deadlines of every connection, and holds no
    place at the backend meanwhile.
    """

    def __init__(self, client: Client, connection: Handshake) -> None:
        guest = client.connection
        assert isinstance(guest, SwitchingProtocol)
        self._client, self._guest, self._connection = client, guest, connection
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._first: _End | None = None
        self._failure: Failure | None = None
        self._frames = Frames()
        self._front = _End(guest, self._front_ended)
        self._back = _End(connection, self._back_ended)
        self._front.other, self._back.other = self._back, self._front
        self._back.frames = self._frames
        self._front.transport = guest.wire
        self._back.transport, self._came = connection.take(self._back)

    def __repr__(self) -> str:
        return f"<Tunnel {self._front!r} {self._back!r}>"

    @property
    def bytes_in(self) -> int:
        """Bytes that came from the client."""
        return self._front.bytes

    @property
    def bytes_out(self) -> int:
        """Bytes that came from the backend."""
        return self._back.bytes

    async def run(self) -> None:
        """Pass bytes on until it is over. Raises as `through` does."""
        guest, front, back = self._guest, self._front, self._back
        early = guest.early or []
        guest.tunnel = self._waiting
        guest.wire.set_protocol(front)
        guest.flow.resume_reading()
        for data in early:
            front.data_received(data)
        early.clear()
        if self._came:
            back.data_received(self._came)
        try:
            await self._over
        finally:
            if not back.lost:
                back.transport.abort()
                front.transport.abort()
            self._client.complete = True
        if self._failure is not None:
            self._client.finished = True
            raise UpstreamError(self._failure)
        if self._first is front and not self._frames.closed:
            raise ClientGone
        self._client.finished = True

    def _waiting(self) -> Waiting:
        """What the door sees of it: how much has passed, and whether a side has ended, so that the other should soon."""
        half = self._front.ended or self._back.ended
        return Waiting(Wait.IDLE if half else Wait.TUNNEL, self, self._front.bytes + self._back.bytes)

    def _front_ended(self, end: _End, exc: Exception | None) -> None:
        self._first = self._first or end
        if self._back.ended:
            end.close()
        else:
            self._back.finish()

    def _back_ended(self, end: _End, exc: Exception | None) -> None:
        front = self._front
        if self._first is None:
            self._first, self._failure = end, self._why(exc)
        if not end.lost:
            end.transport.abort()
            return
        self._client.complete = True  # from now on the client is waited for like any that is idle
        if front.ended:
            front.close()
        else:
            self._say_why()
            front.finish()
            front.go_on_reading()
        if not self._over.done():
            self._over.set_result(None)

    def _why(self, exc: Exception | None) -> Failure | None:
        """Why the backend's side has ended first; None if it has said so in its own frames."""
        given_up = self._connection.given_up
        if given_up is not None:
            return replace(given_up, phase=Phase.STREAM)
        if self._frames.closed:
            return None
        if exc is None:
            return Failure(Phase.STREAM, "closed", "it ended the WebSocket without a close frame")
        why = getattr(exc, "strerror", None) or exc
        return Failure(Phase.STREAM, "reset", f"the WebSocket broke: {why}")

    def _say_why(self) -> None:
        """A close frame from the router, if it is the router that ends the WebSocket, and between two frames."""
        failure, front = self._connection.given_up, self._front
        if failure is None or front.finished or front.transport.is_closing():
            return
        if self._frames.between:
            code = _SERVICE_RESTART if failure.own else _INTERNAL_ERROR
            front.transport.write(close_frame(code, failure.detail))
