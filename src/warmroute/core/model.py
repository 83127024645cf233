"""The vocabulary: backends, sessions, decisions and failures as plain values."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit


class Trust(NamedTuple):
    """How a backend proves over TLS who it is, and the router to it: paths of PEM files.

    Without `ca` the system's authorities count; without `cert` the router shows none; `verify` False believes anybody.
    """

    ca: str | None = None
    cert: str | None = None
    cert_key: str | None = None
    verify: bool = True


SYSTEM = Trust()
"""The system's authorities, and no certificate of the router's own."""


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """What a backend is, from the configuration; how it is doing lives in `fleet.registry`.

    `weight` is its share of new sessions relative to the others (1.0 each by default); `key` is the one that it demands;
    `server_name` is whom its certificate must name, by default the host of its URL.
    """

    name: str
    url: str
    weight: float = 1.0
    key: str | None = field(default=None, repr=False)
    trust: Trust = SYSTEM
    server_name: str | None = None

    @property
    def tls(self) -> bool:
        return self.url.startswith("https:")

    @property
    def credentials(self) -> dict[str, str]:
        """The header that shows its key; none if it has no key."""
        return {} if self.key is None else {"authorization": f"Bearer {self.key}"}

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
    """A conversation as the router knows it: a 16-byte digest, and the source its identity came from.

    `parent` is the key of the session under which a sub-agent or a second conversation is named, b"" for most.
    """

    key: bytes
    source: str
    parent: bytes = b""


class Reason(StrEnum):
    """Why a request went where it went. A closed set: it labels metrics and the `x-warmroute-decision` header."""

    PIN_HIT = "pin_hit"  # the backend that holds this conversation
    PIN_LOST = "pin_lost"  # that backend is gone: chosen anew, the pin moves
    PIN_GONE = "pin_gone"  # that backend is gone, and sessions wait for theirs instead of moving
    PIN_COLD = "pin_cold"  # that backend has dropped this conversation, and is busy: chosen anew, the pin moves
    PIN_SPILL = "pin_spill"  # that backend is full: served elsewhere this once, the pin stays
    RING = "ring"  # a new session at its home on the ring
    RING_SPILL = "ring_spill"  # a new session whose home is over its bound: the next one in ring order
    HISTORY = "history"  # a new session that goes on with a history which this backend holds
    NEAR_PARENT = "near_parent"  # a new session that shares a beginning with the one it came from, and is put near it
    HEAD = "head"  # a new session; this backend knows more of its prompt's beginning than others
    OWNER = "owner"  # the backend that made the response which the request names
    OWNER_GONE = "owner_gone"  # that backend cannot be asked
    SIDE = "side"  # a title, a tag, a probe beside a conversation: least loaded, and no pin is touched
    NO_SESSION = "no_session"  # nothing identifies a conversation: least loaded
    BUSY = "busy"  # every backend that can take it is full
    NONE_AVAILABLE = "none_available"  # no backend can take it
    UNKNOWN_MODEL = "unknown_model"  # no backend serves the model


class PinChange(StrEnum):
    """What a decision does to the pin of its session."""

    NONE = "none"  # no session
    KEEP = "keep"
    BIND = "bind"
    MOVE = "move"


class Decision(NamedTuple):
    """Whom to ask and why. `backend` is None exactly when the reason is BUSY, NONE_AVAILABLE, OWNER_GONE or UNKNOWN_MODEL.

    `full` names the one backend that a BUSY request has to wait for, None if any will do.
    """

    reason: Reason
    backend: str | None = None
    engine: str | None = None
    change: PinChange = PinChange.NONE
    full: str | None = None


class Place(NamedTuple):
    """A backend, and one of its engines where it has several."""

    backend: str
    engine: str | None = None


class Near(NamedTuple):
    """Where a session without a pin would find some of its prompt, best first, and why: HISTORY, NEAR_PARENT or HEAD."""

    reason: Reason
    places: tuple[Place, ...]


class EngineLoad(Protocol):
    """How one engine (a data-parallel rank) of a backend is doing."""

    @property
    def engine(self) -> str: ...
    @property
    def sessions(self) -> int: ...
    @property
    def in_flight(self) -> int: ...


class Candidate(Protocol):
    """What a decision may read of a backend; `fleet.backend.BackendState` is one.

    `size` is that of its sessions together, in KiB of the prompts with which they came.
    """

    @property
    def name(self) -> str: ...
    @property
    def weight(self) -> float: ...
    @property
    def available(self) -> bool: ...
    @property
    def accepts_new(self) -> bool: ...
    @property
    def leaving(self) -> bool: ...
    @property
    def models(self) -> Collection[str] | None: ...
    @property
    def sessions(self) -> int: ...
    @property
    def size(self) -> int: ...
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
    @property
    def spills(self) -> int: ...


Candidates = Mapping[str, Candidate]


class Phase(StrEnum):
    """How far an exchange with a backend had come when it failed."""

    CONNECT = "connect"  # nothing was sent
    HEAD = "head"  # the request was sent, no content came back
    STREAM = "stream"  # content has been passed to the client


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an exchange with a backend failed.

    `kind` is a closed word for metrics (refused, timeout, unreachable, tls, reset, closed, garbage, removed,
    asleep); `detail` is for
    people.
    `stale` says that a kept-alive connection was found closed before a byte came back; `own` that the router itself is at
    fault (out of file descriptors, stopping): of neither the backend is to blame.
    """

    phase: Phase
    kind: str
    detail: str
    stale: bool = False
    own: bool = False
