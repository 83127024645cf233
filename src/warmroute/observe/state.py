"""The state of the router as JSON: what the dashboard, `warmroute status` and `warmroute sessions` show."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from math import inf

from msgspec.structs import asdict

from .. import __version__
from ..core.identity import digest
from ..core.rates import Hits
from ..discovery.members import Members
from ..fleet.registry import BackendState, EngineState, Registry
from ..fleet.residents import Residents, Sync
from ..fleet.scraper import is_stale
from ..pins.memory import Pin, PinTable
from ..recognition.memory import Memory
from .advice import OPEN, advise
from .counters import RequestCounters
from .discovery import discovery
from .hit_rates import STEP, fleet_windowed, history, ratio, steps, windowed
from .reloads import Reloads
from .store_view import StoreView
from .truth_advice import Advice, advise_of_truth
from .truth_view import TruthView
from .work_metrics import Workers

Json = dict[str, object]

_SEARCHED = 10_000
"""Sessions that a search looks through, those used last: some 20 ms of work."""


@dataclass(slots=True)
class StateView:
    """Reads registry, pins and counters; every method returns plain JSON values. `secret` keys the digests shown.

    `is_open`: other machines can use the model API without a key.
    """

    registry: Registry
    pins: PinTable
    counters: RequestCounters
    clock: Callable[[], float]
    secret: bytes
    stale_after: float
    started: float
    stopping: Callable[[], bool]
    memory: Memory
    reloads: Reloads
    store: StoreView | None = None
    truth: TruthView | None = None
    residents: Residents | None = None
    is_open: bool = False
    members: Members | None = None
    workers: Callable[[], Workers] | None = None

    def state(self) -> Json:
        """Everything but the sessions: fleet, backends, advice, the last requests."""
        now, wall = self.clock(), time.time()
        backends = list(self.registry.backends.values())
        reasons = ["the router is stopping"] if self.stopping() else self.registry.not_ready()
        return {
            "version": __version__,
            "now": round(wall, 3),
            "uptime_s": round(now - self.started, 1),
            "ready": not reasons,
            "reasons": reasons,
            "fleet": self._fleet(backends, now),
            "store": {"up": self.store.up, "reason": self.store.reason} if self.store else None,
            "workers": self.workers()._asdict() if self.workers is not None else None,
            "reload": {"ok": not self.reloads.error, "error": self.reloads.error, **self.reloads.results},
            "discovery": discovery(self.members, now) if self.members is not None else None,
            "advice": [advice.as_dict() for advice in self._advice(backends, now)],
            "truth": self.truth.summary(wall) if self.truth is not None else None,
            "backends": [self._backend(b, now, wall) for b in backends],
            "recent": [asdict(record.line()) for record in self.counters.recent],
        }

    def history(self) -> Json:
        """Hit ratio by step over the last hour, for the fleet and for each backend; None where nothing was asked.

        `possible` is what the fleet's could have been.
        """
        now = self.clock()
        ends = steps(now)
        wall = time.time() - now
        by_backend = {b.name: history(b, ends) for b in self.registry.backends.values()}
        fleet = [sum(row, Hits()) for row in zip(*by_backend.values(), strict=True)]
        return {
            "step_s": STEP,
            "times": [round(end + wall, 1) for end in ends],
            "fleet": [_ratio(hits) for hits in fleet],
            "possible": [_at_least(*step) for step in zip(fleet, self._possible(ends), strict=True)],
            "backends": {name: [_ratio(hits) for hits in row] for name, row in by_backend.items()},
            "truth": self.truth.history(wall + now) if self.truth is not None else None,
        }

    def sessions(self, limit: int, search: str = "") -> Json:
        """The sessions used last, by keyed digest; with `search` those of the last 10,000 in which that text occurs."""
        now, wanted = self.clock(), search.strip().lower()
        shown = ((digest(key, self.secret), key, pin) for key, pin in self.pins.newest())
        if wanted:
            looked = islice(shown, _SEARCHED)
            shown = (row for row in looked if any(wanted in text.lower() for text in _words(row[0], row[2])))
        rows = [
            {
                "session": name,
                "source": pin.source,
                "backend": pin.backend,
                "engine": pin.engine,
                "turns": pin.turns,
                "idle_s": round(now - pin.used, 1),
                **(self.truth.conversation(key) if self.truth is not None else {}),
            }
            for name, key, pin in islice(shown, limit)
        ]
        return {"total": len(self.pins), "sessions": rows}

    def turns(self, session: str) -> Json | None:
        """The turns of a session, given as the digest that is shown; None if they are not known."""
        return self.truth.turns(session, time.time()) if self.truth is not None else None

    def _possible(self, ends: list[float]) -> list[float | None]:
        return self.truth.possible_by_step(ends) if self.truth is not None else [None] * len(ends)

    def _advice(self, backends: list[BackendState], now: float) -> list[Advice]:
        told = self.memory.guards.told.values()
        found = advise(backends, self.counters, told, self.reloads.error, self.store, self.members, now)
        if self.is_open:
            found.insert(0, Advice("bad", OPEN))
        workers = self.workers() if self.workers is not None else None
        if workers is not None and workers.serving < workers.wanted:
            found.append(Advice("bad", f"only {workers.serving} of {workers.wanted} workers serve: the log tells why"))
        if self.truth is not None:
            found += advise_of_truth(self.truth.ledger, self.registry.backends)
        return found

    def _fleet(self, backends: list[BackendState], now: float) -> Json:
        local, external = fleet_windowed(backends, "local", now), fleet_windowed(backends, "external", now)
        counters, possible = self.counters, self.truth.possible() if self.truth is not None else {}
        return {
            "hit_ratio": {name: _ratio(hits) for name, hits in local.items()},
            "possible_ratio": {name: _at_least(hits, possible.get(name)) for name, hits in local.items()},
            "external_hit_ratio": {name: _ratio(hits) for name, hits in external.items()},
            "prompt_tokens": {name: int(hits.queries) for name, hits in local.items()},
            "sessions": len(self.pins),
            "in_flight": sum(b.in_flight for b in backends),
            "requests": counters.total,
            "moves": sum(counters.moves.values()),
            "retries": sum(counters.retries.values()),
            "client_aborts": counters.client_aborts,
            "backends": len(backends),
            "backends_up": sum(bool(b.health.up) for b in backends),
        }

    def _backend(self, backend: BackendState, now: float, wall: float) -> Json:
        local, external = windowed(backend, "local", now), windowed(backend, "external", now)
        scrape, engines = backend.scrape, backend.engines
        return {
            "name": backend.name,
            "url": backend.spec.url,
            "state": backend.state,
            "reason": backend.reason,
            "drain": _drain(backend, now),
            "since": round(wall - (now - backend.since), 1),
            "models": sorted(backend.models or ()),
            "weight": backend.weight,
            "sources": list(self.members.wanted.sources.get(backend.name, ())) if self.members is not None else [],
            "sessions": backend.sessions,
            "in_flight": backend.in_flight,
            "requests": backend.requests,
            "failures": backend.failures,
            "running": _sum(e.running for e in engines),
            "waiting": _sum(e.waiting for e in engines),
            "kv_cache_usage": _mean(e.kv_cache_usage for e in engines),
            "hit_ratio": {name: _round(ratio(backend, hits)) for name, hits in local.items()},
            "external_hit_ratio": {name: _ratio(hits) for name, hits in external.items()},
            "prompt_tokens": {name: int(hits.queries) for name, hits in local.items()},
            "engines": [_engine(e) for e in engines] if len(engines) > 1 else [],
            "kv_events": Sync.OFF if self.residents is None else self.residents.sync(backend.name),
            "scrape": {
                "age_s": None if scrape.at is None else round(now - scrape.at, 1),
                "stale": is_stale(scrape, now, self.stale_after),
                "error": scrape.error,
            },
        }


def _engine(engine: EngineState) -> Json:
    return {
        "engine": engine.engine,
        "sessions": engine.sessions,
        "in_flight": engine.in_flight,
        "running": engine.running,
        "waiting": engine.waiting,
        "kv_cache_usage": _round(engine.kv_cache_usage),
    }


def _drain(backend: BackendState, now: float) -> Json | None:
    """How far the emptying of a backend is; None while it is in use. After the deadline no session is served there."""
    left = backend.drain.left(now)
    if left is None:
        return None
    over = backend.drain.over
    return {
        "over": over,
        "seconds_left": round(left, 1) if left != inf else None,
        "sessions_left": 0 if over else backend.sessions,
    }


def _words(shown: str, pin: Pin) -> tuple[str, str, str]:
    return shown, pin.source, pin.backend


def _ratio(hits: Hits) -> float | None:
    return _round(hits.ratio)


def _at_least(hits: Hits, possible: float | None) -> float | None:
    """What was possible, and never less than what was had, which the backends count at other moments."""
    return None if hits.ratio is None or possible is None else _round(max(hits.ratio, possible))


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _sum(values: Iterable[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return round(sum(known) / len(known), 4) if known else None
