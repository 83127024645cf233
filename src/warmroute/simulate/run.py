"""One workload under one policy: requests come, are placed, computed and answered, in simulated time."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from math import inf

from ..config import Config
from ..core.model import BackendSpec, Failure, Phase, Place, Reason
from ..core.policy import Wishes
from ..core.ring import Ring
from ..fleet.registry import Registry
from ..pins.memory import PinTable
from ..proxy.placement import Placed
from ..settings import bounds, outlier_limits, thresholds
from ..sim.prefix_cache import PrefixCache
from .clock import Clock
from .events import Event, Kind
from .policies import Policy, chooser
from .recognise import Nearness, Turn, kib, tell_apart
from .result import Move, Result
from .server import BlockSequence, Exchange, Server
from .timing import H200, Timing
from .workload import Request, Workload

_HOUSEKEEPING = 1.0
_MOST_DEATHS = 2
"""A request that broke so many backends is given to no other."""


@dataclass(frozen=True, slots=True)
class Setting:
    """On what a workload runs: so many backends, each with so many blocks of cache, and the router's configuration."""

    backends: int
    blocks: int
    config: Config
    timing: Timing = H200
    events: Sequence[Event] = ()


@dataclass(slots=True, eq=False)
class _Ask:
    """A request on its way. `exclude` are the backends that broke it; `told` says that its first token has been passed on."""

    request: Request
    turn: Turn
    exclude: set[str] = field(default_factory=set)
    placed: Placed | None = None
    place: ExitStack = field(default_factory=ExitStack)
    exchange: Exchange | None = None
    told: bool = False
    begun: bool = False
    full: str | None = None


def ceiling(workload: Workload, blocks: int) -> float:
    """The hit rate of one cache of so many blocks, asked one request after the other: what no placement can much exceed."""
    cache = PrefixCache(blocks + 1, workload.block_size)
    for request in workload.requests:
        sequence = BlockSequence(request, workload.block_size)
        cache.admit(sequence)
        sequence.answered(request.answer)
        cache.extend(sequence, request.prompt + request.answer - 1 - sequence.local_hit)
        cache.release(sequence)
    return cache.counters.hit_rate


def known(workload: Workload, config: Config) -> Workload:
    """The same workload with a conversation for each request, found out as the router would where it is not told."""
    if all(request.session is not None for request in workload.requests):
        return workload
    return tell_apart(workload, expiry=config.affinity.idle_expiry, limit=config.affinity.max_history)


def simulate(
    workload: Workload, setting: Setting, policy: Policy, progress: Callable[[int], None] = lambda done: None
) -> Result:
    """Run it all; `progress` is told now and then how many requests have come.

    Where a workload does not tell whose turn a request is, that is found out as `known` does.
    """
    workload = known(workload, setting.config)
    run = _Run(workload, setting, policy)
    for done, request in enumerate(workload.requests):
        run.clock.run_until(request.at)
        run.arrive(request)
        if done % 256 == 0:
            progress(done)
    run.clock.run_until(inf)
    progress(len(workload.requests))
    return run.finish()


class _Run:
    def __init__(self, workload: Workload, setting: Setting, policy: Policy) -> None:
        self.clock = clock = Clock()
        self._workload = workload
        self._policy = policy
        self._setting = setting
        self._config = config = setting.config
        self._specs = [_spec(number) for number in range(1, setting.backends + 1)]
        affinity = config.affinity
        self._pins = PinTable(
            clock,
            idle_expiry=affinity.idle_expiry,
            limit=affinity.max_sessions,
            unproven_expiry=affinity.unproven_expiry,
        )
        self._registry = Registry(self._specs, self._pins, thresholds(config), 0.0, outlier_limits(config))
        self._servers: dict[str, Server] = {}
        for spec in self._specs:
            self._serve(spec)
        self._chooser = chooser(policy, self._registry, self._pins, bounds(config))
        self._nearness = Nearness(
            clock, self._pins, workload.block_size, expiry=affinity.idle_expiry, limit=affinity.max_history
        )
        self._last: dict[bytes, str] = {}
        self._waiting: list[_Ask] = []
        self._running: dict[Exchange, _Ask] = {}
        self._kept = 0.0
        self._result = Result(steady={spec.name for spec in self._specs})
        for event in setting.events:
            clock.at(event.at, partial(self._happens, event))

    def finish(self) -> Result:
        result = self._result
        result.loads = {name: server.load for name, server in self._servers.items()}
        result.sessions = len(self._last)
        return result

    # Requests

    def arrive(self, request: Request) -> None:
        """A request comes."""
        now = self.clock()
        if now - self._kept >= _HOUSEKEEPING:
            self._kept = now
            self._pins.expire()
        session = request.session
        assert session is not None
        turn = self._nearness.turn(request, session) if self._policy.remembers else Turn(session, kib(request))
        self._place(_Ask(request, turn))

    def _place(self, ask: _Ask) -> None:
        wishes = Wishes(urgent=True) if ask.told else ask.turn.wishes
        placed = self._chooser.place(ask.turn, wishes, ask.exclude)
        if not isinstance(placed, Placed):
            if placed.reason is Reason.BUSY:
                self._wait(ask, placed.full)
            else:
                self._result.refused += 1
            return
        self._result.decisions[placed.decision.reason] += 1
        ask.placed, ask.begun = placed, False
        ask.place.enter_context(placed.lease)
        self._result.most = max(self._result.most, self._registry.backends[placed.backend].in_flight)
        ask.exchange = Exchange(ask.request, lambda: self._begins(ask), lambda: self._ends(ask))
        self._running[ask.exchange] = ask
        self._servers[placed.backend].ask(ask.exchange)

    def _wait(self, ask: _Ask, full: str | None) -> None:
        """Every backend that may serve it is full: it waits for a place there (None: anywhere), but not for ever."""
        if len(self._waiting) >= self._config.queue.length:
            self._result.refused += 1
            return
        ask.full = full
        self._waiting.append(ask)
        self.clock.at(ask.request.at + self._config.queue.timeout, lambda: self._gives_up(ask))

    def _gives_up(self, ask: _Ask) -> None:
        if ask in self._waiting:
            self._waiting.remove(ask)
            self._result.refused += 1

    def _freed(self, backend: str) -> None:
        waiting = next((ask for ask in self._waiting if ask.full in (backend, None)), None)
        if waiting is not None:
            self._waiting.remove(waiting)
            self._place(waiting)

    def _begins(self, ask: _Ask) -> None:
        placed, key = ask.placed, ask.turn.session.key
        if placed is None:
            return
        ask.begun = True
        self._chooser.confirm(ask.turn, placed.decision)
        if self._policy.remembers:
            self._nearness.served(ask.turn, Place(placed.backend))
        if not ask.told:
            ask.told = True
            self._result.ttfts.append(self.clock() - ask.request.at)
        before = self._last.get(key)
        if before is not None and before != placed.backend:
            self._result.moves.append(Move(self.clock(), key, before, placed.backend))
        self._last[key] = placed.backend

    def _ends(self, ask: _Ask) -> None:
        if ask.placed is not None and ask.exchange is not None:
            del self._running[ask.exchange]
            ask.place.close()
            self._freed(ask.placed.backend)

    def _breaks(self, ask: _Ask) -> None:
        """The backend of a request died: another one answers it, from where the answer was broken off."""
        placed, exchange = ask.placed, ask.exchange
        if placed is None or exchange is None:
            return
        del self._running[exchange]
        ask.place.close()
        ask.exclude.add(placed.backend)
        if not ask.begun:
            self._chooser.withdraw(ask.turn, placed.decision)
        if len(ask.exclude) >= _MOST_DEATHS:
            self._result.lost += 1
            return
        if exchange.answering is not None:
            self._result.resumed += 1
            given = int((self.clock() - exchange.answering) / self._setting.timing.answer) + 1
            left = max(1, ask.request.answer - given)
            ask.request = ask.request._replace(prompt=ask.request.prompt + ask.request.answer - left, answer=left)
        self._place(ask)

    # Backends

    def _serve(self, spec: BackendSpec) -> None:
        self._servers[spec.name] = Server(
            self.clock, self._setting.timing, blocks=self._setting.blocks, block_size=self._workload.block_size
        )
        self._registry.probed(spec.name, None, self.clock())

    def _happens(self, event: Event) -> None:
        if event.kind is Kind.SCALE_OUT:
            self._scale_out()
        elif event.kind is Kind.SCALE_IN:
            self._scale_in()
        else:
            self._fail(event.lasts)
        self._look_again()

    def _look_again(self) -> None:
        """The backends have changed: whoever waits for one may find another."""
        waiting, self._waiting = self._waiting, []
        for ask in waiting:
            self._place(ask)

    def _scale_out(self) -> None:
        self._specs.append(spec := _spec(len(self._servers) + 1))
        self._reconfigure()
        self._serve(spec)

    def _scale_in(self) -> None:
        staying = [spec for spec in self._specs if not self._registry.backends[spec.name].draining]
        name, now = staying[-1].name, self.clock()
        self._result.steady.discard(name)
        self._registry.drain(name, True, now + self._config.drain.deadline)
        self.clock.after(self._config.drain.deadline, lambda: self._remove(name))

    def _remove(self, name: str) -> None:
        self._registry.end_drains(self.clock())
        self._specs = [spec for spec in self._specs if spec.name != name]
        self._reconfigure()
        self._look_again()

    def _reconfigure(self) -> None:
        ring = Ring({spec.name: spec.weight for spec in self._specs})
        config = self._config
        self._registry.reconfigure(self._specs, ring, thresholds(config), outlier_limits(config), self.clock())

    def _fail(self, lasts: float | None) -> None:
        name = next((spec.name for spec in self._specs if self._registry.backends[spec.name].works), None)
        if name is None:
            return
        self._result.steady.discard(name)
        self._registry.failed(name, Failure(Phase.CONNECT, "refused", "it died"), self.clock())
        for exchange in self._servers[name].stop():
            self._breaks(self._running[exchange])
        if lasts is not None:
            self.clock.after(lasts, lambda: self._return(name))

    def _return(self, name: str) -> None:
        for _ in range(self._config.health.rise):
            self._registry.probed(name, None, self.clock())
        self._look_again()


def _spec(number: int) -> BackendSpec:
    return BackendSpec(f"backend-{number}", f"http://backend-{number}:8000")
