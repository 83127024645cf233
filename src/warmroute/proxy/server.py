"""uvicorn's HTTP protocol for the data port, which also tells a running request at once that its client has gone."""

from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..core.routes import Protocol
from .errors import RouterError

EXTENSION = "warmroute.connection"
"""The key of the ASGI scope's extensions under which the application finds its connection."""

_NOT_HTTP = RouterError(400, "bad_request", "this is not a valid HTTP/1.1 request; nothing of it was sent on")


class DataProtocol(HttpToolsProtocol):
    """One client connection.

    ASGI tells of a client that left only to whoever waits for the next message, which would cost a task for each request;
    here the request leaves a callback instead.
    """

    _left: Callable[[], None] | None = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope["extensions"] = {EXTENSION: self}

    def watch(self, left: Callable[[], None] | None) -> None:
        """Call `left` when the client goes away, or at once if it has; None ends the watch."""
        self._left = left
        if left is None:
            return
        if self.transport.is_closing():
            left()
        else:
            # A large body may have paused reading, and a paused connection does not notice its end.
            self.flow.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._left is not None:
            self._left()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP in the shape of every other error."""
        body = _NOT_HTTP.body(Protocol.OPENAI)
        head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(head % len(body) + body)
        self.transport.close()
