"""Listening sockets and the uvicorn servers on them: two in one process, neither of which owns the signals."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import uvicorn

from .proxy.deadlines import Door
from .proxy.tls import Identity, SecureListener

_BACKLOG = 4096
_CANCEL_AFTER = 5
"""Seconds after `limits.shutdown` in which ended requests may still tell their clients so."""
_KEEP_ALIVE = 75
"""Seconds that an idle connection is kept by protocols that have no deadlines of their own."""


class StartError(Exception):
    """The router cannot start; one line says why."""


class Secure(NamedTuple):
    """TLS of a listener: the certificate, seconds for a handshake, and whom to tell of those that fail."""

    identity: Identity
    timeout: float
    failed: Callable[[], None]

    @classmethod
    def by(cls, context: ssl.SSLContext | None, timeout: float, failed: Callable[[], None]) -> "Secure | None":
        """None where there is no certificate."""
        return None if context is None else cls(Identity(context), timeout, failed)


def renew(secure: Secure | None, context: ssl.SSLContext | None) -> None:
    """Show another certificate at the handshakes that begin from now on, if it is a listener with TLS."""
    if secure is not None and context is not None:
        secure.identity.current = context


class Server(uvicorn.Server):
    """A uvicorn server that leaves signals to the router, of which it is one of two listeners.

    With a `door` its deadlines are looked at some ten times a second. With `secure` it speaks TLS.
    """

    def __init__(self, config: uvicorn.Config, door: Door | None = None, secure: Secure | None = None) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self._door = door
        self._secure = secure

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        secure = self._secure
        await super().startup(sockets if secure is None else [])
        for sock in sockets or () if secure is not None else ():
            assert secure is not None
            listener: Any = SecureListener(
                sock, secure.identity, self._protocol, timeout=secure.timeout, door=self._door, failed=secure.failed
            )
            self.servers.append(listener)  # which uvicorn closes, and waits for that
        self.ready.set()

    def _protocol(self) -> Any:
        return self.config.http_protocol_class(  # type: ignore[call-arg]  # as uvicorn does
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state, _loop=None
        )

    async def on_tick(self, counter: int) -> bool:
        if self._door is not None:
            self._door.sweep()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket, opened before anything starts so that a port in use is one line and no traceback.

    Others may listen there as well if all of them are `shared`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return sock


def listen_too(others: Iterable[socket.socket], host: str, port: int) -> socket.socket:
    """`listen`; the other sockets are closed where it fails."""
    try:
        return listen(host, port)
    except StartError:
        for sock in others:
            sock.close()
        raise


def server(
    app: Any,
    http: Callable[..., asyncio.Protocol],
    graceful: float,
    door: Door | None = None,
    secure: Secure | None = None,
) -> Server:
    """A server that is ready to serve; `http` makes its connections, `graceful` is how long stopping may take, in seconds."""
    return Server(
        uvicorn.Config(
            app,
            http=http,  # type: ignore[arg-type]  # it is only ever called
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            date_header=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=round(graceful) + _CANCEL_AFTER,
        ),
        door,
        secure,
    )


def url_of(host: str, sock: socket.socket, secure: bool) -> str:
    port = sock.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # nosec B104  # told, not bound
    return f"{'https' if secure else 'http'}://{shown}:{port}"
