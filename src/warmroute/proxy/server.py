"""uvicorn's HTTP protocol for the data port: bounded heads, ignored upgrades, and word of a client that left."""

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..core.routes import Protocol
from .errors import RouterError

EXTENSION = "warmroute.connection"
"""The key of the ASGI scope's extensions under which the application finds its connection."""

_HEAD_LIMIT = 64 << 10
"""Bytes of a request's line and headers."""
_PIPELINE_LIMIT = 16
"""Requests that may wait behind a running one on the same connection."""

_NOT_HTTP = RouterError(400, "bad_request", "this is not a valid HTTP/1.1 request; nothing of it was sent on")
_HEAD_TOO_LARGE = RouterError(431, "headers_too_large", f"the request's headers are larger than {_HEAD_LIMIT} bytes")
_REASONS = {400: b"Bad Request", 431: b"Request Header Fields Too Large"}


class CorkedTransport:
    """A transport that can gather what is written to it and send it as one: head and body of an answer are one system
    call instead of two, which is a tenth of what a short request costs."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._held: list[bytes] | None = None
        self.uncorked_write = transport.write
        for name in ("is_closing", "pause_reading", "resume_reading", "get_extra_info"):
            setattr(self, name, getattr(transport, name))

    def write(self, data: bytes) -> None:
        if self._held is None:
            self._transport.write(data)
        else:
            self._held.append(data)

    def cork(self) -> None:
        """Hold what is written until `uncork`."""
        if self._held is None:
            self._held = []

    def uncork(self) -> None:
        """Send what was held."""
        held, self._held = self._held, None
        if held:
            self._transport.write(b"".join(held))

    def close(self) -> None:
        self.uncork()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class DataProtocol(HttpToolsProtocol):
    """One client connection.

    ASGI tells of a client that left only to whoever waits for the next message, which would cost a task for each request;
    here the request leaves a callback instead.
    """

    _left: Callable[[], None] | None = None
    _head_bytes = 0
    _in_head = True
    _replaying = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.corked = CorkedTransport(transport)
        super().connection_made(self.corked)  # type: ignore[arg-type]

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

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._left is not None:
            self._left()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("")
            return
        if self._in_head and self._head_bytes > _HEAD_LIMIT:
            self._refuse(_HEAD_TOO_LARGE)
        elif len(self.pipeline) > _PIPELINE_LIMIT:
            self.transport.close()

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
        if framing and self.parser is not None:
            self.cycle.more_body = True
            self.cycle.message_event.clear()
        self._in_head = not framing
        if rest:
            self.data_received(rest)

    def on_message_begin(self) -> None:
        if self._replaying:
            return
        self._in_head = True
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope["extensions"] = {EXTENSION: self}

    def on_url(self, url: bytes) -> None:
        if not self._replaying:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._replaying:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        if not self._replaying:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP in the shape of every other error."""
        self._refuse(_NOT_HTTP)

    def _refuse(self, error: RouterError) -> None:
        body = error.body(Protocol.OPENAI)
        head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(head % (error.status, _REASONS[error.status], len(body)) + body)
        self.transport.close()
