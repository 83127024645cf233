"""Everything known about one request at its end; the one source of access log, metrics and recent requests."""

from dataclasses import dataclass, field

from ..core.model import Failure
from ..core.residency import Held
from ..core.trace import Hop
from ..core.usage import NO_USAGE, Usage
from ..truth.ledger import NO_PROMPT, Answered, Prompt


@dataclass(slots=True)
class RequestRecord:
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

    def as_dict(self) -> dict[str, object]:
        """The record as flat JSON values, in the order in which people read it."""
        return {
            "time": round(self.time, 3),
            "id": self.id,
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "backend": self.backend,
            "engine": self.engine,
            "decision": self.decision,
            "key_source": self.key_source,
            "session": self.session,
            "attempts": self.attempts,
            "failures": self.reasons(),
            "prompt_tokens": self.usage.prompt,
            "cached_tokens": self.usage.cached,
            "completion_tokens": self.usage.completion,
            "connect_s": _rounded(self.connected_s),
            "ttfb_s": _rounded(self.first_byte_s),
            "duration_s": _rounded(self.duration_s),
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "aborted": self.aborted,
            "resumed": self.resumed,
            "error": self.error,
            "tenant": self.tenant or None,
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
