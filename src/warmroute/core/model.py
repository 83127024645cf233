"""The vocabulary: backends, sessions, decisions and failures as plain values."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """What a backend is, from the configuration; how it is doing lives in `fleet.registry`.

    `weight` is its share of new sessions relative to the others (1.0 each by default).
    """

    name: str
    url: str
    weight: float = 1.0

    @property
    def tls(self) -> bool:
        return self.url.startswith("https:")

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or (443 if self.tls else 80)

    @property
    def base_path(self) -> str:
        return urlsplit(self.url).path.rstrip("/")


class Session(NamedTuple):
    """A conversation as the router knows it: a 16-byte digest, and the source its identity came from."""

    key: bytes
    source: str


class Reason(StrEnum):
    """Why a request went where it went. A closed set: it labels metrics and the `x-warmroute-decision` header."""

    PIN_HIT = "pin_hit"  # the backend that holds this conversation
    PIN_LOST = "pin_lost"  # that backend is gone: chosen anew, the pin moves
    RING = "ring"  # a new session at its home on the ring
    RING_SPILL = "ring_spill"  # a new session whose home is over its bound: the next one in ring order
    NO_SESSION = "no_session"  # nothing identifies a conversation: least loaded
    NONE_AVAILABLE = "none_available"  # no backend can take it
    UNKNOWN_MODEL = "unknown_model"  # no backend serves the model


class PinChange(StrEnum):
    """What a decision does to the pin of its session."""

    NONE = "none"  # no session
    KEEP = "keep"
    BIND = "bind"
    MOVE = "move"


class Decision(NamedTuple):
    """Whom to ask and why. `backend` is None exactly when the reason is NONE_AVAILABLE or UNKNOWN_MODEL."""

    reason: Reason
    backend: str | None = None
    engine: str | None = None
    change: PinChange = PinChange.NONE


class EngineLoad(Protocol):
    """How one engine (a data-parallel rank) of a backend is doing."""

    @property
    def engine(self) -> str: ...
    @property
    def sessions(self) -> int: ...
    @property
    def in_flight(self) -> int: ...


class Candidate(Protocol):
    """What a decision may read of a backend; `fleet.registry.BackendState` is one."""

    @property
    def name(self) -> str: ...
    @property
    def weight(self) -> float: ...
    @property
    def available(self) -> bool: ...
    @property
    def accepts_new(self) -> bool: ...
    @property
    def models(self) -> Collection[str] | None: ...
    @property
    def sessions(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def engines(self) -> Sequence[EngineLoad]: ...


class PinView(Protocol):
    """What a decision may read of a pin; `pins.memory.Pin` is one."""

    @property
    def backend(self) -> str: ...
    @property
    def engine(self) -> str | None: ...


Candidates = Mapping[str, Candidate]


class Phase(StrEnum):
    """How far an exchange with a backend had come when it failed."""

    CONNECT = "connect"  # nothing was sent
    HEAD = "head"  # the request was sent, no content came back
    STREAM = "stream"  # content has been passed to the client


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an exchange with a backend failed.

    `kind` is a closed word for metrics (refused, timeout, unreachable, tls, reset, closed, garbage); `detail` is for people.
    `stale` says that a kept-alive connection was found closed before a byte came back; `own` that the router itself is at
    fault (out of file descriptors, stopping): of neither the backend is to blame.
    """

    phase: Phase
    kind: str
    detail: str
    stale: bool = False
    own: bool = False
