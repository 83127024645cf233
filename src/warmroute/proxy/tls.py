"""TLS on a listener: takes connections, shakes hands within a deadline, and lets another certificate take over."""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

from .connection import HIGH_WATER
from .deadlines import Door, Mark, Wait, Waiting

log = logging.getLogger("warmroute.tls")

_AT_ONCE = 64
"""Connections that are taken before others of the loop have their turn."""
_END = 2.0
"""Seconds in which a client may end its side of TLS, and goes unheard, when ours has ended."""
_AGAIN_AFTER = 1.0
"""Seconds after which connections are taken again when the router had no descriptor left."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Identity:
    """The certificate that a listener shows. `current` may be replaced: handshakes that begin from then on show the new one.

    `context` is what connections are made with; what it had at first does not matter to them.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = self.current = context
        context.sni_callback = self._choose

    def __repr__(self) -> str:
        return f"<Identity{'' if self.current is self.context else ' renewed'}>"

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """OpenSSL asks at every handshake, also of a client that names nobody."""
        connection.context = self.current


class _Handshake:
    """A client that has connected and is not known yet; the door sees it as one that is waited for."""

    mark: Mark | None = None
    task: asyncio.Task[None]

    def waiting(self) -> Waiting | None:
        return Waiting(Wait.HEAD, self, 0)

    def time_out(self, wait: Wait) -> None:
        self.task.cancel()


class SecureListener:
    """What uvicorn holds in place of a server of the loop's own, which would shake hands with any number of clients at once,
    and give each of them a minute.

    `timeout`: seconds for a handshake. With a `door` they count as its guests, and it is the door that ends them, by its
    deadline of heads. `failed` is called for each handshake that a client did not bring to its end.
    """

    def __init__(
        self,
        sock: socket.socket,
        identity: Identity,
        make: Callable[[], Any],
        *,
        timeout: float,
        door: Door | None,
        failed: Callable[[], None],
    ) -> None:
        self.sockets = (sock,)
        self._sock, self._identity, self._make = sock, identity, make
        self._timeout = timeout if door is None else 2 * timeout
        self._door, self._failed = door, failed
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        self._listen()

    def __repr__(self) -> str:
        return f"<SecureListener {len(self._tasks)} handshakes>"

    def close(self) -> None:
        """Take no more connections, and end handshakes that have not come to their end."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _listen(self) -> None:
        self._again = None
        self._loop.add_reader(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                log.warning("no connection can be taken for %g s: %s", _AGAIN_AFTER, error.strerror)
                self._loop.remove_reader(self._sock.fileno())
                self._again = self._loop.call_later(_AGAIN_AFTER, self._listen)
                return
            connection.setblocking(False)
            guest = _Handshake()
            if self._door is not None and not self._door.enter(guest):
                connection.close()
                continue
            guest.task = asyncio.ensure_future(self._shake(connection, guest))
            self._tasks.add(guest.task)
            guest.task.add_done_callback(self._tasks.discard)

    async def _shake(self, connection: socket.socket, guest: _Handshake) -> None:
        try:
            await self._loop.connect_accepted_socket(
                partial(self._known, guest),
                connection,
                ssl=self._identity.context,
                ssl_handshake_timeout=self._timeout,
                ssl_shutdown_timeout=_END,
            )
        except OSError:  # whatever the client did: no TLS, an old one, an end, or nothing for too long
            self._failed()
        finally:
            if self._door is not None:
                self._door.leave(guest)

    def _known(self, guest: _Handshake) -> asyncio.Protocol:
        protocol = self._make()
        protocol.handshake = guest
        return protocol  # type: ignore[no-any-return]


def settle(transport: asyncio.Transport) -> None:
    """Let a connection over TLS hold no more for a slow client than one without: by default it is eight times as much."""
    transport.set_write_buffer_limits(HIGH_WATER)
