"""A body that is sent on while it comes: what its beginning has not told is never held here."""

import asyncio
from types import TracebackType

from .body import BodyRefused, ClientLeft, Incoming
from .connection import Connection

OPENING = 256 << 10
"""Bytes of an upload that are read before a backend is chosen: the fields before its file, the model's among them."""

_REFUSALS = 400
"""From this status on an answer ends what is still being sent (RFC 9112, 9.3)."""


class Upload:
    """The rest of one request's body, behind its opening.

    Within `async with upload.to(connection)` it goes there as it comes and as fast as the backend takes it. `begun` tells
    whether any of it was taken from the client: then no other backend can be given the whole.
    """

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming
        self._connection: Connection | None = None
        self._sending: asyncio.Task[None] | None = None
        self._refused: BodyRefused | None = None
        self.begun = False

    def __repr__(self) -> str:
        return f"<Upload of {self._incoming!r}{' begun' if self.begun else ''}>"

    @property
    def length(self) -> int | None:
        """Bytes of the whole body; None where the client does not say, and it is sent in chunks."""
        return self._incoming.length

    @property
    def ended(self) -> bool:
        """Whether all of the client's body was taken."""
        return self._incoming.ended

    def framed(self, data: bytes) -> bytes:
        """Some bytes of the body as they are sent."""
        return data if self.length is not None else b"%x\r\n%b\r\n" % (len(data), data) if data else b""

    def to(self, connection: Connection) -> "Upload":
        self._connection = connection
        return self

    async def __aenter__(self) -> None:
        assert self._connection is not None
        self._sending = asyncio.get_running_loop().create_task(self._send(self._connection))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._sending is not None
        assert self._connection is not None
        if not self._sending.done():
            self._connection.close()  # the rest of this body must not meet the next request
            self._sending.cancel()
        await asyncio.wait([self._sending])
        if not self._sending.cancelled():
            self._sending.result()
        if self._refused is not None:
            raise self._refused

    async def _send(self, connection: Connection) -> None:
        try:
            while not self._incoming.ended and not connection.closed and connection.status < _REFUSALS:
                self.begun = True
                connection.write(self.framed(await self._incoming.next()))
                await connection.writable()
            if self._incoming.ended and self.length is None:
                connection.write(b"0\r\n\r\n")
        except ClientLeft:
            connection.abandon()
        except BodyRefused as refused:
            self._refused = refused
            connection.abandon()
