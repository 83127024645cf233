"""Sentences for people about what keeps conversations cold, or hides whether they are; each says what to do."""

from collections.abc import Iterable

from ..discovery.members import Members
from ..fleet.registry import BackendState
from .counters import RequestCounters
from .hit_rates import windowed
from .store_view import StoreView
from .truth_advice import Advice

OPEN = (
    "everybody who can reach the model API can use it: set listen.keys, or let only a proxy that asks for keys reach it"
)


def advise(
    backends: Iterable[BackendState],
    counters: RequestCounters,
    guards: Iterable[str],
    reload_error: str | None,
    store: StoreView | None,
    members: Members | None,
    now: float,
) -> list[Advice]:
    """What is broken, or hides what there is to see; `guards` are the sentences of the guards of the key sources."""
    backends = list(backends)
    sentences = (
        *_of_router(store, reload_error),
        *(_of_discovery(members) if members is not None else ()),
        *guards,
        *_of_keys(counters),
        *_of_trust(backends),
        *_of_counters(backends, now),
        *_of_usage(counters),
    )
    return [Advice("bad", sentence) for sentence in sentences]


def _of_router(store: StoreView | None, reload_error: str | None) -> Iterable[str]:
    if store is not None and not store.up:
        yield f"the shared store is not in use ({store.reason}): see that the router can reach it"
    if reload_error:
        yield f"the configuration of before is in force, since the new one cannot be: {reload_error}"


def _of_discovery(members: Members) -> Iterable[str]:
    for source in members.sources:
        if source.error:
            yield f"discovery.{source.name} does not work, and its backends of before are in use: {source.error}"
    yield from members.wanted.refused


def _of_keys(counters: RequestCounters) -> Iterable[str]:
    for source in sorted({name for name, why in counters.refused_keys if why == "template"}):
        yield f"{source} arrives as a placeholder that nobody filled in; correct its name in the client's settings"


def _of_trust(backends: Iterable[BackendState]) -> Iterable[str]:
    names = [b.name for b in backends if b.spec.tls and not b.spec.trust.verify]
    if names:
        yield (
            f"whoever answers in the place of {', '.join(sorted(names))} is believed, and could read and change every"
            " conversation: name the authority of their certificates in upstream.ca and remove upstream.verify"
        )


def _of_counters(backends: Iterable[BackendState], now: float) -> Iterable[str]:
    for backend in sorted(backends, key=lambda b: b.name):
        if backend.health.up and backend.scrape.at is not None and not backend.scrape.local.seen:
            yield (
                f"{backend.name} reports no prefix cache counters: is prefix caching off, or is it older than vLLM 0.8?"
            )
        longest = windowed(backend, "local", now)["1h"]
        if longest.hits > longest.queries:
            yield (
                f"{backend.name} reports {longest.hits:,.0f} hits of {longest.queries:,.0f} queried tokens, which cannot be,"
                " so no hit ratio is shown: do two servers answer behind its URL?"
            )


def _of_usage(counters: RequestCounters) -> Iterable[str]:
    told = [r for r in counters.recent if r.usage.prompt is not None]
    mute = {r.backend for r in told if r.usage.cached is None and r.backend}
    for name in sorted(mute - {r.backend for r in told if r.usage.cached is not None}):
        yield f"{name} does not say how much of a prompt was cached; start it with --enable-prompt-tokens-details"
