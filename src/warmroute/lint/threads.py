"""Which request of a log goes on from which: by ids as the router finds them, else by what was said."""

from collections import defaultdict
from dataclasses import dataclass, field

from ..core.drift import Cause, drift
from ..core.sketch import Kind, Layout, Sketch, sketch
from .log import Entry

_TELLING = 80
"""Bytes of messages that must be shared before a request with another system prompt counts as the same conversation."""
_SHARED = 200
"""Bytes of messages, two of them or more, by which a history is known whose beginning is gone."""

_NEW = 3
"""Messages that a turn adds; with more than these it is looked for a conversation that said more of the same."""
_OPENING = 256
"""Bytes of a text by which those are found that it may go on from."""


@dataclass(slots=True, eq=False)
class Thread:
    """A conversation: its latest request, and how many came. `end` is a digest of all that was said."""

    entry: Entry
    sketch: Sketch
    layout: Layout
    head: list[int]
    end: int
    turns: int = 1
    tools: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Turn:
    """A request, and the one before it in its conversation, if there was any."""

    thread: Thread
    entry: Entry
    sketch: Sketch
    before: Entry | None = None
    last: Sketch | None = None


class Threads:
    """All conversations of a log so far."""

    def __init__(self) -> None:
        self.count = 0
        self._ends: dict[tuple[str, int], list[Thread]] = {}
        self._said: dict[tuple[str, int], Thread] = {}
        self._latest: dict[str, Thread] = {}
        self._texts: defaultdict[tuple[str, bytes], list[Thread]] = defaultdict(list)

    def __repr__(self) -> str:
        return f"<Threads {self.count}>"

    def turn(self, entry: Entry) -> Turn:
        """Take the log's next request."""
        now = sketch(entry.parts)
        layout = now.layout()
        scope = entry.session.key.hex() if entry.session is not None else entry.model
        chain = _chain(layout)
        thread = self._text(scope, entry) if now.text else self._find(scope, entry, now, layout, chain)
        head, end = layout.digests[: layout.head], chain[-1] if chain else 0
        if thread is None:
            self.count += 1
            thread = Thread(entry, now, layout, head, end)
            turn = Turn(thread, entry, now)
            if now.text:
                self._texts[scope, entry.parts[0][1][:_OPENING]].append(thread)
        else:
            turn = Turn(thread, entry, now, thread.entry, thread.sketch)
            thread.tools.add(thread.sketch.tools)
            thread.entry, thread.sketch, thread.layout, thread.head, thread.end = entry, now, layout, head, end
            thread.turns += 1
        self._latest[scope] = thread
        self._ends.setdefault((scope, end), []).append(thread)
        for digest in layout.digests[layout.head :]:
            self._said[scope, digest] = thread
        return turn

    def _find(self, scope: str, entry: Entry, now: Sketch, layout: Layout, chain: list[int]) -> Thread | None:
        named = entry.session is not None
        begun = Kind.ASSISTANT in layout.kinds
        if not begun and not named:
            return None
        size = sum(layout.lengths[layout.head :])
        for i in range(len(chain) - 1, -1, -1):
            found = self._goes_on((scope, chain[i]), layout.digests[: layout.head], telling=named or size >= _TELLING)
            if found is not None:
                return found if i + _NEW >= len(chain) else self._shares(scope, layout, named, i + 1) or found
            size -= layout.lengths[layout.head + i]
        found = self._shares(scope, layout, named, 0)
        return self._by_id(scope, now, layout) if found is None and named else found

    def _goes_on(self, key: tuple[str, int], head: list[int], *, telling: bool) -> Thread | None:
        """A conversation whose latest request ended in this history; else one that has gone on from there."""
        ended = self._ends.get(key)
        if not ended:
            return None
        waiting = [thread for thread in ended if thread.end == key[1]]
        if len(waiting) < len(ended):
            self._ends[key] = ended = waiting or ended[-1:]
        fitting = next((thread for thread in reversed(ended) if thread.head == head), None)
        return fitting if fitting is not None or not telling else ended[-1]

    def _shares(self, scope: str, layout: Layout, named: bool, more_than: int) -> Thread | None:
        """A conversation that said more than so much of the same, although its beginning is another one or gone."""
        for i in range(len(layout.digests) - 1, layout.head - 1, -1):
            thread = self._said.get((scope, layout.digests[i]))
            if thread is None:
                continue
            there = set(thread.layout.digests[thread.layout.head :])
            messages = zip(layout.digests[layout.head :], layout.lengths[layout.head :], strict=True)
            shared = {digest: length for digest, length in messages if digest in there}
            if len(shared) <= more_than:
                continue
            if named or (len(shared) > 1 and sum(shared.values()) >= _SHARED):
                return thread
        return None

    def _by_id(self, scope: str, now: Sketch, layout: Layout) -> Thread | None:
        """The latest conversation of an id although no message is the same: each was rewritten, or all were summarised."""
        last = self._latest.get(scope)
        if last is None:
            return None
        was = last.layout
        if len(layout.kinds) > len(was.kinds) and layout.kinds[: len(was.kinds)] == was.kinds:
            return last
        same_head = layout.digests[: layout.head] == last.head
        return last if same_head and drift(last.sketch, now).cause is Cause.SUMMARISED else None

    def _text(self, scope: str, entry: Entry) -> Thread | None:
        """The longest text that this one goes on from; under an id, the one before it."""
        if entry.session is not None:
            return self._latest.get(scope)
        text = entry.parts[0][1]
        threads = [t for t in self._texts[scope, text[:_OPENING]] if text.startswith(t.entry.parts[0][1])]
        return max(threads, key=lambda t: t.sketch.size, default=None)


def _chain(layout: Layout) -> list[int]:
    """A digest for each beginning of the messages."""
    chain: list[int] = []
    running = 0
    for digest in layout.digests[layout.head :]:
        running = (running * 1_000_003 + digest) & 0x7FFFFFFFFFFFFFFF
        chain.append(running)
    return chain
