"""What is remembered of conversations to know what could hit: a sketch of the last prompt, and where it was computed."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from ..core.drift import Cause, Drift
from ..core.model import Session
from ..core.sketch import Sketch
from ..core.split import Expected, Outcome

_MOST_PLACES = 4
_MOST_TOOLS = 8
_MOST_WITH_TURNS = 1000
"""Conversations whose turns can be looked at: a turn takes half a kilobyte, and people look at what happens now."""
MAY_COST_NOTHING = frozenset({Cause.CLAUDE_BILLING, Cause.LATE_SYSTEM})
"""Changes that vLLM takes out of the prompt, or a chat template puts where they do no harm; the figures tell."""
_MOST_TURNS = 24
"""Turns of a conversation that can be looked at."""


class Engine(NamedTuple):
    """One cache: a backend, its data-parallel rank if it has several, and which process of those that it had in time."""

    backend: str
    rank: str | None
    process: int


class Computed(Struct, gc=False):
    """A prompt and its answer that an engine has computed: bytes of the prompt's sketch, tokens, and the time of its end."""

    engine: Engine
    size: int
    prompt: int
    completion: int
    at: float

    @property
    def cached(self) -> int:
        """Tokens whose blocks the engine had at its end: the last one of an answer is never computed."""
        return self.prompt + max(0, self.completion - 1)

    def tokens(self, size: int) -> int:
        """Tokens of the prompt's first bytes."""
        return self.prompt * min(size, self.size) // self.size if self.size else 0


class TurnTaken(Struct, gc=False):
    """One turn as people see it. Times are seconds of the router's clock; `outcomes` adds up to `prompt`."""

    at: float
    backend: str
    decision: str
    prompt: int
    cached: int | None
    idle: float | None
    outcomes: dict[Outcome, int]
    cause: str = ""


class Conversation(Struct, gc=False):
    """One conversation. `computed` has its last turn first, then those of other engines; `tools` are earlier ones.

    There are many, and none is part of a cycle: what the garbage collector has to look at stops the router meanwhile.
    """

    source: str
    family: int
    sketch: Sketch
    computed: tuple[Computed, ...] = ()
    went: str = ""
    tools: frozenset[int] = frozenset()
    turns: tuple[TurnTaken, ...] = ()

    def expects(self, drift: Drift, there: Computed | None) -> Expected:
        """What could hit of a prompt that differs from the last computed one as `drift` says.

        `there` is what was `last_on` the engine that the prompt has come to.
        """
        last = self.computed[0]
        if grows(drift):
            known = last.cached
            here = known if there is last else 0 if there is None else min(there.cached, known)
            return Expected(known, here, last.prompt, 0)
        known = last.tokens(drift.same)
        replaced = last.tokens(drift.same + drift.lost) - known
        replaced += max(0, last.completion - 1) if drift.answered else 0
        here = 0 if there is None else there.cached if there.size <= drift.same else there.tokens(drift.same)
        return Expected(known, min(here, known), known, replaced)

    def last_on(self, engine: Engine) -> Computed | None:
        """What was computed last on this backend and rank, be it by an earlier process."""
        for computed in self.computed:
            if computed.engine is engine or computed.engine[:2] == engine[:2]:
                return computed
        return None

    def goes_on(self, sketch: Sketch, drift: Drift | None, turn: Computed) -> None:
        """A turn was computed: it is the last one now, and what the prompt has left is not expected of any engine."""
        if drift is not None and drift.cause is not None:
            if not grows(drift):
                for other in self.computed:
                    if other.size > drift.same:
                        other.prompt, other.completion, other.size = other.tokens(drift.same), 0, drift.same
            if sketch.tools != self.sketch.tools and len(self.tools) < _MOST_TOOLS:
                self.tools |= {self.sketch.tools}
        there = self.last_on(turn.engine)
        if self.computed and there is self.computed[0]:
            self.computed = (turn, *self.computed[1:])
        else:
            others = [computed for computed in self.computed if computed is not there]
            self.computed = (turn, *others[: _MOST_PLACES - 1])
        self.sketch = sketch

    def took(self, turn: TurnTaken) -> None:
        """Keep a turn for people to look at."""
        self.turns = (*self.turns, turn)[-_MOST_TURNS:]


def grows(drift: Drift) -> bool:
    """Whether the backend may find all of the last prompt in the new one."""
    return drift.cause is None or drift.cause in MAY_COST_NOTHING


class Conversations:
    """Session key -> Conversation, the least recently used first; bounded. Those used last keep their turns, others one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: OrderedDict[bytes, Conversation] = OrderedDict()
        self._with_turns: OrderedDict[bytes, Conversation] = OrderedDict()
        self.evicted = 0

    def __repr__(self) -> str:
        return f"<Conversations {len(self)} held, {self.evicted} evicted>"

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: bytes) -> Conversation | None:
        return self._held.get(key)

    def take(self, session: Session, family: int, sketch: Sketch) -> Conversation:
        """The conversation of a session, from now on the one used last."""
        found = self._held.get(session.key)
        if found is None:
            found = self._held[session.key] = Conversation(session.source, family, sketch)
            if len(self._held) > self._limit:
                self._held.popitem(last=False)
                self.evicted += 1
        else:
            self._held.move_to_end(session.key)
        self._with_turns[session.key] = found
        self._with_turns.move_to_end(session.key)
        if len(self._with_turns) > _MOST_WITH_TURNS:
            _, longest_idle = self._with_turns.popitem(last=False)
            longest_idle.turns = longest_idle.turns[-1:]
        return found

    def newest(self) -> Iterator[tuple[bytes, Conversation]]:
        return reversed(self._held.items())
