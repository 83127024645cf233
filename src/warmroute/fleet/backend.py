"""How one backend and each of its engines is doing, as decisions, metrics and pages read it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core.drain import Drain
from ..core.health import Health
from ..core.model import BackendSpec
from ..core.outlier import Outlier, Rest
from ..core.progress import Progress
from ..pins.memory import PinTable
from .scrape import Scrape


@dataclass(slots=True)
class EngineState:
    """One data-parallel rank: its gauges at the last scrape, and the requests this router has there."""

    backend: str
    engine: str
    pins: PinTable
    in_flight: int = 0
    running: int | None = None
    waiting: int | None = None
    kv_cache_usage: float | None = None

    @property
    def sessions(self) -> int:
        return self.pins.engine_sessions(self.backend, self.engine)


@dataclass(slots=True, repr=False)
class BackendState:
    """How one backend is doing. Decisions read it as a `core.model.Candidate`.

    `unproven`: it has come to backends that work, so it is not used before its first check. `models_read` numbers the read
    that its models are from. `processes` counts its restarts: each one begins with an empty cache. `stayed` is set while it is
    not wanted any more and only emptied: to how it was drained before. `asleep`: it says that it is in vLLM's sleep mode.
    """

    spec: BackendSpec
    pins: PinTable
    since: float
    health: Health = field(default_factory=Health)
    outlier: Outlier = field(default_factory=Outlier)
    heard_at: float = 0.0
    drain: Drain = field(default_factory=Drain)
    stayed: Drain | None = None
    unproven: bool = False
    asleep: bool = False
    models: frozenset[str] | None = None
    models_error: str | None = None
    models_read: int = 0
    model_cards: list[dict[str, object]] = field(default_factory=list)
    engines: Sequence[EngineState] = ()
    in_flight: int = 0
    silent: int = 0
    requests: int = 0
    failures: int = 0
    scrape: Scrape = field(default_factory=Scrape)
    progress: Progress = field(default_factory=Progress)
    processes: int = 0
    name: str = field(init=False)
    weight: float = field(init=False)

    def __post_init__(self) -> None:
        self.name, self.weight = self.spec.name, self.spec.weight

    def __repr__(self) -> str:
        return f"<Backend {self.name} {self.state}, {self.sessions} sessions, {self.in_flight} in flight>"

    @property
    def available(self) -> bool:
        up = self.health.up
        may = not self.unproven if up is None else up
        return may and self.outlier.admits and not self.drain.over and not self.asleep

    @property
    def works(self) -> bool:
        """Whether it is known to be up, and may be asked."""
        return bool(self.health.up) and not self.asleep and self.outlier.admits and not self.drain.over

    @property
    def reason(self) -> str:
        """Why it is not in use, for people; empty if it is."""
        if self.asleep and self.health.usable:
            return "it is in sleep mode, and used again when it is awake"
        if self.going and self.health.usable:
            return "it is no longer wanted, and goes when it is empty"
        over = "its drain is over; undrain it to use it again" if self.drain.over else ""
        stalled = (
            "its engine makes no steps while requests wait; new sessions go elsewhere" if self.progress.stalled else ""
        )
        return self.health.reason or self.outlier.reason or over or stalled

    @property
    def draining(self) -> bool:
        return self.drain.until is not None

    @property
    def going(self) -> bool:
        """Whether it is to be removed once it is empty, or its drain is over."""
        return self.stayed is not None

    @property
    def emptied(self) -> bool:
        """Whether nothing is lost when it is removed: no session can be served there any more, or none is left."""
        return self.drain.over or (
            self.in_flight == 0 and (self.sessions == 0 or self.asleep or not self.health.usable)
        )

    @property
    def leaving(self) -> bool:
        """Whether it was drained: its sessions are to go elsewhere sooner or later."""
        return self.draining

    @property
    def accepts_new(self) -> bool:
        return not self.draining and not self.progress.stalled

    @property
    def sessions(self) -> int:
        return self.pins.sessions(self.name)

    @property
    def size(self) -> int:
        return self.pins.size(self.name)

    @property
    def state(self) -> str:
        """One word for people: starting, up, down, sleeping, resting, trial, draining or drained."""
        if self.health.up is None:
            return "starting"
        if not self.health.up:
            return "down"
        if self.asleep:
            return "sleeping"
        if self.outlier.state is not Rest.IN:
            return "resting" if self.outlier.state is Rest.OUT else "trial"
        if self.drain.over:
            return "drained"
        return "draining" if self.draining else "up"
