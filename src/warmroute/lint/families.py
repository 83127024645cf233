"""Prompts of different conversations that could share their beginning, and do not: what stands in the way, line by line."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from unicodedata import normalize

from ..core.sketch import Kind
from ..core.volatile import bag, content_of, lines_of, without_clocks, without_identifiers
from ..proxy.parts import Part
from .log import Entry

USER, FEWSHOT, SHORT = "user_in_system", "volatile_fewshot", "short_prefix"
CLOCK, IDENTIFIER, WHITESPACE, ORDER = "clock", "identifier", "whitespace", "key_order"

ONE_BLOCK = 64
"""Bytes, about 16 tokens: vLLM's usual block. What is shorter is never found in a cache."""
_TELLING_LINE = 20
"""Bytes; shorter lines stand in prompts of all kinds."""
_LIKE = 0.5
"""Share of a prompt's lines, by bytes, that must be another's too before the two count as one family."""
_MANY = 5
"""Prompts that must be there before it is told that no two of them have anything in common."""
_OFTEN = 0.2
"""Share of a family's conversations that must have brought something new before it is told; people change prompts too."""

_USER = re.compile(
    rb"[\w.+-]+@[\w-]+\.\w{2,}"
    rb"|(?i:\b(?:user|customer|client|account|tenant|org|organi[sz]ation|name|first|last|full|e-?mail|phone|locale|time ?zone"
    rb"|language|role|plan)(?:[ _-]?(?:name|id|tier))?\s*(?:[:=]|\bis\b))"
    rb"|\b(?:\+\d{1,3}[ -]?)?\(?\d{3}\)?[ -]\d{3}[ -]\d{4}\b"
)
_EXAMPLE = re.compile(rb"^\W*(?:example|q|a|question|answer|input|output|user|assistant)\s*\d*\s*[:.)]", re.IGNORECASE)
_EXAMPLES = 3
"""Lines that begin like one of an example; fewer are ordinary prose."""


@dataclass(slots=True)
class Head:
    """Tools and system prompt of one request; `lines` are those of the system prompt, with their places in the whole."""

    entry: Entry
    raw: bytes
    tools: bytes
    lines: list[bytes]
    offsets: list[int]


@dataclass(slots=True)
class Family:
    """Heads that have most of their lines in common. `seen` are the texts that came, `kinds` what was new in them."""

    last: Head
    conversations: int = 0
    seen: set[bytes] = field(default_factory=set)
    kinds: dict[str, "Found"] = field(default_factory=dict)


@dataclass(slots=True)
class Found:
    """One kind of difference in a family: how often, how many bytes behind it are the same all the same, and an example."""

    kind: str
    part: str
    offset: int
    times: int
    lost: int
    example: tuple[Entry, Entry]
    texts: tuple[bytes, bytes]


class Families:
    """Takes the first prompt of each conversation."""

    def __init__(self) -> None:
        self._families: list[Family] = []
        self._of_line: defaultdict[bytes, list[int]] = defaultdict(list)
        self._of_head: dict[bytes, Family] = {}
        self._last: Entry | None = None
        self._example: tuple[Entry, Entry] | None = None
        self._beginnings: set[bytes] = set()
        self._prompts = 0
        self._size = 0

    def __repr__(self) -> str:
        return f"<Families {len(self._families)} of {self._prompts} prompts>"

    def take(self, entry: Entry) -> None:
        self._common(entry)
        head = _head(entry)
        if not head.raw:
            return
        family = self._of_head.get(head.raw)
        if family is None:
            family = self._like(head)
            if family is None:
                family = Family(head)
                self._families.append(family)
            else:
                _compare(family, head)
            self._learn(head, family)
        family.conversations += 1
        family.last = head

    def found(self, *, turns: bool) -> Iterator[tuple[Found, int]]:
        """What stands in the way often enough, with the number of conversations of its family.

        `turns` says that conversations of the log had a second turn, which reuses the first one's prompt.
        """
        explained = False
        for family in self._families:
            for found in family.kinds.values():
                if found.times >= _OFTEN * family.conversations:
                    explained = explained or found.offset < ONE_BLOCK
                    yield found, family.conversations
        alone = len(self._beginnings) == self._prompts >= _MANY
        if alone and not turns and not explained and self._example is not None:
            yield Found(SHORT, "prompt", 0, self._prompts, self._size, self._example, (b"", b"")), self._prompts

    def _common(self, entry: Entry) -> None:
        """Keep what each prompt of the log begins with."""
        prompt = b"\n".join(content_of(data) for _, data in entry.parts[:4])
        self._prompts += 1
        self._size += sum(len(data) for _, data in entry.parts)
        self._last, before = entry, self._last
        if self._example is None and before is not None:
            self._example = (before, entry)
        self._beginnings.add(prompt[:ONE_BLOCK])

    def _like(self, head: Head) -> Family | None:
        """The family that has most of these lines."""
        score: Counter[int] = Counter()
        for line in set(head.lines):
            for number in self._of_line.get(line, ()):
                score[number] += len(line)
        if score:
            number, most = score.most_common(1)[0]
            if most >= _LIKE * sum(map(len, set(head.lines))):
                return self._families[number]
        words = bag(head.raw)
        return next(
            (f for f in self._families[-8:] if bag(f.last.raw) == words or _plain(f.last) == _plain(head)), None
        )

    def _learn(self, head: Head, family: Family) -> None:
        number = next(i for i, known in enumerate(self._families) if known is family)
        self._of_head[head.raw] = family
        for line in head.lines:
            known = self._of_line[line]
            if len(line) >= _TELLING_LINE and number not in known:
                known.append(number)


def _head(entry: Entry) -> Head:
    tools = b"".join(data for kind, data in entry.parts if kind is Kind.TOOL)
    system = [content_of(data) for data in _leading(entry.parts)]
    lines: list[bytes] = []
    offsets: list[int] = []
    start = len(tools)
    for text in system:
        at = 0
        for line in lines_of(text):
            at = max(at, text.find(line, at))
            lines.append(line)
            offsets.append(start + at)
        start += len(text)
    return Head(entry, tools + b"\0".join(system), tools, lines, offsets)


def _leading(parts: Sequence[Part]) -> Iterator[bytes]:
    for kind, data in parts:
        if kind > Kind.SYSTEM:
            return
        if kind is Kind.SYSTEM:
            yield data


def _differ(a: bytes, b: bytes) -> int:
    """Where two texts differ first."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[:middle] == b[:middle] else (low, middle - 1)
    return low


def _compare(family: Family, head: Head) -> None:
    """Note each kind of difference between a new head and the last one of its family, once, where it comes first."""
    was = family.last
    for kind, part, offset, texts in _differences(was, head):
        shared = _same_behind(was, head, offset)
        found = family.kinds.get(kind)
        if found is None:
            family.kinds[kind] = Found(kind, part, offset, 1, shared, (was.entry, head.entry), texts)
        else:
            found.times += 1
            found.lost += shared
            found.offset = min(found.offset, offset)


def _differences(was: Head, now: Head) -> Iterator[tuple[str, str, int, tuple[bytes, bytes]]]:
    if was.tools != now.tools and bag(was.tools) == bag(now.tools):
        yield ORDER, "tools", _differ(was.tools, now.tools), (was.tools[:40], now.tools[:40])
    if was.lines == now.lines or _plain(was) == _plain(now):
        if was.tools == now.tools:
            at = _differ(was.raw, now.raw)
            yield WHITESPACE, "system", at, (was.raw[at : at + 40], now.raw[at : at + 40])
        return
    kinds: set[str] = set()
    before, after = set(was.lines), set(now.lines)
    gone, new = [line for line in was.lines if line not in after], [line for line in now.lines if line not in before]
    if sum(map(bag, gone)) == sum(map(bag, new)):
        at = next((i for i, (a, b) in enumerate(zip(was.lines, now.lines, strict=False)) if a != b), 0)
        yield ORDER, "system", now.offsets[at], (was.lines[at], now.lines[at])
        return
    examples = min(sum(_EXAMPLE.match(line) is not None for line in lines) for lines in (was.lines, now.lines))
    in_examples = False
    for i, line in enumerate(now.lines):
        in_examples = examples >= _EXAMPLES and (in_examples or _EXAMPLE.match(line) is not None)
        if line in before or i >= len(was.lines):
            continue
        for kind in _kinds(was.lines[i], line, in_examples):
            if kind not in kinds:
                kinds.add(kind)
                yield kind, "system", now.offsets[i], (was.lines[i], line)


def _kinds(a: bytes, b: bytes, in_examples: bool) -> Iterator[str]:
    """What makes two lines differ that stand in the same place."""
    clockless = without_clocks(a), without_clocks(b)
    nameless = without_identifiers(clockless[0]), without_identifiers(clockless[1])
    if clockless[0] == clockless[1]:
        yield CLOCK
    elif nameless[0] == nameless[1]:
        if without_identifiers(a) != without_identifiers(b):
            yield CLOCK
        yield USER if _USER.search(a) and _USER.search(b) else IDENTIFIER
    elif _USER.search(a) and _USER.search(b):
        yield USER
    elif in_examples:
        yield FEWSHOT


def _same_behind(was: Head, now: Head, offset: int) -> int:
    """Bytes of lines behind this place that the other prompt has too."""
    known = set(was.lines)
    same = sum(len(line) for line, at in zip(now.lines, now.offsets, strict=True) if at >= offset and line in known)
    return same + (len(now.tools) - offset if offset < len(now.tools) else 0)


def _plain(head: Head) -> str:
    """A head's text in one normal form, without differences of white space."""
    text = head.raw.decode("utf-8", "replace").replace("\\r", " ").replace("\\n", " ").replace("\\t", " ")
    if "\\u" in text:
        text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)), text)
    return " ".join(normalize("NFC", text).split())
