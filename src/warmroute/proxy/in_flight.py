"""What one request has come to: everything that its hops hand on."""

from dataclasses import dataclass, field

from ..core.relay import Relay
from ..core.routes import Route
from ..observe.record import RequestRecord
from ..recognition.recognizer import Listener, Turn
from .client import Client
from .request import Request


@dataclass(slots=True)
class InFlight:
    """One request on its way. `body` is what is sent on; `relay` and `listener` are those of the answer that streams.

    `exclude` names the backends that have failed it; `sent` counts those that have had it sent to them.
    """

    request: Request
    route: Route
    client: Client
    record: RequestRecord
    turn: Turn
    model: str | None
    body: bytes
    asks_tokens: bool = False
    relay: Relay | None = None
    listener: Listener | None = None
    exclude: set[str] = field(default_factory=set)
    sent: int = 0

    def for_backend(self, engine: str | None) -> list[tuple[bytes, bytes]]:
        """The headers that a backend gets from the router: the request's id, and the engine where there are several."""
        rank = [] if engine is None else [(b"x-data-parallel-rank", engine.encode())]
        return [(b"x-request-id", self.record.id.encode()), *rank]
