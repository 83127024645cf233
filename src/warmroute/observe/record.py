"""Everything known about one request at its end; the one source of access log, metrics and recent requests."""

from msgspec import Struct, field

from ..core.model import Failure
from ..core.residency import Held
from ..core.trace import Hop
from ..core.usage import NO_USAGE, Usage
from ..truth.ledger import NO_PROMPT, Answered, Prompt


class Line(Struct, gc=False):
    """A record as the access log and the state show it, in the order in which people read it. Times are seconds."""

    time: float
    id: str
    method: str
    path: str
    status: int
    backend: str | None
    engine: str | None
    decision: str
    key_source: str | None
    session: str | None
    attempts: int
    failures: list[str]
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    connect_s: float | None
    ttfb_s: float | None
    duration_s: float
    bytes_in: int
    bytes_out: int
    aborted: bool
    resumed: str | None
    error: str | None
    tenant: str | None


class RequestRecord(Struct):
    """One request. Times are seconds since its arrival (`started` is the clock at arrival); None where it never happened.

    `path` is a route's label and never what a client typed; `session` is a keyed digest and never an id. `resumed` says how a
    stream that broke off was gone on with: "resumed", or why not. `held` is what the engine had of the session when it was
    chosen. `error` is the code of the router's own error, if that is what the client got.
    """

    id: str
    method: str
    path: str
    started: float
    time: float
    status: int = 0
    backend: str | None = None
    engine: str | None = None
    decision: str = "none"
    key_source: str | None = None
    session: str | None = None
    refused_keys: tuple[tuple[str, str], ...] = ()
    attempts: int = 0
    usage: Usage = NO_USAGE
    prompt: Prompt = NO_PROMPT
    held: Held | None = None
    hop: Hop | None = None
    connected_s: float | None = None
    first_byte_s: float | None = None
    duration_s: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    aborted: bool = False
    moved: bool = False
    resumed: str | None = None
    error: str | None = None
    tenant: str = ""
    failures: list[tuple[str, Failure]] = field(default_factory=list)

    def reasons(self) -> list[str]:
        """Each failed attempt in a few words for people."""
        return [
            failure.detail if failure.detail.startswith(f"{backend} ") else f"{backend}: {failure.detail}"
            for backend, failure in self.failures
        ]

    def answered(self) -> Answered | None:
        """The request as the ledger takes it; None if no backend has answered it."""
        if self.backend is None or self.first_byte_s is None or self.status >= 400:
            return None
        ended = self.started + self.duration_s
        held = self.held if self.resumed is None else None
        return Answered(self.backend, self.engine, self.decision, self.usage, self.started, ended, held)

    def line(self) -> Line:
        """The record as flat JSON values."""
        prompt, cached, completion = self.usage
        connect, first = self.connected_s, self.first_byte_s
        return Line(
            round(self.time * 1e3) / 1e3,
            self.id,
            self.method,
            self.path,
            self.status,
            self.backend,
            self.engine,
            self.decision,
            self.key_source,
            self.session,
            self.attempts,
            self.reasons() if self.failures else [],
            prompt,
            cached,
            completion,
            None if connect is None else round(connect * 1e6) / 1e6,
            None if first is None else round(first * 1e6) / 1e6,
            round(self.duration_s * 1e6) / 1e6,
            self.bytes_in,
            self.bytes_out,
            self.aborted,
            self.resumed,
            self.error,
            self.tenant or None,
        )
