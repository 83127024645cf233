"""One client's connection: reads its requests, strictly, and has them answered one after another, with deadlines for both."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from ..core import routes
from ..core.headers import Headers, as_lines
from ..core.routes import Protocol
from . import errors, tls
from .client import Client
from .deadlines import Door, Guest, Mark, Wait, Waiting
from .errors import Code, RouterError
from .heads import Head, KnownHeads
from .reading import BODY, HEAD, Reading
from .refusals import UNKNOWN, Refusals
from .taking import taken
from .wire import Wire

Serve = Callable[[Client], Coroutine[Any, Any, None]]
"""Answers one request."""


_PIPELINE_LIMIT = 16
"""Requests that may wait behind a running one on the same connection."""


class DataProtocol(Reading, asyncio.Protocol):
    """One client connection, in the place of uvicorn's own: a request is handed to `serve` itself, and not through ASGI.

    `running` is the request that is answered, or was answered last. `broken` says why the rest of the body that is being
    read will not come.
    """

    running: Client | None = None
    mark: Mark | None = None
    handshake: Guest | None = None
    broken: RouterError | None = None
    _drains = 0

    def __init__(
        self, door: Door, refusals: Refusals, known: KnownHeads, serve: Serve, *, server_state: ServerState, **_: object
    ) -> None:
        """`server_state` and what is not looked at come from uvicorn."""
        super().__init__(known)
        self._door = door
        self._refusals = refusals
        self._serve = serve
        self._state = server_state
        self._loop = asyncio.get_running_loop()
        self.pipeline: deque[Client] = deque()

    @classmethod
    def behind(
        cls, door: Door, refusals: Refusals, serve: Serve, clock: Callable[[], float]
    ) -> Callable[..., asyncio.Protocol]:
        """What makes the connections of a listener, as uvicorn wants it. They know each other's heads."""
        return partial(cls, door, refusals, KnownHeads(clock), serve)

    # What asyncio calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._own_transport = transport
        self.wire = Wire(transport, self._lingers)
        self.flow = FlowControl(self.wire)  # type: ignore[arg-type]
        if self.handshake is not None:
            self._door.leave(self.handshake)
            tls.settle(transport)
        if self._door.enter(self):
            self._state.connections.add(self)  # type: ignore[arg-type]
        else:
            self._deaf = True  # no request has come: the door counts this, and there is nothing to record
            error = errors.too_many_connections(self._door.limit)
            self._end_with(error.status, error.headers(), error.body(Protocol.OPENAI))

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.leave(self)
        self._door.gone(self._own_transport)
        self._state.connections.discard(self)
        self.wire.lost()
        for client in {self.latest, self.running}:
            if client is not None:
                client.left()
        self.flow.resume_writing()
        if exc is None:
            self.wire.close()
        # All that holds this connection is let go, for what is left as a cycle costs a look at all that lives.
        del self.parser
        self.latest = self.running = self.mark = None
        self.pipeline.clear()

    def pause_writing(self) -> None:
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        self._drains += 1
        self.flow.resume_writing()

    # What uvicorn calls

    def shutdown(self) -> None:
        """End the connection, or let the answer on its way be the last one."""
        if self.latest is None or self.latest.complete:
            self.wire.close()
        else:
            self.latest.keep_alive = False

    # What a request calls

    def begins_to_answer(self, client: Client) -> None:
        """Let the answer say `connection: close` if the listener will soon be closed and no other request waits behind it.

        Idle connections are left open meanwhile: a request may be on its way on any of them.
        """
        if self._door.closing and not self.pipeline:
            client.keep_alive = False

    def answered(self, client: Client) -> None:
        """Go on with the next request. No timer is set: the door sees who is idle."""
        self._state.total_requests += 1
        if not client.keep_alive:
            self.wire.close()
        if self.wire.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._run(self.pipeline.popleft())
        elif self._refusal is not None:
            self._answer(self._refusal)

    def _begin(self, head: Head, length: int | None) -> None:
        """A request has begun; it runs at once unless another one is before it."""
        before, self.latest = self.latest, Client(self, head, length)
        if before is None or before.complete:
            self._run(self.latest)
        else:
            self.flow.pause_reading()
            self.pipeline.append(self.latest)
            if len(self.pipeline) > _PIPELINE_LIMIT:
                self._deaf = True
                self.wire.close()

    def _run(self, client: Client) -> None:
        self.running = client
        tasks = self._state.tasks
        task = self._loop.create_task(self._serve(client))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    # What the door calls

    def waiting(self) -> Waiting | None:
        """What the client is waited for now; None while it is the client that waits, or the end is near."""
        if self.wire.lingering:
            return None
        latest = self.latest
        waits = latest is not None and not latest.complete
        unsent = self._own_transport.get_write_buffer_size()
        if unsent and (self.flow.write_paused or not waits):
            seen = taken(self._own_transport, unsent, tls=self.handshake is not None)
            return Waiting(Wait.SEND, self._drains, seen)
        if self.wire.is_closing():
            return None
        if self._at is BODY:
            unheard = self.flow.read_paused or self.pipeline
            return None if unheard else Waiting(Wait.BODY, latest, self._body_bytes)
        if waits:
            return None
        return Waiting(Wait.HEAD if latest is None or self._at is HEAD else Wait.IDLE, latest, 0)

    def time_out(self, wait: Wait) -> None:
        """End the connection, with 408 where a request has begun and no answer has."""
        if wait is Wait.SEND:
            self._own_transport.abort()
        elif wait is Wait.BODY:
            self._end_body(errors.body_too_slow())
        elif self._at is HEAD:
            self._refuse(errors.head_too_slow())
        else:
            self.wire.close()

    # How a connection ends

    def _end_body(self, error: RouterError) -> None:
        """The body being read will not be whole. Whoever reads it answers with this error; if nobody does, all ends here."""
        self._deaf = True
        latest = self.latest
        assert latest is not None
        if latest.complete:
            self.wire.close()
        elif latest.started or self.broken is not None:
            self._own_transport.abort()
        else:
            self.broken = error
            latest.wake()

    def _refuse(self, error: RouterError) -> None:
        """Answer with this error and hear no more, behind the answers that are on their way."""
        self._deaf = True
        self._refusal = error
        if self.latest is None or self.latest.complete:
            self._answer(error)

    def _answer(self, error: RouterError) -> None:
        # Only of a method that the parser does not know is a path or a method refused here.
        known = self.url and error.code not in (Code.UNKNOWN_PATH, Code.METHOD_NOT_ALLOWED)
        method = self.parser.get_method().decode() if known else UNKNOWN
        since = self.mark.since if self.mark is not None and self.mark.waiting.wait is Wait.HEAD else None
        route = routes.find(self.url.partition(b"?")[0])
        self._end_with(
            error.status, *self._refusals.answer(error, route, method=method, headers=self.headers, since=since)
        )

    def _end_with(self, status: int, headers: Headers, body: bytes) -> None:
        lines = as_lines([(b"connection", b"close"), *headers, (b"content-length", b"%d" % len(body))])
        self.wire.write(b"%b%b\r\n%b" % (STATUS_LINE[status], lines, body))
        self.wire.close()

    def _lingers(self) -> bool:
        """Take over a closing under which the client may be sending still."""
        if not self._deaf and self._at is not BODY:
            return False
        if self.latest is not None and not self.latest.complete:
            return False
        self._deaf = True
        self._door.linger(self._own_transport, self._loop)
        return True
