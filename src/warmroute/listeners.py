"""Listening sockets and the uvicorn servers on them: two in one process, neither of which owns the signals."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

_BACKLOG = 4096
_CANCEL_AFTER = 5
"""Seconds after `limits.shutdown` in which ended requests may still tell their clients so."""
_KEEP_ALIVE = 75
"""Seconds that an idle connection is kept by protocols that have no deadlines of their own."""


class StartError(Exception):
    """The router cannot start; one line says why."""


class Server(uvicorn.Server):
    """A uvicorn server that leaves signals to the router, of which it is one of two listeners.

    `tick` is called some ten times a second while it listens.
    """

    def __init__(self, config: uvicorn.Config, tick: Callable[[], None] | None = None) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self._tick = tick

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def on_tick(self, counter: int) -> bool:
        if self._tick is not None:
            self._tick()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, opened before anything starts so that a port in use is one line and no traceback."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return sock


def server(
    app: Any, http: Callable[..., asyncio.Protocol], graceful: float, tick: Callable[[], None] | None = None
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
        tick,
    )


def url_of(host: str, sock: socket.socket) -> str:
    port = sock.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"
