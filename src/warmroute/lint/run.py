"""Goes through a log once: turn against turn within conversations, and first prompts of conversations against each other."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain

from ..core.drift import BY_PEOPLE, Drift, drift
from ..core.sketch import Kind
from ..core.volatile import Lines
from ..proxy.parts import Part
from .families import Families, Found
from .log import Entry, entries
from .report import Finding, Report
from .threads import Threads, Turn

TEXT_SHOWN = 40
"""Characters of a prompt that are shown, and only if asked for."""


def lint(lines: Iterable[bytes], *, show_text: bool = False) -> Report:
    """What a log of requests shows. Raises LogError for lines that are none."""
    threads, families, turns = Threads(), Families(), _Turns(show_text)
    requests = gone_on = 0
    for entry in entries(lines):
        requests += 1
        turn = threads.turn(entry)
        if turn.before is None:
            families.take(entry)
        else:
            gone_on += 1
            turns.take(turn)
    between = (_between(found, of, show_text) for found, of in families.found(turns=gone_on > 0))
    found = sorted(chain(turns.findings(), between), key=lambda finding: (-finding.bytes_lost, finding.kind))
    return Report(found, requests, threads.count, turns.by_people)


class _Turns:
    """What changed from turn to turn."""

    def __init__(self, show_text: bool) -> None:
        self.by_people = 0
        self._show_text = show_text
        self._found: dict[tuple[str, str], Finding] = {}
        self._conversations: dict[tuple[str, str], set[int]] = {}
        self._known: dict[int, Lines | int] = {}

    def __repr__(self) -> str:
        return f"<Turns {len(self._found)} findings>"

    def take(self, turn: Turn) -> None:
        before, last, entry = turn.before, turn.last, turn.entry
        if before is None or last is None:
            return
        told = drift(last, turn.sketch, turn.thread.tools)
        if told.cause is not None and told.cause not in BY_PEOPLE:
            for prompt, of in ((last, before), (turn.sketch, entry)):
                if prompt.masks is None:
                    prompt.mask(of.parts, self._known)
            told = drift(last, turn.sketch, turn.thread.tools)
        if told.cause in BY_PEOPLE:
            self.by_people += 1
        elif told.cause is not None:
            self._note(told, turn, before)

    def _note(self, told: Drift, turn: Turn, before: Entry) -> None:
        key = (str(told.cause), "history" if told.part.startswith("message") else told.part)
        texts = _texts(before.parts, turn.entry.parts)
        offset = _offset(told, before.parts, turn.entry.parts)
        finding = self._found.get(key)
        if finding is None:
            finding = self._found[key] = Finding(key[0], "turns", told.part, offset)
            finding.lines = (before.line, turn.entry.line)
            finding.texts = texts if self._show_text else None
            self._conversations[key] = set()
        finding.requests += 1
        finding.bytes_lost += told.lost
        finding.sources[turn.entry.session.source if turn.entry.session is not None else "content"] += 1
        self._conversations[key].add(id(turn.thread))
        finding.conversations = len(self._conversations[key])

    def findings(self) -> Iterable[Finding]:
        return self._found.values()


def _between(found: Found, of: int, show_text: bool) -> Finding:
    was, now = found.example
    sources = Counter(e.session.source for e in (was, now) if e.session is not None) or Counter(["content"])
    texts = _from_difference(*found.texts) if show_text and found.texts != (b"", b"") else None
    return Finding(
        found.kind,
        "conversations",
        found.part,
        found.offset,
        found.times,
        of,
        found.lost,
        sources,
        (was.line, now.line),
        texts,
    )


def _changed(old: list[Part], new: list[Part]) -> tuple[bytes, bytes]:
    """The first parts that are not the same."""
    for i, (kind, data) in enumerate(old):
        after = new[i] if i < len(new) else (Kind.OTHER, b"")
        if (kind, data) != after:
            return data, after[1]
    return b"", new[len(old)][1] if len(new) > len(old) else b""


def _texts(old: list[Part], new: list[Part]) -> tuple[str, str]:
    return _from_difference(*_changed(old, new))


def _offset(told: Drift, old: list[Part], new: list[Part]) -> int:
    """Where the first part that differs does so, to the byte; of a change that begins in a later part, where that begins."""
    return max(told.at, _common(*_changed(old, new))) if told.part != "tools" else told.at


def _from_difference(before: bytes, after: bytes) -> tuple[str, str]:
    """What stands in both texts at their first difference, from the beginning of the word on."""
    at = _common(before, after)
    at = max(before.rfind(b" ", 0, at) + 1, at - TEXT_SHOWN // 2, 0)
    return _shown(before[at:]), _shown(after[at:])


def _shown(text: bytes) -> str:
    return text[:TEXT_SHOWN].decode("utf-8", "replace")


def _common(before: bytes, after: bytes) -> int:
    """How many bytes two texts have in common at their beginning."""
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if before[:middle] == after[:middle] else (low, middle - 1)
    return low
