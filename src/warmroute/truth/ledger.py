"""Accounts for every request's prompt tokens: looks at its prompt when it comes, and at what its backend had at its end."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import Struct

from ..core.drift import Drift, drift, grown
from ..core.model import Reason, Session
from ..core.residency import Held
from ..core.sketch import Kind, Sketch, Stem, sketch
from ..core.split import BLOCK, EVICTED, MOVED, PROMPT_CHANGED, Outcome, split
from ..core.usage import NO_USAGE, Usage
from ..core.volatile import Lines
from .conversations import MAY_COST_NOTHING, Computed, Conversation, Conversations, Engine, TurnTaken
from .stability import Stability
from .tally import Tally
from .warmth import Warmth

Parts = Sequence[tuple[Kind, bytes]]


class Said(Protocol):
    """What a request says."""

    def parts(self) -> Parts:
        """All of it; nothing if it cannot be read."""

    def added(self, old: Stem | None) -> tuple[Stem | None, Parts | None]:
        """Its stem, None if it has none; and what it adds to the prompt with the old one, None if it does not begin so."""


ANSWER = "answer"
"""The cause of a change that only the backend's figures show: the last answer came back otherwise than it was made."""
RESTART, GONE = "restart", "evicted"
_MOST_MASKS = 4096
"""System prompts and their parts whose masks are remembered, so that conversations which share them do not pay again."""
_MISSED = (MOVED, EVICTED, PROMPT_CHANGED)
_FAMILY = 120
"""Bytes of a system prompt's JSON that tell applications apart, and seldom have a clock in them."""


@dataclass(slots=True, eq=False)
class Prompt:
    """A request's prompt as it was looked at: held by the request until its end."""

    session: Session | None = None
    family: int = 0
    sketch: Sketch | None = None
    before: Conversation | None = None
    drift: Drift | None = None
    older: bool = False


class Answered(Struct):
    """Who answered a request, why it was there, what was said of its tokens; when it came and when it ended, in seconds.

    `held` is what the engine is known to have had of the session when the request came.
    """

    backend: str
    rank: str | None
    decision: str
    usage: Usage
    began: float
    ended: float
    held: Held | None = None


NO_PROMPT = Prompt()


@dataclass(slots=True)
class Ledger:
    """`look` is called when a request comes, `settle` once at its end.

    `evicted` tells how many of a session's tokens an engine has dropped since it computed them, None where it does not say.
    """

    conversations: Conversations
    move_cause: Callable[[str, str], str]
    process_of: Callable[[str], int]
    block_of: Callable[[str], int] = lambda _: BLOCK
    evicted: Callable[[bytes, str, str | None, Held | None], int | None] | None = None
    tally: Tally = field(default_factory=Tally)
    stability: Stability = field(default_factory=Stability)
    warmth: dict[str, Warmth] = field(default_factory=lambda: defaultdict(Warmth))
    masks: dict[int, Lines | int] = field(default_factory=dict)
    engines: dict[tuple[str, str | None], Engine] = field(default_factory=dict)

    def look(self, session: Session, said: Said, came_from: bytes | None, *, older: bool) -> Prompt:
        """Compare a prompt with the one that it goes on from; the text is not kept. NO_PROMPT for what cannot be read.

        `came_from` is the session whose history a new session goes on with; `older` tells that the session is not new.
        """
        before = self.conversations.get(session.key)
        if before is None and came_from is not None:
            before = self.conversations.get(came_from)
        made = sketched(said, before.sketch if before is not None else None)
        if made is None:
            return NO_PROMPT
        now, parts = made
        if before is None:
            self._mask(now, parts or ())
            return Prompt(session, family_of(parts or ()), now, older=older)
        found = grown(before.sketch, now) if parts is None else drift(before.sketch, now, before.tools)
        if found.cause is None:
            now.masks = before.sketch.masks
        else:  # a closer look may tell more
            self._mask(now, parts or said.parts())
            found = drift(before.sketch, now, before.tools)
        return Prompt(session, before.family, now, before, found)

    def compare(self, session: Session, now: Sketch, family: int, came_from: bytes | None, *, older: bool) -> Prompt:
        """`look` at a prompt of which only the sketch is left, masked unless it grows; `family` is that of its parts."""
        before = self.conversations.get(session.key)
        if before is None and came_from is not None:
            before = self.conversations.get(came_from)
        if before is None:
            return Prompt(session, family, now, older=older)
        last = before.sketch
        found = grown(last, now) if now.goes_on(last) else None
        if found is None or found.cause is not None:
            found = drift(last, now, before.tools)
        if found.cause is None:
            now.masks = last.masks
        return Prompt(session, before.family, now, before, found)

    def _mask(self, now: Sketch, parts: Parts) -> None:
        if len(self.masks) > _MOST_MASKS:
            self.masks.clear()
        now.mask(parts, self.masks)

    def settle(self, prompt: Prompt, answered: Answered) -> None:
        """Account for a request that a backend has answered."""
        session, now, before, drifted = prompt.session, prompt.sketch, prompt.before, prompt.drift
        usage = answered.usage if answered.usage.prompt is not None else _estimated(prompt)
        size, cached, completion = usage
        if size is None:
            return
        backend, decision, ended = answered.backend, answered.decision, answered.ended
        engine, block = self._engine(backend, answered.rank), self.block_of(backend)
        last = there = expected = None
        if before is not None and before.computed:
            last, there = before.computed[0], before.last_on(engine)
            expected = before.expects(drifted, there) if drifted is not None else None
        left = last.engine.backend if last is not None and last is not there else None
        same = there is not None and there.engine == engine
        gone = None
        if self.evicted is not None and session is not None:
            gone = self.evicted(session.key, backend, answered.rank, answered.held)
        tokens, answer_changed = split(size, cached, expected, block, prompt.older, gone)
        idle = None if there is None else max(0.0, answered.began - there.at)
        causes: dict[Outcome, str] = {}
        cause = ""
        if MOVED in tokens or EVICTED in tokens or PROMPT_CHANGED in tokens:
            if decision == Reason.PIN_COLD:  # it moved since they had gone
                _count_as(tokens, MOVED, EVICTED)
            if drifted is not None and drifted.cause in MAY_COST_NOTHING and same:
                _count_as(tokens, EVICTED, PROMPT_CHANGED)  # of a change that could have cost nothing, and did
            causes = self._causes(prompt, there is not None and not same, left, decision, answer_changed)
            cause = causes[max((outcome for outcome in _MISSED if outcome in tokens), key=tokens.__getitem__)]
        taken = TurnTaken(ended, backend, decision, size, cached, idle, tokens, cause)
        self.tally.add(taken, causes)
        if session is None or now is None:
            return
        if before is not None and drifted is not None:
            self.stability.turn(before.source, before.family, drifted, tokens.get(PROMPT_CHANGED, 0))
            if there is not None and same and drifted.cause is None and not answer_changed:
                could = min(there.cached, size - 1) // block * block
                if could > 0 and cached is not None:
                    self.warmth[backend].observe(idle or 0.0, could, cached)
        known = self.conversations.take(session, prompt.family, now)
        if left is not None:
            known.went = self.move_cause(decision, left)
        known.goes_on(now, drifted, Computed(engine, now.size, size, completion or 0, ended))
        known.took(taken)

    def _engine(self, backend: str, rank: str | None) -> Engine:
        process = self.process_of(backend)
        known = self.engines.get((backend, rank))
        if known is None or known.process != process:
            known = self.engines[backend, rank] = Engine(backend, rank, process)
        return known

    def _causes(
        self, prompt: Prompt, restarted: bool, left: str | None, decision: str, answer_changed: bool
    ) -> dict[Outcome, str]:
        """Why tokens of each outcome were missed; `left` is the backend from which the conversation has come just now."""
        causes: dict[Outcome, str] = {EVICTED: RESTART if restarted else GONE}
        if left is not None:
            causes[MOVED] = self.move_cause(decision, left)
        elif prompt.before is not None:
            causes[MOVED] = prompt.before.went or "unknown"
        if answer_changed:
            causes[PROMPT_CHANGED] = ANSWER
        elif prompt.drift is not None and prompt.drift.cause is not None:
            causes[PROMPT_CHANGED] = prompt.drift.cause
        return causes


def sketched(said: Said, last: Sketch | None) -> tuple[Sketch, Parts | None] | None:
    """The sketch of what a request says, and its parts: None where it only adds to the last one. None if it cannot be read."""
    stem, added = said.added(last.stem if last is not None else None)
    if last is not None and added is not None:
        now = last.grown(added)
        now.stem = stem
        return now, None
    parts = said.parts()
    if not parts:
        return None
    now = sketch(parts)
    now.stem = stem if now.begun else None  # nothing can be put behind what ends otherwise
    return now, parts


def _estimated(prompt: Prompt) -> Usage:
    """The length of a prompt whose backend did not come to say it, by that of the one before."""
    if prompt.before is None or prompt.sketch is None or not prompt.before.computed:
        return NO_USAGE
    last = prompt.before.computed[0]
    return Usage(prompt=last.prompt * prompt.sketch.size // last.size) if last.size else NO_USAGE


def _count_as(tokens: dict[Outcome, int], one: Outcome, other: Outcome) -> None:
    """Put what has one outcome under the other."""
    count = tokens.pop(one, 0)
    if count:
        tokens[other] = tokens.get(other, 0) + count


def family_of(parts: Parts) -> int:
    """A digest of the system prompt's first words: what prompts of one application have in common."""
    return next((hash(data[:_FAMILY]) for kind, data in parts if kind is Kind.SYSTEM), 0)
