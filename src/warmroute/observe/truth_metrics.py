"""What became of prompt tokens, as Prometheus families."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ..core.split import Outcome
from ..truth.ledger import Ledger


def truth(ledger: Ledger) -> Iterator[Metric]:
    """All families of the ledger."""
    tokens = CounterMetricFamily(
        "warmroute_prompt_tokens_total",
        "Prompt tokens of answered requests, by what became of them",
        labels=["backend", "outcome"],
    )
    backends = sorted({backend for backend, _ in ledger.tally.tokens})
    for backend in backends:
        totals = ledger.tally.settled(backend)
        for outcome in Outcome:
            tokens.add_metric([backend, outcome], totals[outcome])
    yield tokens
    missed = CounterMetricFamily(
        "warmroute_missed_prompt_tokens_total",
        "Prompt tokens that a cache could have had and did not, by cause",
        labels=["backend", "outcome", "cause"],
    )
    for labels, count in ledger.tally.missed.items():
        missed.add_metric(labels, count)
    yield missed
    turns = CounterMetricFamily(
        "warmroute_conversation_turns_total",
        "Turns that went on from one that is remembered, by key source",
        labels=["source"],
    )
    changes = CounterMetricFamily(
        "warmroute_prompt_changes_total",
        "Turns whose prompt did not go on where the last one ended, by key source and cause",
        labels=["source", "cause"],
    )
    for source, family in ledger.stability.by_source().items():
        turns.add_metric([source], family.turns)
        for cause, count in family.changes.items():
            changes.add_metric([source, cause], count)
    yield turns
    yield changes
    warm = GaugeMetricFamily(
        "warmroute_backend_warm_seconds",
        "Idle time up to which conversations still find nine tenths of their tokens; absent where too few paused",
        labels=["backend"],
    )
    for backend, warmth in ledger.warmth.items():
        until = warmth.warm_for()
        if until is not None and until != float("inf"):
            warm.add_metric([backend], until)
    yield warm
    yield GaugeMetricFamily(
        "warmroute_truth_conversations",
        "Conversations whose last turn is remembered, to tell what became of the next one's tokens",
        value=len(ledger.conversations),
    )
