"""Messages between the supervisor and one worker, in batches over a socket pair: a name and values each.

Both ends are the same program of the same user, one started by the other. So batches are pickled, which takes half the time of
anything that has to be described.
"""

import asyncio
import pickle  # nosec B403  # between processes of one user, of whom one has started the other
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

Message = tuple[Any, ...]
"""A name, and what belongs to it."""

_LENGTH = struct.Struct("!I")
_FULL = 64 << 20
"""Bytes that may wait for a reader; a batch beyond that is lost, and counted."""


class Channel(asyncio.Protocol):
    """One end. `take` gets the messages of a batch in order; `closed` is done when the other end is gone."""

    def __init__(self, take: Callable[[list[Message]], None]) -> None:
        self._take = take
        self._transport: asyncio.Transport | None = None
        self._got = bytearray()
        self._pending: list[Message] = []
        self._timer: asyncio.TimerHandle | None = None
        self.lost = 0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<Channel {'closed' if self.closed.done() else 'open'}, {self.lost} lost>"

    def tell(self, *message: Any, within: float = 0.0) -> None:
        """Send a message, at the latest after so many seconds and never before one that was told earlier."""
        self._pending.append(message)
        if not within:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(within, self.flush)

    def flush(self) -> None:
        """Send what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._pending = self._pending, []
        transport = self._transport
        if not batch or transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > _FULL:
            self.lost += len(batch)
            return
        data = pickle.dumps(batch, pickle.HIGHEST_PROTOCOL)
        transport.write(_LENGTH.pack(len(data)) + data)

    async def close(self) -> None:
        """Send what waits, and return when the other end has it or is gone."""
        self.flush()
        if self._transport is not None:
            self._transport.close()
            await self.closed

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        got = self._got
        got += data
        at = 0
        while len(got) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(got, at)
            begin = at + _LENGTH.size
            if len(got) < begin + length:
                break
            at = begin + length
            self._take(pickle.loads(got[begin:at]))  # nosec B301  # of a process of ours
        del got[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


async def open_channel(sock: socket.socket, take: Callable[[list[Message]], None]) -> Channel:
    """This end of a socket pair."""
    _, channel = await asyncio.get_running_loop().create_unix_connection(lambda: Channel(take), sock=sock)
    return channel
