"""Advice from what became of prompt tokens: who loses how many, why, and what to change."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from ..core.cures import ANYWHERE, SENTENCES, cures
from ..core.drift import BY_PEOPLE, Cause
from ..core.split import Outcome
from ..fleet.moves import Move
from ..fleet.registry import BackendState
from ..truth.ledger import ANSWER, GONE, RESTART, Ledger
from ..truth.warmth import BOUNDS, Warmth

_SHARE = 0.01
_LEAST = 2_000
"""Below this share of the prompt tokens, or so many of them, nothing is said."""
_MOST_CAUSES = 4
_MOST_CLIENTS = 6
_MOST_NAMES = 3


class Advice(NamedTuple):
    """One thing to do. `level`: "bad" (broken, or hides what there is to see), "cost" (tokens are lost), "good" (it works).

    `evidence` has the figures that it rests on, `settings` what to change in which client; both may be empty.
    """

    level: str
    text: str
    evidence: str = ""
    settings: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        return {**self._asdict(), "settings": list(self.settings)}


def advise_of_truth(ledger: Ledger, backends: Mapping[str, BackendState]) -> Iterator[Advice]:
    """What the tokens since the start say; what costs most comes first."""
    whole = ledger.tally.totals().total()
    found: list[tuple[int, Advice]] = []
    for tell in (_evicted, _restarted, _moved, _changed):
        found += [(tokens, advice) for tokens, advice in tell(ledger, backends, whole) if _counts(tokens, whole)]
    found.sort(key=lambda row: -row[0])
    yield from (advice for _, advice in found)
    yield from _reloaded(ledger, backends)


_Found = Iterator[tuple[int, Advice]]
Tell = Callable[[Ledger, Mapping[str, BackendState], int], _Found]


def _counts(tokens: int, whole: int) -> bool:
    return tokens >= max(_LEAST, _SHARE * whole)


def _missed(ledger: Ledger, outcome: Outcome) -> Counter[tuple[str, str]]:
    """(backend, cause) -> tokens."""
    rows = ledger.tally.missed.items()
    return Counter({(backend, cause): n for (backend, kind, cause), n in rows if kind is outcome and n > 0})


def _evicted(ledger: Ledger, backends: Mapping[str, BackendState], whole: int) -> _Found:
    lost = {name: n for (name, cause), n in _missed(ledger, Outcome.EVICTED).items() if cause == GONE}
    names = [n for n in sorted(lost, key=lambda n: -lost[n]) if n in backends and _counts(lost[n], _of(ledger, n))]
    for with_tier in (False, True):
        chosen = [n for n in names if bool(backends[n].scrape.reloaded) is with_tier]
        if chosen:
            tokens = sum(lost[name] for name in chosen)
            evidence = "; ".join(_kept(name, lost[name], ledger, backends[name]) for name in chosen[:_MOST_NAMES])
            remedy = (
                "more memory behind the cache (a larger --kv-offloading-size or store)"
                if with_tier
                else "more KV memory (--gpu-memory-utilization), host memory behind it (--kv-offloading-size 32 or so)"
            )
            text = (
                f"{_names(chosen)} {_drop(chosen)} conversations before they come back. Give {_it(chosen)} {remedy},"
                " or fewer sessions (one more server, or a smaller weight)."
            )
            yield tokens, Advice("cost", text, evidence)


def _kept(name: str, lost: int, ledger: Ledger, backend: BackendState) -> str:
    """What one backend's cache keeps, in figures."""
    told = [f"{name}: {lost:,} of {_of(ledger, name):,} prompt tokens computed again"]
    curve = ledger.warmth.get(name)
    told += _curve(curve) if curve is not None else []
    return ", ".join([*told, f"{backend.sessions} sessions now"])


def _curve(warmth: Warmth) -> Iterator[str]:
    warm = warmth.warm_for()
    if warm is None:
        return
    if warm == 0.0:
        shortest = warmth.buckets[0].share
        yield f"{shortest or 0:.1%} of what comes back within {_pause(BOUNDS[0])} is there"
        return
    if warm != float("inf"):
        yield f"90% warm after pauses up to {_pause(warm)}"
    later = [
        bucket for bound, bucket in zip((0.0, *BOUNDS), warmth.buckets, strict=True) if bound >= warm and bucket.turns
    ]
    expected, turns = sum(b.expected for b in later), sum(b.turns for b in warmth.buckets)
    if later and expected:
        share = sum(b.had for b in later) / expected
        yield f"{share:.0%} after longer ones, which {sum(b.turns for b in later)} of {turns} turns were"


def _restarted(ledger: Ledger, backends: Mapping[str, BackendState], whole: int) -> _Found:
    lost = {name: n for (name, cause), n in _missed(ledger, Outcome.EVICTED).items() if cause == RESTART}
    if lost:
        names = sorted(lost, key=lambda name: -lost[name])
        text = f"{_names(names)} lost the cache in a restart. Let conversations end before: `warmroute drain NAME`."
        yield sum(lost.values()), Advice("cost", text, f"{sum(lost.values()):,} prompt tokens computed again")


_MOVES: Mapping[str, str] = {
    Move.FAILOVER: "Conversations moved because their backend failed. See the failures below for why.",
    Move.DRAIN: "Conversations moved because their backend was drained. A longer drain.deadline lets more of them end first.",
    Move.REMOVED: "Conversations moved because their backend was removed. Drain a backend before you remove it.",
    Move.COLD: (
        "Conversations moved because their backend had dropped them and was busy. More KV memory there, or host memory behind"
        " it (--kv-offloading-size), would have kept them."
    ),
    Move.SPILL: (
        "Requests were served elsewhere because their backend was full, which costs a cold prompt each."
        " Raise queue.in_flight, or let them wait: affinity.when_full: wait."
    ),
    Move.COLD: "Conversations that their backend had dropped moved to one with less to do: nothing to do.",
    Move.SLEEP: "Conversations moved because their backend was put to sleep, which empties its cache: nothing to do.",
    Move.OWNER: "Conversations went where the response that they name was made: nothing to do.",
    Move.FORGOTTEN: (
        "Conversations came back after the router had forgotten them, or through another router."
        " Raise affinity.idle_expiry; let several routers share their sessions: --redis."
    ),
}


def _moved(ledger: Ledger, backends: Mapping[str, BackendState], whole: int) -> _Found:
    by_cause: Counter[str] = Counter()
    for (_, cause), tokens in _missed(ledger, Outcome.MOVED).items():
        by_cause[cause] += tokens
    for cause, tokens in by_cause.items():
        if cause in _MOVES and cause != Move.OWNER:
            yield tokens, Advice("cost", _MOVES[cause], f"{tokens:,} of {whole:,} prompt tokens computed again")


def _changed(ledger: Ledger, backends: Mapping[str, BackendState], whole: int) -> _Found:
    rows = [
        (tokens, cause, source, family.changes[cause], family.turns)
        for source, family in ledger.stability.by_source().items()
        for cause, tokens in family.tokens.items()
        if cause not in BY_PEOPLE
    ]
    rows.sort(key=lambda row: row[0], reverse=True)
    for tokens, cause, source, changes, turns in rows[:_MOST_CAUSES]:
        evidence = (
            f"{tokens:,} of {whole:,} prompt tokens computed again: {changes:,} of {turns:,} turns of conversations"
            f" known by {source}"
        )
        yield tokens, _cure(cause, source, evidence)
    told = sum(tokens for tokens, cause, *_ in rows if cause is Cause.ANSWER)
    answers = sum(n for (_, cause), n in _missed(ledger, Outcome.PROMPT_CHANGED).items() if cause == ANSWER) - told
    yield answers, _cure(Cause.ANSWER, None, f"{answers:,} of {whole:,} prompt tokens computed again")


def _cure(cause: Cause, source: str | None, evidence: str) -> Advice:
    settings = tuple(f"{cure.client}: {cure.setting}" for cure in cures(cause, source)[:_MOST_CLIENTS])
    what = ANYWHERE[cause]
    return Advice("cost", f"{SENTENCES[cause]} {what[:1].upper()}{what[1:]}.", evidence, settings)


def _reloaded(ledger: Ledger, backends: Mapping[str, BackendState]) -> Iterator[Advice]:
    had = {name: ledger.tally.totals(name)[Outcome.RELOADED] for name in backends}
    names = [name for name in had if _counts(had[name], _of(ledger, name))]
    if names:
        tokens, whole = sum(had[name] for name in names), sum(_of(ledger, name) for name in names)
        text = (
            f"The memory behind the cache works: {_names(names)} loaded prompts from there rather than computing them."
        )
        yield Advice("good", text, f"{tokens:,} of {whole:,} prompt tokens reloaded")


def _of(ledger: Ledger, backend: str) -> int:
    return ledger.tally.totals(backend).total()


def _names(names: Iterable[str]) -> str:
    shown = list(names)
    if len(shown) > _MOST_NAMES:
        return f"{', '.join(shown[:_MOST_NAMES])} and {len(shown) - _MOST_NAMES} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def _drop(names: list[str]) -> str:
    return "drops" if len(names) == 1 else "drop"


def _it(names: list[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _pause(seconds: float) -> str:
    return f"{seconds:g} s" if seconds < 60 else f"{seconds / 60:g} min"
