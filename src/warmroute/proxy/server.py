"""uvicorn's HTTP protocol for the data port: strict heads, ignored upgrades, deadlines, and word of a client that left."""

import asyncio
import re
from collections.abc import Callable
from enum import Enum
from functools import partial
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ..core import routes
from ..core.headers import Headers
from ..core.routes import Protocol
from . import errors, tls
from .deadlines import Door, Guest, Mark, Wait, Waiting
from .errors import Code, RouterError
from .heads import fault_of, size_of
from .refusals import UNKNOWN, Refusals
from .taking import taken
from .wire import Wire

EXTENSION = "warmroute.connection"
"""The key of the ASGI scope's extensions under which the application finds its connection."""

_HEAD_LIMIT = 64 << 10
"""Bytes of a request's line and headers, and of what surrounds the parts of a chunked body."""
_PIPELINE_LIMIT = 16
"""Requests that may wait behind a running one on the same connection."""
_REQUEST_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64} ([!-~]+) HTTP/1\.[01]\r\n")


class _At(Enum):
    """Which part of a request comes next: its first byte, the rest of its head, or of its body."""

    START = 0
    HEAD = 1
    BODY = 2


_START, _HEAD, _BODY = _At


class _Refused(Exception):
    """The head of a request is refused; it ends the parser's work."""


class DataProtocol(HttpToolsProtocol):
    """One client connection.

    ASGI tells of a client that left only to whoever waits for the next message, which would cost a task for each request;
    here the request leaves a callback instead. `broken` says why the rest of the body that is being read will not come.
    """

    url = b""
    running: RequestResponseCycle
    mark: Mark | None = None
    handshake: Guest | None = None
    broken: RouterError | None = None
    _left: Callable[[], None] | None = None
    _at = _START
    _head_bytes = 0
    _body_bytes = 0
    _framing_bytes = 0
    _drains = 0
    _replaying = False
    _deaf = False
    _refusal: RouterError | None = None

    def __init__(self, door: Door, refusals: Refusals, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._door = door
        self._refusals = refusals

    @classmethod
    def behind(cls, door: Door, refusals: Refusals) -> Callable[..., asyncio.Protocol]:
        """What makes the connections of a listener, as uvicorn wants it."""
        return partial(cls, door, refusals)

    # What asyncio calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._own_transport = transport
        self.wire = Wire(transport, self._lingers)
        if self.handshake is not None:
            self._door.leave(self.handshake)
            tls.settle(transport)
        if self._door.enter(self):
            super().connection_made(self.wire)  # type: ignore[arg-type]
        else:
            self.transport = self.wire  # type: ignore[assignment]
            self._deaf = True  # no request has come: the door counts this, and there is nothing to record
            error = errors.too_many_connections(self._door.limit)
            self._end_with(error.status, error.headers(), error.body(Protocol.OPENAI))

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.leave(self)
        self._door.gone(self._own_transport)
        self.wire.lingering = True
        super().connection_lost(exc)
        if self._left is not None:
            self._left()

    def resume_writing(self) -> None:
        self._drains += 1
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._at is not _BODY:
            self._head_bytes += len(data)
        had = self._body_bytes
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserInvalidMethodError:
            began_here = self._head_bytes == len(data)
            self._refuse(self._unknown_method(data) if began_here else errors.not_http())
        except httptools.HttpParserError:
            self._garbled()
        if self._deaf:
            return
        if self._at is _BODY:
            self._framing_bytes = 0 if self._body_bytes != had else self._framing_bytes + len(data)
            if self._framing_bytes > _HEAD_LIMIT:
                self._garbled()
        elif self._head_bytes > _HEAD_LIMIT:
            self._refuse(errors.head_too_large(_HEAD_LIMIT))
        elif len(self.pipeline) > _PIPELINE_LIMIT:
            self.transport.close()

    # What the application calls

    def answer_begins(self) -> None:
        """Let the answer say `connection: close` if the listener will soon be closed and no other request waits behind it.

        Idle connections are left open meanwhile: a request may be on its way on any of them.
        """
        if self._door.closing and not self.pipeline:
            self.cycle.keep_alive = False

    def watch(self, left: Callable[[], None] | None) -> None:
        """Call `left` when the client goes away, or at once if it has; None ends the watch."""
        self._left = left
        if left is None:
            return
        if self.transport.is_closing():
            left()
        elif not self.pipeline:
            # A large body may have paused reading, and a paused connection does not notice its end.
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """Go on with the next request. Unlike uvicorn's own, it sets no timer: the door sees who is idle."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._refusal is not None:
            self._answer(self._refusal)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """`running` is the request that the application is called for: not in its scope, which it holds itself."""
        self.running = cycle
        super()._start_asgi_task(cycle, app)

    # What the door calls

    def waiting(self) -> Waiting | None:
        """What the client is waited for now; None while it is the client that waits, or the end is near."""
        if self.wire.lingering:
            return None
        cycle = self.cycle
        waits = cycle is not None and not cycle.response_complete
        unsent = self._own_transport.get_write_buffer_size()
        if unsent and (self.flow.write_paused or not waits):
            seen = taken(self._own_transport, unsent, tls=self.handshake is not None)
            return Waiting(Wait.SEND, self._drains, seen)
        if self.transport.is_closing():
            return None
        if self._at is _BODY:
            unheard = self.flow.read_paused or self.pipeline
            return None if unheard else Waiting(Wait.BODY, cycle, self._body_bytes)
        if waits:
            return None
        return Waiting(Wait.HEAD if cycle is None or self._at is _HEAD else Wait.IDLE, cycle, 0)

    def time_out(self, wait: Wait) -> None:
        """End the connection, with 408 where a request has begun and no answer has."""
        if wait is Wait.SEND:
            self._own_transport.abort()
        elif wait is Wait.BODY:
            self._end_body(errors.body_too_slow())
        elif self._at is _HEAD:
            self._refuse(errors.head_too_slow())
        else:
            self.transport.close()

    # What the parser calls

    def on_message_begin(self) -> None:
        if self._replaying:
            return
        self._at = _HEAD
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope["extensions"] = {EXTENSION: self}

    def on_url(self, url: bytes) -> None:
        if not self._replaying:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer would come here too: it must not look like a header (RFC 9110, 6.5.1), and nobody needs one.
        if self._at is _HEAD:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if not self._replaying:
            self._refusal = fault_of(self.headers, self.parser.get_http_version())
            if (
                self._head_bytes > _HEAD_LIMIT and size_of(self.url, self.headers) > _HEAD_LIMIT
            ):  # it came whole in one read
                self._refusal = errors.head_too_large(_HEAD_LIMIT)
            if self._refusal is not None:
                raise _Refused
            super().on_headers_complete()
        self._at, self._head_bytes, self._framing_bytes = _BODY, 0, 0

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._at = _START
        super().on_message_complete()

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Go on as if nobody had asked for another protocol (RFC 9110, 7.8: a server may).

        The parser takes the end of such a head for the end of HTTP and never looks at the body. Java's client offers HTTP/2
        in this way by default. A fresh parser takes over behind the head, told only how the body is framed.
        """
        framing = [pair for pair in self.headers if pair[0] in (b"content-length", b"transfer-encoding")]
        self.parser = httptools.HttpRequestParser(self)
        self._replaying = True
        head = b"POST / HTTP/1.1\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in framing)
        try:
            self.parser.feed_data(head + b"\r\n")
        finally:
            self._replaying = False
        if self._at is _BODY:
            self.cycle.more_body = True
            self.cycle.message_event.clear()
        if rest:
            self.data_received(rest)

    # How a connection ends

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP in the shape of every other error."""
        self._refuse(errors.not_http())

    def _garbled(self) -> None:
        if self._at is _BODY:
            self._end_body(errors.not_http())
        else:
            self._refuse(self._refusal or errors.not_http())

    def _end_body(self, error: RouterError) -> None:
        """The body being read will not be whole. Whoever reads it answers with this error; if nobody does, all ends here."""
        self._deaf = True
        if self.cycle.response_complete:
            self.transport.close()
        elif self.cycle.response_started or self.broken is not None:
            self._own_transport.abort()
        else:
            self.broken = error
            self.cycle.message_event.set()

    def _refuse(self, error: RouterError) -> None:
        """Answer with this error and hear no more, behind the answers that are on their way."""
        self._deaf = True
        self._refusal = error
        if self.cycle is None or self.cycle.response_complete:
            self._answer(error)

    def _answer(self, error: RouterError) -> None:
        # Only of a method that the parser does not know is a path or a method refused here.
        known = self.url and error.code not in (Code.UNKNOWN_PATH, Code.METHOD_NOT_ALLOWED)
        method = self.parser.get_method().decode() if known else UNKNOWN
        since = self.mark.since if self.mark is not None and self.mark.waiting.wait is Wait.HEAD else None
        route = routes.find(self.url.partition(b"?")[0])
        self._end_with(
            error.status, *self._refusals.answer(error, route, method=method, headers=self.headers or (), since=since)
        )

    def _end_with(self, status: int, headers: Headers, body: bytes) -> None:
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode(), b"connection: close"]
        lines += [b"%b: %b" % pair for pair in (*headers, (b"content-length", b"%d" % len(body)))]
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        self.transport.close()

    def _unknown_method(self, data: bytes) -> RouterError:
        """The answer to a method that the parser does not know, if all else of the request's line is HTTP."""
        line = _REQUEST_LINE.match(data)
        if line is None:
            return errors.not_http()
        self.url = line[1]
        route = routes.find(line[1].partition(b"?")[0])
        if route is None:
            return errors.not_found(line[1].decode())
        return errors.method_not_allowed(route.label, route.methods)

    def _lingers(self) -> bool:
        """Take over a closing under which the client may be sending still."""
        if not self._deaf and self._at is not _BODY:
            return False
        if self.cycle is not None and not self.cycle.response_complete:
            return False
        self._deaf = True
        self._door.linger(self._own_transport, self.loop)
        return True
