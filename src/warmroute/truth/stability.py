"""Where and how prompts change that should only grow, by key source and family of system prompts."""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from ..core.drift import Cause, Drift

_MOST_FAMILIES = 200


@dataclass(slots=True)
class Family:
    """Prompts of one client application: the same source of ids, the same beginning. `parts` counts where changes began."""

    turns: int = 0
    changes: Counter[Cause] = field(default_factory=Counter)
    tokens: Counter[Cause] = field(default_factory=Counter)
    parts: Counter[str] = field(default_factory=Counter)


class Stability:
    """(key source, family) -> what its turns showed. Bounded: the family used least recently goes first."""

    def __init__(self) -> None:
        self.families: OrderedDict[tuple[str, int], Family] = OrderedDict()
        self._sources: dict[str, Family] = {}

    def __repr__(self) -> str:
        return f"<Stability of {len(self.families)} families>"

    def by_source(self) -> dict[str, Family]:
        """The sums over each source's families, those forgotten not counted out."""
        return self._sources

    def turn(self, source: str, family: int, drift: Drift, lost: int) -> None:
        """A further turn of a conversation has come; `lost` are the tokens that its change has cost."""
        key = source, family
        known = self.families.get(key)
        if known is None:
            known = self.families[key] = Family()
            if len(self.families) > _MOST_FAMILIES:
                self.families.popitem(last=False)
        else:
            self.families.move_to_end(key)
        whole = self._sources.get(source)
        if whole is None:
            whole = self._sources[source] = Family()
        known.turns += 1
        whole.turns += 1
        if drift.cause is not None:
            for counts in (known, whole):
                counts.changes[drift.cause] += 1
                counts.tokens[drift.cause] += lost
                counts.parts[_part(drift.part)] += 1


def _part(part: str) -> str:
    """A message's number says little over all conversations, and has no bound."""
    return "messages" if part.startswith("message") else part
