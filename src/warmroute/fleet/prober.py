"""Active health checks and model lists: one task a backend, so that a slow one delays no other."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import httpx
import msgspec

from ..core.model import BackendSpec
from .fetch import FetchError, page
from .pace import Pace
from .registry import BackendState, Registry
from .watch import Watchers

log = logging.getLogger("warmroute.health")

_HEALTH_LIMIT, _MODELS_LIMIT = 1 << 20, 4 << 20
"""Bytes of a page that are read at most."""

MODELS_EVERY = 10.0
"""Seconds between reads of a backend's model list, which changes as LoRA adapters come and go."""


@dataclass(frozen=True, slots=True)
class ProbeTimes:
    """Seconds between checks of a settled and of an unsettled backend, and how long one check may take."""

    interval: float
    unsettled_interval: float
    timeout: float


class Prober:
    """GET /health of every backend, and GET /v1/models of those that are up; results go to the registry."""

    def __init__(
        self,
        registry: Registry,
        client: httpx.AsyncClient,
        times: ProbeTimes,
        clock: Callable[[], float],
        came_up: Callable[[str], None],
    ) -> None:
        self._registry = registry
        self._client = client
        self._times = times
        self._clock = clock
        self._came_up = came_up
        self._reads = count(1)
        self._watchers = Watchers(registry, self._watch, "probe")

    def __repr__(self) -> str:
        return f"<Prober {self._watchers!r}>"

    def nudge(self, name: str) -> None:
        """Check this backend now: a request has just failed there."""
        self._watchers.nudge(name)

    def follow(self, times: ProbeTimes) -> None:
        """The backends, or the times, have changed: those that went are not checked any more."""
        changed, self._times = times != self._times, times
        self._watchers.follow()
        if changed:
            self._watchers.skip_pauses()

    async def run(self) -> None:
        """Check for ever; ends by cancellation."""
        await self._watchers.run()

    async def _watch(self, state: BackendState, pace: Pace) -> None:
        models_at = -MODELS_EVERY
        while True:
            try:
                error = await self._check(state.spec)
            except FetchError as own:
                log.warning("%s could not be checked: %s", state.name, own)
                await asyncio.sleep(self._times.interval)
                continue
            if error is None and not state.health.up:
                models_at = self._clock()
                await self.read_models(state)  # before it is used: others may serve what it does not, or not any more
            changed = self._registry.probed(state.name, error, self._clock())
            if changed and error is None:
                self._came_up(state.name)
            if changed:
                log.info("backend %s is %s%s", state.name, state.state, f": {error}" if error else "")
            if state.health.up and self._clock() - models_at >= MODELS_EVERY:
                models_at = self._clock()
                await self.read_models(state)
            settled = state.health.settled
            await pace.pause(self._times.interval if settled else self._times.unsettled_interval)

    async def _check(self, spec: BackendSpec) -> str | None:
        """None if the backend is healthy, else why not. Raises FetchError if the router itself could not ask."""
        try:
            await page(self._client, spec, "/health", timeout=self._times.timeout, limit=_HEALTH_LIMIT)
        except FetchError as error:
            if error.own:
                raise
            return str(error)
        return None

    async def read_models(self, state: BackendState) -> None:
        """Note the models; a list that cannot be read leaves the last one in place, and is told once.

        Of two reads at the same time the one that began later counts, in whichever order they end.
        """
        error, number = None, next(self._reads)
        try:
            timeout = self._times.timeout
            body = await page(self._client, state.spec, "/v1/models", timeout=timeout, limit=_MODELS_LIMIT)
            cards = _cards(msgspec.json.decode(body))
            if cards and number > state.models_read and self._registry.backends.get(state.name) is state:
                state.models_read = number
                self._registry.set_models(state.name, cards)
        except (FetchError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as problem:
            error = str(problem) or type(problem).__name__
        if error is not None and state.models_error != error:
            log.warning("models of %s could not be read: %s", state.name, error)
        state.models_error = error


def _cards(body: object) -> list[dict[str, object]]:
    """The entries of a model list that name a model."""
    data = body.get("data") if isinstance(body, dict) else None
    return [c for c in data if isinstance(c, dict) and isinstance(c.get("id"), str)] if isinstance(data, list) else []
