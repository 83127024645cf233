"""One simulated vLLM server on a socket: start it, use its URL, stop it."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import uvicorn

from warmroute.sim.engine import Engine
from warmroute.sim.options import SimOptions
from warmroute.sim.server import SimServer

__all__ = ["SimBackend", "SimOptions", "run"]

_KEEP_ALIVE_S: Final = 5  # as vLLM
_DATE_PERIOD_S: Final = 1.0  # the date header shows whole seconds


class SimBackend:
    """A simulated vLLM server in this event loop; many can run side by side.

    Each start is that of a new process: empty caches, counters at zero. Stopping is like a kill: connections break.
    """

    def __init__(self, options: SimOptions | None = None, *, rng: random.Random | None = None) -> None:
        self.options = options or SimOptions()
        self._rng = rng or random.Random()  # nosec B311  # of made-up answers
        self._host = ""
        self._port = 0
        self._app: SimServer | None = None
        self._http: _HttpServer | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port it listens on; that of the last start once it is stopped, 0 before the first."""
        return self._port

    @property
    def url(self) -> str:
        """Its base URL. Raises RuntimeError before the first start."""
        if not self._port:
            raise RuntimeError("the server has no address yet; await start() first")
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @property
    def engines(self) -> Sequence[Engine]:
        """The engines by rank, to look at. Raises RuntimeError when it does not run."""
        if self._app is None:
            raise RuntimeError("the server does not run; await start() first")
        return [driver.engine for driver in self._app.drivers]

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen, on a free port if `port` is 0, and answer requests when this returns.

        Raises OSError when the address cannot be used, RuntimeError when the server runs already.
        """
        if self._serving is not None:
            raise RuntimeError(f"the server runs already at {self.url}; stop it first")
        listener = _listen(host, port)
        self._host, self._port = host, int(listener.getsockname()[1])
        self._app = SimServer(self.options, now=time.time, rng=self._rng)
        config = uvicorn.Config(
            self._app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        self._http = _HttpServer(config)
        self._serving = asyncio.get_running_loop().create_task(self._http.serve([listener]))
        await self._http.until_started(self._serving)

    async def stop(self) -> None:
        """Break all connections and free the port at once. Does nothing when the server does not run."""
        app, http, serving = self._app, self._http, self._serving
        self._app = self._http = self._serving = None
        if app is None or http is None or serving is None:
            return
        http.break_connections()
        # Handlers learn of their lost connection in the next turn of the loop, and then end without a word.
        await asyncio.sleep(0)
        app.close()
        await serving

    async def __aenter__(self) -> SimBackend:
        if self._serving is None:
            await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __repr__(self) -> str:
        state = "stopped" if self._app is None else repr(self._app)
        return f"SimBackend({self._host}:{self._port}, {state})"


async def run(
    options: SimOptions, host: str = "127.0.0.1", port: int = 0, *, announce: Callable[[str], None] = print
) -> None:
    """Serve until cancelled; `announce` gets one line with the address."""
    backend = SimBackend(options)
    await backend.start(host, port)
    try:
        announce(f"simulated vLLM server, model {options.model}: {backend.url}")
        await asyncio.get_running_loop().create_future()
    finally:
        await backend.stop()


class _HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers, for the process is not ours, and with an end that does not wait."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(_DATE_PERIOD_S):
                    await self._ending.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or ():
            listener.close()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks)

    async def until_started(self, serving: asyncio.Task[None]) -> None:
        while not self.started:
            if serving.done():
                serving.result()
                raise OSError("the HTTP server ended while it was starting")
            await asyncio.sleep(0)

    def break_connections(self) -> None:
        for listening in self.servers:
            listening.close()
        for connection in list(self.server_state.connections):
            transport = connection.transport
            if isinstance(transport, asyncio.Transport):
                transport.abort()
        self.should_exit = True
        self._ending.set()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OSError(
            error.errno, f"cannot listen on {host}:{port}: {error.strerror}; choose another address or port"
        ) from error
    return listener
