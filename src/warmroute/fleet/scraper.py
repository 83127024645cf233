"""Reads every backend's /metrics: one task a backend; what was read last is what everybody is shown."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from ..core import vllm_metrics
from ..core.exposition import Exposition, parse
from ..core.rates import Hits
from .fetch import FetchError, page
from .pace import Pace
from .registry import BackendState, Registry
from .scrape import CacheCounters, Scrape
from .watch import Watchers

log = logging.getLogger("warmroute.scrape")


_PAGE_LIMIT = 8 << 20
"""Bytes of a page that are read at most: vLLM's has some 60 KiB an engine, and reading one takes time of the event loop."""
_ASLEEP_EVERY = 1.0
"""Seconds between reads of a backend that sleeps, so that it is soon used again."""


@dataclass(frozen=True, slots=True)
class ScrapeTimes:
    """Seconds between reads, and how long one read may take."""

    interval: float
    timeout: float


def series_filter(choice: str | tuple[str, ...]) -> Callable[[str], bool]:
    """Which of vLLM's families are passed on: "all", "none", or names and beginnings of names."""
    if isinstance(choice, str):
        return lambda name: choice == "all"
    return lambda name: name.startswith(choice)


class Scraper:
    """GET /metrics of every backend into its `Scrape`. A backend that cannot be read stays in service."""

    def __init__(
        self,
        registry: Registry,
        client: httpx.AsyncClient,
        times: ScrapeTimes,
        clock: Callable[[], float],
        keep: Callable[[str], bool],
        read: Callable[[BackendState], None] = lambda _: None,
        woke: Callable[[], None] = lambda: None,
    ) -> None:
        """`read` is told of each backend that was read, `woke` that one has woken from sleep mode."""
        self._woke = woke
        self._read_it = read
        self._registry = registry
        self._client = client
        self._times = times
        self._clock = clock
        self._keep = keep
        self._watchers = Watchers(registry, self._watch, "scrape")

    def __repr__(self) -> str:
        return f"<Scraper {self._watchers!r}>"

    def nudge(self, name: str) -> None:
        """Read this backend soon: it has just come up, and its engines should be known before its first sessions."""
        self._watchers.nudge(name)

    def follow(self, times: ScrapeTimes, keep: Callable[[str], bool]) -> None:
        """The backends, the times, or what is kept, have changed: backends that went are not read any more."""
        changed, self._times, self._keep = times != self._times, times, keep
        self._watchers.follow()
        if changed:
            self._watchers.skip_pauses()

    async def run(self) -> None:
        """Read for ever; ends by cancellation."""
        await self._watchers.run()

    async def _watch(self, state: BackendState, pace: Pace) -> None:
        while True:
            started = self._clock()
            await self.read(state)
            interval = min(self._times.interval, _ASLEEP_EVERY) if state.asleep else self._times.interval
            await pace.pause(max(0.0, started + interval - self._clock()))

    async def read(self, state: BackendState) -> None:
        """Read one backend now."""
        error, asleep = None, state.asleep
        try:
            timeout = self._times.timeout
            found = await page(self._client, state.spec, "/metrics", timeout=timeout, limit=_PAGE_LIMIT)
            take(self._registry, state, parse(found.decode("utf-8", "replace"), state.name, self._keep), self._clock())
            self._read_it(state)
            if asleep and not state.asleep:
                self._woke()
        except FetchError as problem:
            error = str(problem)
        if error and not state.scrape.error and state.health.up:
            log.warning("metrics of %s could not be read: %s", state.name, error)
        state.scrape.error = error


def take(registry: Registry, state: BackendState, exposition: Exposition, now: float) -> None:
    """Put one scrape into the backend's state."""
    scrape, values = state.scrape, exposition.values
    _accumulate(scrape.local, vllm_metrics.prefix_cache(values), now)
    _accumulate(scrape.external, vllm_metrics.external_prefix_cache(values), now)
    scrape.hit_rate_gauge = vllm_metrics.hit_rate_gauge(values)
    scrape.families = dict(exposition.families)
    registry.began(state.name, vllm_metrics.began(values))
    scrape.reloaded, scrape.prefill = vllm_metrics.reloaded(values), vllm_metrics.prefill(values)
    scrape.block_size = vllm_metrics.block_size(values)
    scrape.at = now
    if registry.progressed(state.name, vllm_metrics.steps(values), now):
        tell = log.warning if state.progress.stalled else log.info
        tell("%s %s", state.name, state.reason or "gets on again")
    if registry.slept(state.name, vllm_metrics.asleep(values), vllm_metrics.discarded(values), now):
        log.info("%s is %s", state.name, "asleep: its conversations go elsewhere" if state.asleep else "awake again")
    gauges = vllm_metrics.engines(values)
    registry.set_engines(state.name, [gauge.engine for gauge in gauges])
    for engine in state.engines:
        gauge = next((g for g in gauges if g.engine == engine.engine), None)
        if gauge is not None:
            engine.running, engine.waiting, engine.kv_cache_usage = gauge.running, gauge.waiting, gauge.kv_cache_usage


def _accumulate(
    tier: CacheCounters, series: tuple[vllm_metrics.Series, vllm_metrics.Series] | None, now: float
) -> None:
    if series is None:
        return
    tier.seen = True
    tier.history.add(now, Hits(tier.queries.observe(series[0]), tier.hits.observe(series[1])))


def is_stale(scrape: Scrape, now: float, after: float) -> bool:
    """True if nothing was read for so many seconds, or ever."""
    return scrape.at is None or now - scrape.at > after
