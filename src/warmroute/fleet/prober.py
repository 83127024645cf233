"""Active health checks and model lists: one task a backend, so that a slow one delays no other."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from ..core.model import BackendSpec
from .pace import Pace
from .registry import BackendState, Registry

log = logging.getLogger("warmroute.health")

MODELS_EVERY = 10.0
"""Seconds between reads of a backend's model list, which changes as LoRA adapters come and go."""


@dataclass(frozen=True, slots=True)
class ProbeTimes:
    """Seconds between checks of a settled and of an unsettled backend, and how long one check may take."""

    interval: float
    unsettled_interval: float
    timeout: float


def reason_of(error: Exception) -> str:
    """A few words for people about why a GET failed."""
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return "timed out"
    if isinstance(error, httpx.ConnectError):
        return "connection refused" if "refused" in str(error).lower() or "All connection" in str(error) else str(error)
    return str(error) or type(error).__name__


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
        self._paces = {name: Pace() for name in registry.backends}

    def nudge(self, name: str) -> None:
        """Check this backend now: a request has just failed there."""
        self._paces[name].nudge()

    async def run(self) -> None:
        """Check for ever; ends by cancellation."""
        async with asyncio.TaskGroup() as group:
            for state in self._registry.backends.values():
                group.create_task(self._watch(state), name=f"probe {state.name}")

    async def _watch(self, state: BackendState) -> None:
        models_at = -MODELS_EVERY
        while True:
            error = await self._check(state.spec)
            changed = self._registry.probed(state.name, error, self._clock())
            if changed and error is None:
                self._came_up(state.name)
            if changed:
                models_at = -MODELS_EVERY
                log.info("backend %s is %s%s", state.name, state.state, f": {error}" if error else "")
            if state.health.up and self._clock() - models_at >= MODELS_EVERY:
                models_at = self._clock()
                await self._read_models(state)
            settled = state.health.settled
            await self._paces[state.name].pause(self._times.interval if settled else self._times.unsettled_interval)

    async def _check(self, spec: BackendSpec) -> str | None:
        """None if the backend is healthy, else why not."""
        try:
            async with asyncio.timeout(self._times.timeout):
                response = await self._client.get(f"{spec.url}/health")
        except (TimeoutError, httpx.HTTPError) as error:
            return reason_of(error)
        return None if response.is_success else f"/health answered {response.status_code}"

    async def _read_models(self, state: BackendState) -> None:
        """Note the models; a list that cannot be read leaves the last one in place."""
        try:
            async with asyncio.timeout(self._times.timeout):
                response = await self._client.get(f"{state.spec.url}/v1/models")
            body = response.json() if response.is_success else {}
        except (TimeoutError, httpx.HTTPError, ValueError) as error:
            log.warning("models of %s could not be read: %s", state.name, reason_of(error))
            return
        data = body.get("data") if isinstance(body, dict) else None
        cards = [card for card in data if isinstance(card, dict) and "id" in card] if isinstance(data, list) else []
        if cards:
            self._registry.set_models(state.name, cards)
