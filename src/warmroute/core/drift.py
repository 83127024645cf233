"""Where a conversation's prompt leaves the one before it, what that costs, and why it happened."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Container
from enum import StrEnum
from typing import NamedTuple

from .sketch import SYSTEM, Kind, Layout, Sketch
from .volatile import Change


class Cause(StrEnum):
    """Why a prompt does not go on where the last one ended. `core.cures` says it in sentences."""

    CLOCK = "clock"
    IDENTIFIER = "identifier"
    COUNTER = "counter"
    WHITESPACE = "whitespace"
    KEY_ORDER = "key_order"
    SYSTEM_GROWN = "system_grown"
    SYSTEM = "system"
    CLAUDE_BILLING = "claude_billing"
    LATE_SYSTEM = "late_system"
    TOOLS_ORDER = "tools_order"
    TOOLS_FLAPPED = "tools_flapped"
    TOOLS = "tools"
    TRIMMED = "trimmed"
    SUMMARISED = "summarised"
    LAST_USER = "last_user"
    REMINDER_MOVED = "reminder_moved"
    REWRITTEN = "rewritten"
    ANSWER = "answer"
    PRUNED = "pruned"
    EDITED = "edited"
    SHORTER = "shorter"


BY_PEOPLE = frozenset({Cause.EDITED, Cause.SHORTER})
"""What people do on purpose: edit, branch, regenerate. Nothing is to be mended there."""


class Drift(NamedTuple):
    """What became of the old prompt in the new one; all sizes in bytes, exact to a piece of a sketch.

    `same` is how much of the new prompt's beginning is the old one's. `lost` is how much of the rest was in the old prompt as
    well, or takes the place of something there: what could have been reused had the client only added to the prompt. `at` is
    where in the `part` the difference is: a part is "tools", "system", "message 3" (counted from 1, after the system prompt)
    or "prompt".
    `answered` tells that the answer to the old prompt stands in the new one too: it was lost with the rest, beyond `lost`.

    Two causes need not cost anything. CLAUDE_BILLING is given only if nothing else differs, and `same` ends at that line; vLLM
    0.32 takes the line out of the prompt, and then nothing is lost. LATE_SYSTEM has all of the old prompt in `same`: to chat
    templates that want one system prompt vLLM gives the late one at the front, to others where it stands.
    """

    cause: Cause | None
    part: str
    same: int
    lost: int
    at: int
    answered: bool = False


def drift(old: Sketch, new: Sketch, earlier_tools: Container[int] = ()) -> Drift:
    """What became of the old prompt in the new one of the same conversation. The cause is None if all of it is its beginning.

    `earlier_tools` are the `Sketch.tools` that the conversation had before: tools that come back are TOOLS_FLAPPED.
    """
    count = len(old.kinds)
    if old.digests == new.digests[:count] and new.kinds.startswith(old.kinds) and not new.continues(count):
        return grown(old, new)
    piece = _common(old, new, 0)
    if old.text and new.text:
        return _text(old, new, piece)
    if piece == old.billing == new.billing:
        beyond = _common(old, new, piece + 1)
        if beyond == count:
            same = sum(old.lengths[:piece])
            return Drift(Cause.CLAUDE_BILLING, "system", same, old.size - same, 0)
        piece = beyond
    return _Comparison(old, new, piece).told(earlier_tools)


def grown(old: Sketch, new: Sketch) -> Drift:
    """What became of a prompt in one that begins with it: nothing, unless there is a system message in what is new."""
    late = new.kinds.find(SYSTEM, len(old.kinds))
    if late < 0 or not old.kinds or old.kinds[-1] & 0x0F <= SYSTEM:
        return Drift(None, "", old.size, 0, 0)
    layout = new.layout()
    part = layout.starts.index(late)
    lost = old.size - sum(layout.lengths[: layout.head])
    return Drift(Cause.LATE_SYSTEM, f"message {part - layout.head + 1}", old.size, lost, 0)


def _common(old: Sketch, new: Sketch, start: int) -> int:
    """The number of the first piece from here on that is not the same in both."""
    low, high = start, min(len(old.kinds), len(new.kinds))
    while low < high:
        middle = (low + high + 1) // 2
        if old.digests[low:middle] == new.digests[low:middle] and old.kinds[low:middle] == new.kinds[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _text(old: Sketch, new: Sketch, piece: int) -> Drift:
    """Of two texts: nothing tells whether the old one's last piece goes on in the new one, so it is believed."""
    same = sum(old.lengths[:piece])
    if piece >= len(old.kinds) - 1 and new.size >= old.size:
        return Drift(None, "", same, 0, 0)
    cause = _SAYS.get(_change(old, new, 0), Cause.EDITED)
    if piece == len(new.kinds):
        cause = Cause.SHORTER
    lost = 0 if cause in BY_PEOPLE else min(old.size, new.size) - same
    return Drift(cause, "prompt", same, lost, same)


def _change(old: Sketch, new: Sketch, part: int) -> Change | None:
    """What happened to a part, where both are masked."""
    if old.masks is None or new.masks is None:
        return None
    before, after = old.masks.lines.get(part), new.masks.lines.get(part)
    return None if before is None or after is None else before.change(after)


_SAYS: dict[Change | None, Cause] = {
    Change.CLOCK: Cause.CLOCK,
    Change.IDENTIFIER: Cause.IDENTIFIER,
}
"""What a changed user message may be, beside an edit."""
_SAYS_OF_SYSTEM: dict[Change | None, Cause] = {
    **_SAYS,
    Change.COUNTER: Cause.COUNTER,
    Change.SPACES: Cause.WHITESPACE,
    Change.ORDER: Cause.KEY_ORDER,
    Change.GROWN: Cause.SYSTEM_GROWN,
}

_FEW = 3
"""Messages that may be left after a history was summarised."""
_SUMMARY = 1 << 10
"""Bytes; a shorter message that stands alone is a new question and no summary."""


class _Comparison:
    """Two prompts part by part, from the first part that differs."""

    def __init__(self, old: Sketch, new: Sketch, piece: int) -> None:
        self.old = old
        self.new = new
        self.was: Layout = old.layout()
        self.now: Layout = new.layout()
        self.part = min(_part(self.was, piece, len(old.kinds)), _part(self.now, piece, len(new.kinds)))
        self.same = sum(old.lengths[:piece])
        self.before = sum(self.was.lengths[: self.part])

    def told(self, earlier_tools: Container[int]) -> Drift:
        part, was, now = self.part, self.was, self.now
        kinds = {layout.kinds[part] for layout in (was, now) if part < len(layout.kinds)}
        if part >= len(now.kinds):
            cause, name = Cause.SHORTER, self._name(was)
        elif Kind.TOOL in kinds:
            cause, name = self._tools(earlier_tools), "tools"
        elif part < max(was.head, now.head):
            cause, name = self._system(), "system"
        else:
            cause, name = self._message(), self._name(now)
        return Drift(cause, name, self.same, self._lost(cause), self.same - self.before, self._answered(cause))

    def _name(self, layout: Layout) -> str:
        if self.part >= layout.head:
            return f"message {self.part - layout.head + 1}"
        return "tools" if layout.kinds[self.part] == Kind.TOOL else "system"

    def _lost(self, cause: Cause) -> int:
        """What of the new prompt could have been reused: what the old one has too, and what replaces something there."""
        if cause is Cause.SHORTER:
            return 0
        part, was, now = self.part, self.was, self.now
        left = Counter(was.digests[part:])
        lost = 0
        unknown = []
        for i in range(part, len(now.digests)):
            digest = now.digests[i]
            if left[digest] > 0:
                left[digest] -= 1
                lost += now.lengths[i]
            elif i < len(was.digests) and was.kinds[i] == now.kinds[i]:
                unknown.append(i)
        if cause in _REPLACE:
            replaced = [i for i in unknown if left[was.digests[i]] > 0]
            lost += sum(min(was.lengths[i], now.lengths[i]) for i in replaced)
            lost -= self.same - self.before if part in replaced else 0
        return lost

    def _answered(self, cause: Cause) -> bool:
        """Whether an answer follows what the old prompt ended with."""
        if cause in BY_PEOPLE:
            return False
        last, now = len(self.was.digests) - 1, self.now
        ends = [i for i, digest in enumerate(now.digests) if digest == self.was.digests[last]]
        if not ends and cause in _REPLACE:
            ends = [last]
        return any(now.kinds[i + 1 : i + 2] == [Kind.ASSISTANT] for i in ends)

    # Tools, system prompt

    def _tools(self, earlier: Container[int]) -> Cause:
        before = [d for d, kind in zip(self.was.digests, self.was.kinds, strict=True) if kind == Kind.TOOL]
        after = [d for d, kind in zip(self.now.digests, self.now.kinds, strict=True) if kind == Kind.TOOL]
        if sorted(before) == sorted(after):
            return Cause.TOOLS_ORDER
        if (
            len(before) == len(after)
            and self.old.masks
            and self.new.masks
            and self.old.masks.tools == self.new.masks.tools
        ):
            return Cause.KEY_ORDER
        if self.new.tools in earlier:
            return Cause.TOOLS_FLAPPED
        return Cause.TOOLS

    def _system(self) -> Cause:
        part, was, now = self.part, self.was, self.now
        cause = _SAYS_OF_SYSTEM.get(_change(self.old, self.new, part), Cause.SYSTEM)
        if now.digests[part] in was.digests[part + 1 : was.head]:
            cause = Cause.SYSTEM
        elif part >= was.head or was.digests[part] in now.digests[part + 1 : now.head]:
            cause = Cause.SYSTEM_GROWN
        if part < was.head and was.digests[part] in now.digests[now.head :]:
            return Cause.REMINDER_MOVED
        if cause in (Cause.SYSTEM, Cause.SYSTEM_GROWN) and self._first_messages_gone():
            return Cause.SUMMARISED
        return cause

    def _first_messages_gone(self) -> bool:
        """Whether the history begins later than it did."""
        was, now = self.was, self.now
        if was.head >= len(was.digests) or now.head >= len(now.digests):
            return False
        if was.digests[was.head] in now.digests[now.head :]:
            return False
        return now.digests[now.head] in was.digests[was.head + 1 :]

    # Messages

    def _message(self) -> Cause:
        part, was, now = self.part, self.was, self.now
        if len(now.digests) > len(was.digests) and self._in_place():
            return self._rewritten()
        after = was.digests[part + 1 :]
        if now.digests[part] in after:
            return self._dropped(after.index(now.digests[part]) + 1)
        if was.digests[part] in now.digests[part + 1 :]:
            return Cause.REMINDER_MOVED
        again = next((i for i in range(part + 1, len(now.digests)) if now.digests[i] in after), None)
        if again is not None:
            dropped, put_in = after.index(now.digests[again]) + 1, again - part
            return Cause.SUMMARISED if dropped > put_in else Cause.REWRITTEN
        return Cause.SUMMARISED if self._looks_summarised() else Cause.EDITED

    def _in_place(self) -> bool:
        """Whether the part was changed where it stands: what followed it still does, for the greater part."""
        part, was, now = self.part, self.was, self.now
        if was.kinds[part:] != now.kinds[part : len(was.kinds)]:
            return False
        pairs = list(zip(was.digests[part + 1 :], now.digests[part + 1 :], strict=False))
        return 2 * sum(a == b for a, b in pairs) >= len(pairs)

    def _rewritten(self) -> Cause:
        """The cause of a change in place."""
        part, was = self.part, self.was
        said = _SAYS.get(_change(self.old, self.new, part))
        if said is not None:
            return said
        kind = was.kinds[part]
        if kind == Kind.ASSISTANT:
            return Cause.ANSWER
        last_user = max((i for i, k in enumerate(was.kinds) if k == Kind.USER), default=-1)
        if part == last_user or part == len(was.kinds) - 1:
            return Cause.LAST_USER
        return Cause.PRUNED if kind == Kind.OTHER and self.now.lengths[part] < was.lengths[part] else Cause.REWRITTEN

    def _dropped(self, count: int) -> Cause:
        """So many parts are gone; a single one in the midst of a history is a note that stands elsewhere now."""
        part, was, now = self.part, self.was, self.now
        if was.digests[part] in now.digests[part + 1 :]:
            return Cause.REMINDER_MOVED
        return Cause.REMINDER_MOVED if count == 1 and part > was.head + 1 else Cause.TRIMMED

    def _looks_summarised(self) -> bool:
        part, was, now = self.part, self.was, self.now
        left = len(now.digests) - part
        return (
            len(was.digests) - part > _FEW >= left
            and now.lengths[part] >= _SUMMARY
            and 2 * sum(now.lengths[part:]) < sum(was.lengths[part:])
        )


_REPLACE = frozenset(Cause) - BY_PEOPLE - {Cause.TRIMMED, Cause.SUMMARISED, Cause.REMINDER_MOVED}
"""Causes that put something else in a part's place; had it been left alone, its bytes could have been reused."""


def _part(layout: Layout, piece: int, pieces: int) -> int:
    """The number of the part to which a piece belongs, of so many pieces; of one behind the end, one behind the last."""
    return bisect_right(layout.starts, piece) - 1 if piece < pieces else len(layout.starts)
