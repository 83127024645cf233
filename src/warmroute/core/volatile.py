"""What kind of change a text has seen, told from digests of its lines: once as they are, once without clocks, ids, numbers."""

import re
from array import array
from collections.abc import Iterable, Iterator
from enum import Enum, auto

_LOOKED_AT = 64 << 10
"""Bytes of a text that are looked at."""
_LONGEST_LINE = 240
"""Bytes; a longer line is cut after its sentences, so that a clock in a wall of text can be told from its neighbours."""
_UINT = 0xFFFFFFFF


class Change(Enum):
    """How two versions of a text differ, at the first line that differs."""

    CLOCK = auto()  # a date or a time
    IDENTIFIER = auto()  # an id, or an id and a clock
    COUNTER = auto()  # another number
    SPACES = auto()  # white space alone
    ORDER = auto()  # the same words in another order
    GROWN = auto()  # all that was there, and more
    OTHER = auto()


_DAYS = rb"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_MONTHS = (
    rb"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    rb"|Nov(?:ember)?|Dec(?:ember)?)\.?"
)
_TIME = rb"\d{1,2}:\d{2}(?::\d{2})?(?:[.,]\d+)?(?:\s?[AaPp]\.?[Mm]\b\.?)?(?:\s?(?:Z|UTC|GMT)\b)?(?:[+-]\d{2}:?\d{2}\b)?"

CLOCK = re.compile(
    rb"(?<![0-9A-Za-z])(?:"
    rb"\d{4}-\d{2}-\d{2}(?:(?:T|t|\s|\sat\s)" + _TIME + rb")?"
    rb"|\d{1,4}[./]\d{1,2}[./]\d{2,4}(?![0-9])"
    rb"|" + _TIME + rb"|" + _MONTHS + rb"\s\d{1,2}(?:st|nd|rd|th)?(?:,?\s\d{4})?(?![0-9])"
    rb"|\d{1,2}(?:st|nd|rd|th|\.)?\s(?:of\s)?" + _MONTHS + rb"(?:,?\s\d{4})?(?![0-9A-Za-z])"
    rb"|" + _MONTHS + rb"\s\d{4}(?![0-9])"
    rb"|\d{1,2}\s?[AaPp][Mm]\b"
    rb"|1\d{9}(?:\d{3}(?:\d{3})?)?(?:\.\d+)?(?![0-9A-Za-z])"
    rb"|\d+\s(?:second|minute|hour|day|week)s?\sago"
    rb"|" + _DAYS + rb"(?![A-Za-z])|(?:UTC|GMT)[+-]\d{1,2}(?::?\d{2})?"
    rb")"
    rb"|\d{4}(?:\xe5\xb9\xb4|\\u5e74)\d{1,2}(?:\xe6\x9c\x88|\\u6708)\d{1,2}(?:\xe6\x97\xa5|\\u65e5)"
)
"""Dates and times as programs write them: ISO 8601, with names of days and months, seconds since 1970, `5 minutes ago`."""

IDENTIFIER = re.compile(
    rb"cch=[0-9A-Za-z]+"
    rb"|(?<![0-9A-Za-z])(?:"
    rb"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
    rb"|(?:req|request|sess|session|trace|span|conv|chat|msg|txn|corr|run|job|call|task|thread|user|usr)"
    rb"[-_](?=[A-Za-z]{0,64}[0-9])[0-9A-Za-z]{4,}"
    rb"|(?=[a-fA-F]{0,64}[0-9])[0-9a-fA-F]{8,}"
    rb"|\d{6,}"
    rb"|(?=[A-Za-z_-]{0,64}[0-9])(?=[0-9_-]{0,64}[A-Za-z])[0-9A-Za-z_-]{16,}"
    rb")(?![0-9A-Za-z])"
)
"""What stands for one request, person or thing: UUIDs, hex and digits in a row, `req_...`, letters and digits mixed."""

_NUMBER = re.compile(rb"\d+(?:[.,]\d+)*")
_HINT = re.compile(rb"\d|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day")
"""What all of these hold somewhere; the search for it is fast, and most text is far from any."""
_REACH = 40
_FARTHEST = 200
"""Bytes around a hint that are searched for the rest: up to the first space behind so many, and no more than so many."""
_SENTENCE_ENDS = re.compile(rb"[.;!?>|] ")
_CONTENT = re.compile(rb'\{\s*"(?:role|type)"\s*:\s*"\w+"\s*,\s*"(?:content|text)"\s*:\s*"|"')
_ESCAPES = re.compile(rb"\\[nrt]")
_WORDS = re.compile(rb"[^\s,:{}\[\]\"\\]+")


def without_clocks(text: bytes) -> bytes:
    """A text with a mark in place of each date and time."""
    return CLOCK.sub(b"\0t", text)


def without_identifiers(text: bytes) -> bytes:
    """A text with a mark in place of each id."""
    return IDENTIFIER.sub(b"\0i", text)


def without_numbers(text: bytes) -> bytes:
    """A text with a mark in place of each number."""
    return _NUMBER.sub(b"\0n", text)


def _levels(line: bytes) -> tuple[int, int, int] | None:
    """Digests of a line without clocks, then also without ids, then also without numbers; None if it has none of them."""
    timeless: list[bytes] = []
    nameless: list[bytes] = []
    numberless: list[bytes] = []
    done = 0
    for start, end in _windows(line):
        between = line[done:start]
        window = without_clocks(line[start:end])
        timeless += (between, window)
        window = without_identifiers(window)
        nameless += (between, window)
        numberless += (between, without_numbers(window))
        done = end
    if not done:
        return None
    rest = line[done:]
    return (_digest(*timeless, rest), _digest(*nameless, rest), _digest(*numberless, rest))


def _windows(line: bytes) -> Iterator[tuple[int, int]]:
    """The stretches of a line in which to look, from one space to another."""
    start = end = -1
    for hint in _HINT.finditer(line):
        at = hint.start()
        if at < end:
            continue
        farthest, last = max(0, at - _FARTHEST), min(len(line), at + _FARTHEST)
        begin = max(line.rfind(b" ", farthest, max(0, at - _REACH)) + 1, farthest)
        stop = line.find(b" ", at + _REACH, last)
        stop = last if stop < 0 else stop
        if end >= begin:
            end = stop
            continue
        if end >= 0:
            yield start, end
        start, end = begin, stop
    if end >= 0:
        yield start, end


def _digest(*pieces: bytes) -> int:
    return hash(b"".join(pieces)) & _UINT


def content_of(data: bytes) -> bytes:
    """The text of a message or block whose JSON is written in the usual way, escapes included; of any other all of it."""
    begins = _CONTENT.match(data)
    return data[begins.end() :].rstrip(b'"}] \n') if begins else data


def lines_of(text: bytes) -> Iterator[bytes]:
    """The lines of a text as JSON has it (line breaks are escapes), long ones by sentences; white space is one space."""
    whole = text[:_LOOKED_AT].replace(b"\\t", b" ").replace(b"\\r\\n", b"\\n")
    for line in whole.split(b"\\n"):
        plain = b" ".join(line.split())
        at = 0
        if len(plain) > _LONGEST_LINE:
            for end in _SENTENCE_ENDS.finditer(plain):
                yield plain[at : end.start() + 1]
                at = end.end()
        if at < len(plain):
            yield plain[at:]


def bag(text: bytes) -> int:
    """One digest for all texts of the same words, in whatever order they stand."""
    words = _WORDS.findall(_ESCAPES.sub(b" ", text[:_LOOKED_AT]))
    return sum(map(hash, words)) & 0x7FFFFFFFFFFFFFFF


class Lines:
    """Digests of a text's lines. They mean something within one process only; no text is in them.

    A line with clocks, ids or numbers has three digests more: without clocks, also without ids, also without numbers. `words`
    is its `bag`.
    """

    __slots__ = ("_cut", "_lines", "_masked", "words")

    def __init__(self, text: bytes, looked_at: int = _LOOKED_AT) -> None:
        """Looks at no more than so many bytes."""
        self._cut = len(text) > looked_at
        text = text[:looked_at]
        self._lines = array("I")
        self._masked: dict[int, tuple[int, int, int]] = {}
        self.words = bag(text)
        for line in lines_of(content_of(text)):
            levels = _levels(line)
            if levels is not None:
                self._masked[len(self._lines)] = levels
            self._lines.append(_digest(line))

    def __repr__(self) -> str:
        return f"<Lines {len(self._lines)}, {len(self._masked)} masked>"

    @property
    def nbytes(self) -> int:
        """About what this keeps, in bytes."""
        return 300 + 4 * len(self._lines) + 260 * len(self._masked)

    def change(self, new: "Lines") -> Change:
        """What happened to this text, of which that is the new version; the two are not the same bytes."""
        before, after = self._lines, new._lines
        first = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None)
        if first is None and (self._cut or new._cut):
            return Change.OTHER
        if first is None and len(before) == len(after):
            return Change.SPACES
        if first is not None:
            a, b = self._masked.get(first), new._masked.get(first)
            if a is not None and b is not None:
                for level, change in enumerate((Change.CLOCK, Change.IDENTIFIER, Change.COUNTER)):
                    if a[level] == b[level]:
                        return change
        if self.words == new.words:
            return Change.ORDER
        return Change.GROWN if _within(before, after) else Change.OTHER


def _within(some: Iterable[int], all_of: Iterable[int]) -> bool:
    """Whether these stand among the others in the same order."""
    rest = iter(all_of)
    return all(line in rest for line in some)
