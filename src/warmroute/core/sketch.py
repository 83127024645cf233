"""What is kept of a prompt to tell later where the next one leaves it: digests, lengths and positions, never text."""

from array import array
from collections.abc import Iterable, MutableMapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from .volatile import Lines, bag

PIECE = 2 << 10
"""Bytes in which long parts are hashed, so that a difference is known to within so much."""
BILLING = b"x-anthropic-billing-header"
"""Claude Code's first line; vLLM of today takes it out of the prompt."""

_HEAD = 256
"""Bytes of the system prompt in which that line begins."""
_OF_SYSTEM, _OF_USER = 64 << 10, 8 << 10
"""Bytes of a system prompt and of a user message that are masked: a table pasted into a question has thousands of numbers."""
_STEM = 180
"""Bytes that a stem takes, about."""
_CONTINUES = 0x10
"""Set in the kind of a piece that is not the first one of its part."""
_KIND = 0x0F


class Kind(IntEnum):
    """Whose part of a prompt; OTHER are results of tools, and whatever is of nobody else."""

    TOOL = 0
    SYSTEM = 1
    USER = 2
    ASSISTANT = 3
    OTHER = 4


TOOL, SYSTEM, USER, ASSISTANT, OTHER = Kind


class Layout(NamedTuple):
    """A prompt part by part: kinds, digests, lengths in bytes, and the number of each part's first piece.

    `head` is how many parts come before the first message: tools and system prompt.
    """

    kinds: list[int]
    digests: list[int]
    lengths: list[int]
    starts: list[int]
    head: int


class Masks(NamedTuple):
    """Digests that tell what kind of change there was: lines of some parts by their position, and the tools' words."""

    lines: dict[int, Lines]
    tools: int


class Stem(NamedTuple):
    """A list of messages as the client wrote it, up to the end of the last one: `length` bytes and their digest, of which only
    their maker knows how it is made. `beside` is a digest of what stands beside the list: tools, system prompt."""

    beside: int
    length: int
    digest: int


class Sketch:
    """One prompt. Two of them can be compared only where they come of one hash seed, since digests are Python's own.

    `digests` (64 bits), `lengths` and `kinds` are of the pieces; `size` are all bytes; `billing` is the number of the piece
    that is Claude Code's billing line, -1 if there is none; `text` says that the prompt is one text that grows. `stem` is for
    whoever made it from a request.
    """

    __slots__ = ("billing", "digests", "kinds", "lengths", "masks", "size", "stem", "text")

    def __init__(
        self, digests: "array[int]", lengths: "array[int]", kinds: bytes, size: int, billing: int, text: bool
    ) -> None:
        self.digests = digests
        self.lengths = lengths
        self.kinds = kinds
        self.size = size
        self.billing = billing
        self.text = text
        self.masks: Masks | None = None
        self.stem: Stem | None = None

    def __repr__(self) -> str:
        return f"<Sketch {len(self.kinds)} pieces, {self.size} bytes{', masked' if self.masks else ''}>"

    @property
    def nbytes(self) -> int:
        """About what this keeps, in bytes."""
        masks = sum(100 + lines.nbytes for lines in self.masks.lines.values()) if self.masks else 0
        stem = _STEM if self.stem else 0
        return 390 + 11 * len(self.kinds) + masks + stem

    @property
    def begun(self) -> bool:
        """Whether it ends with a message, so that further ones can be put behind it."""
        return bool(self.kinds) and self.kinds[-1] & _KIND > SYSTEM and not self.text

    def goes_on(self, last: "Sketch") -> bool:
        """Whether this prompt is that one with some messages behind it, or none."""
        pieces = len(last.kinds)
        same = last.begun and self.digests[:pieces] == last.digests and self.kinds[:pieces] == last.kinds
        return same and not self.continues(pieces)

    def grown(self, added: Sequence[tuple[Kind, bytes]]) -> "Sketch":
        """The sketch of this prompt with some messages behind it, as if it were made of all its parts; unmasked.

        It must have `begun`.
        """
        if not added:
            return Sketch(self.digests, self.lengths, self.kinds, self.size, self.billing, False)
        more = sketch(added, first=False)
        return Sketch(
            self.digests + more.digests,
            self.lengths + more.lengths,
            self.kinds + more.kinds,
            self.size + more.size,
            self.billing,
            False,
        )

    @property
    def tools(self) -> int:
        """A digest of the tools; 0 for none."""
        last = self.kinds.rfind(Kind.TOOL)
        return 0 if last < 0 else hash(self.digests[: self._after(last)].tobytes())

    def _after(self, piece: int) -> int:
        """The number of the first piece after the part that this piece begins."""
        piece += 1
        while piece < len(self.kinds) and self.kinds[piece] & _CONTINUES:
            piece += 1
        return piece

    def layout(self) -> Layout:
        """The prompt part by part."""
        if max(self.kinds, default=0) < _CONTINUES:
            return _layout(list(self.kinds), list(self.digests), list(self.lengths), list(range(len(self.kinds))))
        kinds: list[int] = []
        digests: list[int] = []
        lengths: list[int] = []
        starts: list[int] = []
        for piece, kind in enumerate(self.kinds):
            if kind & _CONTINUES:
                digests[-1] = hash((digests[-1], self.digests[piece]))
                lengths[-1] += self.lengths[piece]
            else:
                kinds.append(kind)
                digests.append(self.digests[piece])
                lengths.append(self.lengths[piece])
                starts.append(piece)
        return _layout(kinds, digests, lengths, starts)

    def continues(self, piece: int) -> bool:
        """Whether this piece goes on with the part of the one before it; False behind the end."""
        return piece < len(self.kinds) and bool(self.kinds[piece] & _CONTINUES)

    def mask(self, parts: Iterable[tuple[Kind, bytes]], known: MutableMapping[int, Lines | int] | None = None) -> None:
        """Keep digests of system prompt, first and last user message without what looks like a clock or an id.

        The parts are those that the sketch was made of. It costs much more than the sketch; only what is masked on both sides
        can be told apart. What `known` holds, by digest, is not computed again: conversations share their system prompts.
        """
        datas = list(parts)
        known = {} if known is None else known
        layout = self.layout()
        users = [i for i, kind in enumerate(layout.kinds) if kind == Kind.USER]
        wanted = {i for i, kind in enumerate(layout.kinds) if kind == Kind.SYSTEM} | {*users[:1], *users[-1:]}
        lines: dict[int, Lines] = {}
        for i in sorted(wanted):
            data = datas[i][1]
            if layout.starts[i] == self.billing:
                data = data[self.lengths[self.billing] :]
            digest = hash(data)
            found = known.get(digest)
            if not isinstance(found, Lines):
                limit = _OF_SYSTEM if layout.kinds[i] == Kind.SYSTEM else _OF_USER
                found = known[digest] = Lines(data, limit)
            lines[i] = found
        words = known.get(self.tools)
        if not isinstance(words, int):
            words = known[self.tools] = sum(bag(data) for kind, data in datas if kind is Kind.TOOL)
        self.masks = Masks(lines, words)


def _layout(kinds: list[int], digests: list[int], lengths: list[int], starts: list[int]) -> Layout:
    head = next((i for i, kind in enumerate(kinds) if kind > Kind.SYSTEM), len(kinds))
    return Layout(kinds, digests, lengths, starts, head)


def sketch(parts: Iterable[tuple[Kind, bytes]], *, first: bool = True) -> Sketch:
    """A sketch of these parts in the order in which chat templates put them: tools, system, messages.

    A part is the JSON of one tool, block or message as the client sent it. A single part that is no object is a text that
    grows. `first` is False for parts behind others.
    """
    parts = parts if isinstance(parts, list) else list(parts)
    if not parts:
        return Sketch(array("q"), array("H"), b"", 0, -1, False)
    kinds, datas = zip(*parts, strict=True)
    sizes = list(map(len, datas))
    packed = bytes(kinds)
    system = packed.find(SYSTEM) if first else -1
    billed = system if system >= 0 and BILLING in datas[system][:_HEAD] else -1
    text = len(sizes) == 1 and datas[0][:1] != b"{"
    if max(sizes) <= PIECE and billed < 0:
        return Sketch(array("q", map(hash, datas)), array("H", sizes), packed, sum(sizes), -1, text)
    return _in_pieces(packed, datas, sizes, billed, text)


def _in_pieces(packed: bytes, datas: tuple[bytes, ...], sizes: list[int], billed: int, text: bool) -> Sketch:
    digests, lengths, kinds = array("q"), array("H"), bytearray()
    billing = -1
    for part, (kind, data, size) in enumerate(zip(packed, datas, sizes, strict=True)):
        at = 0
        if part == billed:
            at = _line(data)
            billing = len(kinds)
            digests.append(hash(data[:at]))
            lengths.append(at)
            kinds.append(kind)
            if at == size:
                continue
        elif size <= PIECE:
            digests.append(hash(data))
            lengths.append(size)
            kinds.append(kind)
            continue
        starts = range(at, size, PIECE)
        digests.extend([hash(data[start : start + PIECE]) for start in starts])
        lengths.extend([PIECE] * (len(starts) - 1))
        lengths.append(size - starts[-1])
        kinds.append(kind if at == 0 else kind | _CONTINUES)
        kinds += bytes((kind | _CONTINUES,)) * (len(starts) - 1)
    return Sketch(digests, lengths, bytes(kinds), sum(sizes), billing, text)


def _line(data: bytes) -> int:
    """Where the billing line ends: with its line break, or with the text that it is alone in."""
    start = data.find(BILLING)
    ends = [end for mark in (b"\\n", b'"') if (end := data.find(mark, start)) >= 0]
    end = min(ends, default=len(data))
    if end < len(data) and data[end : end + 2] == b"\\n":
        return min(end + 2, PIECE)
    return min(len(data), PIECE) if len(data) - end < 8 else min(end, PIECE)
