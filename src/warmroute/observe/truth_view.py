"""What became of prompt tokens, as JSON: for the dashboard, the commands and everybody's scripts."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isfinite

from ..core.cures import SENTENCES
from ..core.identity import digest
from ..core.rates import WINDOWS
from ..core.split import Outcome
from ..fleet.moves import Move
from ..fleet.registry import Registry
from ..truth.conversations import Conversation, TurnTaken
from ..truth.ledger import GONE, RESTART, Ledger
from ..truth.tally import STEP
from ..truth.warmth import BOUNDS, Warmth

Json = dict[str, object]

_MOST_ROWS = 30
AVOIDABLE = (Outcome.MOVED, Outcome.EVICTED, Outcome.PROMPT_CHANGED)
"""Outcomes of tokens that a cache could have had, and had not."""
_HAD = (Outcome.REUSED, Outcome.RELOADED)
_FOUND_KEPT = 256

MEANINGS: dict[str, str] = {
    GONE: "The cache had it, and dropped it for other prompts.",
    RESTART: "The backend was restarted, and began with an empty cache.",
    Move.FAILOVER: "Its backend failed.",
    Move.DRAIN: "Its backend was drained.",
    Move.REMOVED: "Its backend is no longer configured.",
    Move.COLD: "Its backend had dropped it, and was busy.",
    Move.SPILL: "Its backend was full.",
    Move.COLD: "Its backend had dropped it, and was busy.",
    Move.OWNER: "It names a response that another backend made.",
    Move.SLEEP: "Its backend was put to sleep.",
    Move.FORGOTTEN: "The router had forgotten where it was, or another router placed it.",
    **{cause.value: sentence for cause, sentence in SENTENCES.items()},
}
"""Each cause in a sentence."""


@dataclass(frozen=True, slots=True)
class TruthView:
    """Reads the ledger; every method returns plain JSON values. `secret` keys the digests shown; times are Unix seconds."""

    ledger: Ledger
    registry: Registry
    clock: Callable[[], float]
    secret: bytes
    _found: dict[str, bytes] = field(default_factory=dict, repr=False)

    def summary(self, wall: float) -> Json:
        """Tokens by outcome since the start, where the missed ones went, warm times, changing prompts, time saved."""
        tally = self.ledger.tally
        return {
            "tokens": _by_name(tally.totals()),
            "backends": {name: self._backend(name) for name in self.registry.backends},
            "missed": [
                {
                    "backend": backend,
                    "outcome": outcome,
                    "cause": cause,
                    "meaning": MEANINGS.get(cause, ""),
                    "tokens": tokens,
                }
                for (backend, outcome, cause), tokens in tally.missed.most_common(_MOST_ROWS)
            ],
            "stability": self._stability(),
            "saved_s": round(sum(self._saved(name) for name in self.registry.backends), 1),
            "conversations": len(self.ledger.conversations),
        }

    def possible(self) -> dict[str, float | None]:
        """By window the hit ratio that was possible; each begins where a step does."""
        last = int(self.clock() // STEP)
        found = {}
        for name, seconds in WINDOWS.items():
            total: Counter[Outcome] = Counter()
            for step, counts in self.ledger.tally.steps:
                if step >= last - int(seconds / STEP):
                    total.update(counts)
            found[name] = _possible(total)
        return found

    def possible_by_step(self, ends: Sequence[float]) -> list[float | None]:
        """The same for the steps of time that are next to those which end then, by the clock."""
        known = dict(self.ledger.tally.steps)
        return [_possible(known.get(round(end / STEP) - 1, Counter())) for end in ends]

    def history(self, wall: float) -> Json:
        """Tokens by outcome in steps of time over the last hour, for all backends together. `times` are the steps' ends."""
        now = self.clock()
        last = int(now // STEP)
        known = dict(self.ledger.tally.steps)
        steps = range(last - 119, last + 1)
        rows = [known.get(step, Counter[Outcome]()) for step in steps]
        return {
            "step_s": STEP,
            "times": [round((step + 1) * STEP - now + wall, 1) for step in steps],
            "outcomes": {outcome: [row[outcome] for row in rows] for outcome in Outcome},
        }

    def conversation(self, key: bytes) -> Json:
        """Figures of one session beside its pin; empty if none are known."""
        found = self.ledger.conversations.get(key)
        return {} if found is None else _conversation(found)

    def turns(self, shown: str, wall: float) -> Json | None:
        """The last turns of the session whose digest is shown so, the oldest first; None if no such is remembered."""
        key = self._key_of(shown)
        conversation = None if key is None else self.ledger.conversations.get(key)
        if conversation is None:
            return None
        offset = wall - self.clock()
        return {
            "session": shown,
            "source": conversation.source,
            **_conversation(conversation),
            "turns": [_turn(turn, offset) for turn in conversation.turns],
        }

    def _key_of(self, shown: str) -> bytes | None:
        """The key whose digest is shown so. Those found are kept, since a page that shows one asks for it again."""
        key = self._found.get(shown)
        if key is None:
            held = (key for key, _ in self.ledger.conversations.newest())
            key = next((key for key in held if digest(key, self.secret) == shown), None)
            if key is not None:
                if len(self._found) >= _FOUND_KEPT:
                    self._found.clear()
                self._found[shown] = key
        return key

    def _backend(self, name: str) -> Json:
        warmth = self.ledger.warmth.get(name)
        rate = self._prefill_rate(name)
        return {
            "tokens": _by_name(self.ledger.tally.totals(name)),
            "prefill_tokens_per_s": None if rate is None else round(rate, 1),
            "saved_s": round(self._saved(name), 1),
            **_warmth(warmth or Warmth()),
        }

    def _stability(self) -> list[Json]:
        """Families of prompts that change, those that lose most first."""
        rows = [
            (sum(family.tokens.values()), source, name, family)
            for (source, name), family in self.ledger.stability.families.items()
            if family.changes
        ]
        rows.sort(key=lambda row: row[:3], reverse=True)
        return [
            {
                "source": source,
                "family": digest(str(name).encode(), self.secret),
                "turns": family.turns,
                "changes": dict(family.changes.most_common()),
                "tokens": dict(family.tokens.most_common()),
                "parts": dict(family.parts.most_common()),
            }
            for _, source, name, family in rows[:_MOST_ROWS]
        ]

    def _prefill_rate(self, name: str) -> float | None:
        """Prompt tokens that the backend computes a second while it computes a prompt, by its own metrics."""
        prefill = self.registry.backends[name].scrape.prefill
        return prefill[0] / prefill[1] if prefill is not None and prefill[1] > 0 and prefill[0] > 0 else None

    def _saved(self, name: str) -> float:
        """Seconds that computing the reused tokens would have taken."""
        rate, totals = self._prefill_rate(name), self.ledger.tally.totals(name)
        return 0.0 if rate is None else (totals[Outcome.REUSED] + totals[Outcome.RELOADED]) / rate


def _possible(totals: Counter[Outcome]) -> float | None:
    """The share of tokens that were in some cache or had been, of those of which something is known."""
    whole = totals.total() - totals[Outcome.UNKNOWN]
    return sum(totals[outcome] for outcome in (*_HAD, *AVOIDABLE)) / whole if whole > 0 else None


def _by_name(totals: Counter[Outcome]) -> Json:
    return {outcome.value: totals[outcome] for outcome in Outcome}


def _warmth(warmth: Warmth) -> Json:
    until = warmth.warm_for()
    return {
        "warm_s": until if until is not None and isfinite(until) else None,
        "always_warm": until is not None and not isfinite(until),
        "idle": [
            {
                "up_to_s": bound,
                "turns": bucket.turns,
                "share": None if not bucket.expected else round(bucket.had / bucket.expected, 4),
            }
            for bound, bucket in zip((*BOUNDS, None), warmth.buckets, strict=True)
        ],
    }


def _conversation(conversation: Conversation) -> Json:
    told = [turn for turn in conversation.turns if turn.cached is not None]
    prompt, cached = sum(turn.prompt for turn in told), sum(turn.cached or 0 for turn in told)
    last = conversation.turns[-1] if conversation.turns else None
    return {
        "hit_ratio": round(cached / prompt, 4) if prompt else None,
        "prompt_tokens": None if last is None else last.prompt,
        "last_decision": None if last is None else last.decision,
        "last_cause": None if last is None else last.cause,
    }


def _turn(turn: TurnTaken, offset: float) -> Json:
    return {
        "time": round(turn.at + offset, 3),
        "backend": turn.backend,
        "decision": turn.decision,
        "prompt_tokens": turn.prompt,
        "cached_tokens": turn.cached,
        "idle_s": None if turn.idle is None else round(turn.idle, 1),
        "outcomes": {outcome.value: tokens for outcome, tokens in turn.outcomes.items()},
        "cause": turn.cause,
        "meaning": MEANINGS.get(turn.cause, ""),
    }
