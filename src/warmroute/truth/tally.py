"""Prompt tokens by outcome: for each backend since the start, and for the fleet by steps of time."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..core.counts import Counts
from ..core.split import REUSED, Outcome
from .conversations import TurnTaken

STEP = 30.0
"""Seconds of a step of the history."""
_STEPS = 120
_WAITING = 256
"""Turns of a backend that may wait for the word whether their tokens were reloaded."""


@dataclass(slots=True)
class _Reloads:
    """Tokens that one backend's tier behind has given, and the turns that they may belong to."""

    last: float | None = None
    owed: int = 0
    turns: deque[TurnTaken] = field(default_factory=lambda: deque(maxlen=_WAITING))


class Tally:
    """Adds up what turns say. `missed` has the cause of each token that could have been in a cache and was not."""

    def __init__(self) -> None:
        self.tokens: Counts[tuple[str, Outcome]] = Counts()
        self.missed: Counter[tuple[str, Outcome, str]] = Counter()
        self.steps: deque[tuple[int, Counts[Outcome]]] = deque(maxlen=_STEPS)
        self._reloads: dict[str, _Reloads] = {}
        self._of_gone: Counter[Outcome] = Counter()

    def __repr__(self) -> str:
        return f"<Tally {sum(self.tokens.values())} prompt tokens>"

    def add(self, turn: TurnTaken, causes: Mapping[Outcome, str]) -> None:
        """Count one turn."""
        step, backend = self._step(turn.at), turn.backend
        for outcome, tokens in turn.outcomes.items():
            self.tokens[backend, outcome] += tokens
            step[outcome] += tokens
            if outcome in causes:
                self.missed[backend, outcome, causes[outcome]] += tokens
        if backend in self._reloads and REUSED in turn.outcomes:
            self._reloads[backend].turns.append(turn)

    def reloaded(self, backend: str, total: float) -> None:
        """Take the count of tokens that the backend's tier behind has given since its start.

        vLLM tells a turn only how many tokens were cached, wherever. What came from behind since the last count is put to the
        turns since then, those first that were elsewhere or idle for longest.
        """
        known = self._reloads.setdefault(backend, _Reloads())
        if known.last is not None:
            known.owed += int(total - known.last if total >= known.last else total)
        known.last = total
        for turn in sorted(known.turns, key=_may_be_behind, reverse=True):
            moved = min(known.owed, turn.outcomes.get(Outcome.REUSED, 0))
            if not moved:
                continue
            known.owed -= moved
            step = self._step(turn.at)
            for outcome, tokens in ((Outcome.REUSED, -moved), (Outcome.RELOADED, moved)):
                turn.outcomes[outcome] = turn.outcomes.get(outcome, 0) + tokens
                self.tokens[backend, outcome] += tokens
                step[outcome] += tokens
            if not turn.outcomes[Outcome.REUSED]:
                del turn.outcomes[Outcome.REUSED]
        known.turns.clear()

    def totals(self, backend: str | None = None) -> Counter[Outcome]:
        """Tokens by outcome, of one backend or of all."""
        found = Counter(self._of_gone) if backend is None else Counter[Outcome]()
        for (name, outcome), tokens in self.tokens.items():
            if backend is None or name == backend:
                found[outcome] += tokens
        return found

    def settled(self, backend: str) -> Counter[Outcome]:
        """The totals of a backend that only grow: without what may yet turn out to be reloaded and not reused."""
        found = self.totals(backend)
        if backend in self._reloads:
            found[Outcome.REUSED] -= sum(t.outcomes.get(Outcome.REUSED, 0) for t in self._reloads[backend].turns)
        return found

    def forget(self, backend: str) -> None:
        """A backend is gone for good: its tokens are those of the fleet alone from now on."""
        self._of_gone += self.totals(backend)
        for outcome in Outcome:
            self.tokens.pop((backend, outcome), None)
        for labels in [labels for labels in self.missed if labels[0] == backend]:
            del self.missed[labels]
        self._reloads.pop(backend, None)

    def _step(self, at: float) -> Counts[Outcome]:
        index = int(at // STEP)
        for known, counts in reversed(self.steps):
            if known == index:
                return counts
            if known < index:
                break
        else:
            if self.steps:  # older than all that is kept
                return Counts()
        counts = Counts()
        self.steps.append((index, counts))
        return counts


def _may_be_behind(turn: TurnTaken) -> tuple[bool, float]:
    return turn.idle is None, turn.idle or 0.0
