"""What one request has come to: everything that its hops hand on."""

from dataclasses import dataclass, field

from ..core.questions import Asked
from ..core.relay import Relay
from ..core.routes import REALTIME, Route
from ..observe.record import RequestRecord
from ..recognition.recognizer import Listener, Turn
from .client import Client
from .connection import Connection
from .handshake import Handshake
from .request import Request
from .upload import Upload


@dataclass(slots=True, weakref_slot=True)
class InFlight:
    """One request on its way. `asked` is what is sent on, of an `upload` its opening.

    `relay` and `listener` are those of the answer that streams. `exclude` names the backends that have failed it; `sent`
    counts those that have had it sent to them. `label` is what backends that tell about their caches call the session.
    """

    request: Request
    route: Route
    client: Client
    record: RequestRecord
    turn: Turn
    model: str | None
    asked: Asked
    label: str | None = None
    upload: Upload | None = None
    relay: Relay | None = None
    listener: Listener | None = None
    exclude: set[str] = field(default_factory=set)
    sent: int = 0

    def for_backend(self, engine: str | None, key: str | None) -> list[tuple[bytes, bytes]]:
        """The headers that a backend gets from the router: the request's id, the engine where there are several, its key."""
        headers = [(b"x-request-id", self.record.id.encode())]
        if key is not None:
            headers.append((b"authorization", b"Bearer " + key.encode()))
        if engine is not None:
            headers.append((b"x-data-parallel-rank", engine.encode()))
        hop = self.record.hop
        if hop is not None:
            headers.append((b"traceparent", hop.header))
            if hop.parent is None and self.request.header(b"tracestate") is not None:
                headers.append((b"tracestate", b""))  # that of a trace which this one does not belong to
        if self.label is not None:
            headers.append((b"x-session-id", self.label.encode()))
        if self.upload is not None and self.upload.length is None:
            headers.append((b"transfer-encoding", b"chunked"))
        if self.route is REALTIME:
            headers += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
        return headers

    @property
    def opens(self) -> type[Connection]:
        """The kind of connection that it takes to a backend."""
        return Handshake if self.route is REALTIME else Connection

    @property
    def fresh(self) -> bool:
        """Whether that must be a new one: one that turns out to be closed could not be made up for."""
        return self.upload is not None or self.route is REALTIME

    @property
    def body_length(self) -> int | None:
        """Bytes of the body that a backend gets; None where there is none, or nobody knows yet."""
        if self.upload is not None:
            return self.upload.length
        return len(self.asked.body) if self.asked.body or self.request.method == "POST" else None

    @property
    def repeatable(self) -> bool:
        """Whether it can be sent once more: all of it is at hand."""
        return self.upload is None or not self.upload.begun

    def may_close(self) -> None:
        """Before the answer begins: end the connection with it if the rest of an upload is not asked for any more."""
        if self.upload is not None and not self.upload.ended:
            self.client.keep_alive = False
