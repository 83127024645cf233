"""Which tokens of each conversation an engine's cache holds, by the events in which it tells what it stores and drops."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

BlockHash = int | bytes
"""vLLM's name of a block: a digest of the block's tokens and of all before them."""

MOST_SESSIONS = 50_000
_COLD = 0.1
"""A conversation of which less than this share is left is as good as gone: what is left is what many have in common."""


class Held(NamedTuple):
    """What an engine has of a conversation's last prompt and answer, in tokens of whole blocks.

    `tokens` were stored and `live` of them are there now, always the first ones. With `whole` False the beginning was stored
    before the events were heard, so that both lack the same unknown number. `evicted` only grows: tokens that went so far.
    """

    tokens: int
    live: int
    evicted: int
    whole: bool

    @property
    def cold(self) -> bool:
        """Whether next to nothing is left, for certain."""
        return self.whole and self.live < _COLD * self.tokens


class _Block:
    """A block in the cache. `end` is the number of tokens up to its end, from where the events were heard first."""

    __slots__ = ("end", "name", "parent", "tips", "whole")

    def __init__(self, name: BlockHash, parent: "_Block | None", end: int, whole: bool) -> None:
        self.name = name
        self.parent = parent
        self.end = end
        self.whole = whole
        self.tips: set[_Session] | None = None


class _Session:
    """`tip` is the last block of its last prompt that is still there, None if none is."""

    __slots__ = ("evicted", "label", "tip", "tokens", "whole")

    def __init__(self, label: str) -> None:
        self.label = label
        self.tip: _Block | None = None
        self.tokens = 0
        self.whole = True
        self.evicted = 0


class Residency:
    """The blocks of one engine's cache, each under the one before it, and the last block of every conversation.

    vLLM drops a conversation's last blocks first, so what lives of it is all that comes before its last living block. Of
    equal blocks that requests computed at the same time one is known, and none when the first of them is dropped. Bounded:
    with more than `blocks` blocks everything is forgotten, with too many sessions those that stored nothing for longest.

    `changed` are the labels of which `held` may say something else since somebody emptied it; None where nobody asks.
    """

    def __init__(self, blocks: int, sessions: int = MOST_SESSIONS) -> None:
        self._most_blocks = blocks
        self._most_sessions = sessions
        self._blocks: dict[BlockHash, _Block] = {}
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self.changed: set[str] | None = None
        self.overflows = 0

    def __repr__(self) -> str:
        return f"<Residency {self.blocks} blocks, {self.sessions} sessions>"

    @property
    def blocks(self) -> int:
        return len(self._blocks)

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    def labels(self) -> list[str]:
        """Those of all conversations that are known."""
        return list(self._sessions)

    def held(self, label: str) -> Held | None:
        """What is there of a conversation; None if it is not known to have been there."""
        session = self._sessions.get(label)
        if session is None:
            return None
        live = 0 if session.tip is None else session.tip.end
        return Held(session.tokens, live, session.evicted, session.whole)

    def stored(self, label: str | None, names: Sequence[BlockHash], parent: BlockHash | None, size: int) -> None:
        """A request has filled blocks of `size` tokens that follow `parent`, or begin its prompt; `label` is its session's."""
        if not names:
            return
        if len(self._blocks) + len(names) >= self._most_blocks:  # with the one before them
            self.forget()
            self.overflows += 1
        last = None if parent is None else self._known(parent)
        for name in names:
            block = self._blocks.get(name)
            if block is None:
                end, whole = (0, True) if last is None else (last.end, last.whole)
                block = self._blocks[name] = _Block(name, last, end + size, whole)
            last = block
        if label is not None and last is not None:
            self._goes_to(label, last)

    def removed(self, names: Iterable[BlockHash]) -> None:
        """The engine has dropped blocks."""
        for name in names:
            block = self._blocks.pop(name, None)
            if block is None or block.tips is None:
                continue
            left = block.parent
            while left is not None and self._blocks.get(left.name) is not left:
                left = left.parent
            for session in block.tips:
                session.evicted += block.end - (0 if left is None else left.end)
                self._rests_on(session, left)
                session.whole = block.whole
                if self.changed is not None:
                    self.changed.add(session.label)

    def cleared(self) -> None:
        """The engine's cache is empty: nothing is left of what was there."""
        for session in self._sessions.values():
            session.evicted += 0 if session.tip is None else session.tip.end
            session.tip, session.whole = None, True
        self._blocks.clear()
        self._all_changed()

    def forget(self) -> None:
        """Events were missed: nothing is known of any conversation until it stores blocks again."""
        self._all_changed()
        self._blocks.clear()
        self._sessions.clear()

    def _all_changed(self) -> None:
        if self.changed is not None:
            self.changed.update(self._sessions)

    def _known(self, name: BlockHash) -> _Block:
        """A block that another one follows. One that was stored before the events were heard begins what is known."""
        found = self._blocks.get(name)
        if found is None:
            found = self._blocks[name] = _Block(name, None, 0, whole=False)
        return found

    def _goes_to(self, label: str, block: _Block) -> None:
        """The conversation's last prompt ends with this block."""
        session = self._sessions.get(label)
        if session is None:
            session = self._sessions[label] = _Session(label)
            if len(self._sessions) > self._most_sessions:
                name, oldest = self._sessions.popitem(last=False)
                self._leaves(oldest)
                if self.changed is not None:
                    self.changed.add(name)
        else:
            self._sessions.move_to_end(label)
            self._leaves(session)
        session.tokens, session.whole = block.end, block.whole
        self._rests_on(session, block)
        if self.changed is not None:
            self.changed.add(label)

    @staticmethod
    def _leaves(session: _Session) -> None:
        if session.tip is not None and session.tip.tips is not None:
            session.tip.tips.discard(session)

    @staticmethod
    def _rests_on(session: _Session, block: _Block | None) -> None:
        session.tip = block
        if block is not None:
            if block.tips is None:
                block.tips = set()
            block.tips.add(session)
