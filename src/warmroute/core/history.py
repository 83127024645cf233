"""The chain of digests over a conversation's messages: equal chains, equal histories; no text is kept in it."""

from collections.abc import Iterator, Sequence
from hashlib import sha256

from .messages import ASSISTANT, USER, Message

SIZE = 16
"""Bytes of a digest. SHA-256 cut short: on processors of today it takes half the time of BLAKE2b."""

_FIRST_STEP = 512
_COARSER = 16
"""A text is cut every 512 bytes at first, then every sixteenth of what lies before."""
_LONGEST_HEAD = 64 << 10
"""Bytes of a prompt's beginning that are compared with those of other conversations."""


def seed(model: str | None, cache_salt: object) -> bytes:
    """Where a chain begins: other models and other salts have other caches."""
    salt = cache_salt if isinstance(cache_salt, str) else ""
    return sha256(f"{model or ''}\0{salt}".encode("utf-8", "surrogatepass")).digest()[:SIZE]


def follow(digest: bytes, message: Message) -> bytes:
    """The chain's next digest, after one more message."""
    role, text = message
    return sha256(digest + f"{role}\0{text}".encode("utf-8", "surrogatepass")).digest()[:SIZE]


class History:
    """The digests of a conversation after each of its messages, computed as far as somebody looks.

    `answers` are the positions of the model's messages, `root` is the position of the first user message, None if there is
    none. After `settle` nothing is left of the text. `begun`: a user has spoken before these messages, and `start` is the
    digest of all that; the first user message is then before position 0.
    """

    __slots__ = ("_messages", "answers", "digests", "root", "start")

    def __init__(self, start: bytes, messages: Sequence[Message], *, begun: bool = False) -> None:
        self.start = start
        self._messages = messages
        self.digests: list[bytes] = []
        self.answers = [i for i, message in enumerate(messages) if message.role == ASSISTANT]
        self.root = -1 if begun else next((i for i, message in enumerate(messages) if message.role == USER), None)

    def __repr__(self) -> str:
        return f"<History {len(self._messages) or len(self.digests)} messages, {len(self.answers)} answers>"

    def at(self, position: int) -> bytes:
        """The digest after the message at this position."""
        digests = self.digests
        known = len(digests)
        if known <= position:
            digest = digests[-1] if digests else self.start
            for message in self._messages[known : position + 1]:
                digest = follow(digest, message)
                digests.append(digest)
        return digests[position]

    @property
    def opening(self) -> bytes | None:
        """The digest after the first user message: what it and all before it say."""
        return None if self.root is None or self.root < 0 else self.at(self.root)

    @property
    def begun(self) -> bool:
        """Whether the model has answered the first user message. A greeting before it is no answer."""
        return self.root is not None and bool(self.answers) and self.answers[-1] > self.root

    def is_answer(self, position: int) -> bool:
        """Whether a message of the model answers a user's: it comes after the first of those."""
        return self.root is not None and position > self.root

    def before(self, position: int) -> bytes:
        """The digest before the message at this position, which has been computed."""
        return self.digests[position - 1] if position else self.start

    @property
    def asks(self) -> bool:
        """Whether it ends with something that the model is to answer, once a user has spoken."""
        return self.root is not None and not (self.answers and self.answers[-1] == len(self.digests) - 1)

    def all(self) -> list[bytes]:
        """All digests."""
        if self._messages:
            self.at(len(self._messages) - 1)
        return self.digests

    def settle(self) -> None:
        """Let the messages go; their digests stay."""
        self.all()
        self._messages = ()

    def answered(self, message: Message) -> bytes:
        """The digest that the next turn will have after this answer to the whole history."""
        return follow(self.digests[-1] if self.digests else self.start, message)


class TextHistory(History):
    """The history of a text that grows from request to request.

    Nothing in a text says where an answer ended, so `split` has to be told. The lengths of known texts are kept by the digest
    of the last cut before their end; `cuts` has those of this text, the longest last.
    """

    __slots__ = ("_hashes", "_tail", "_text", "cuts", "known")

    def __init__(self, start: bytes, text: str) -> None:
        super().__init__(start, ())
        self._text = text.encode("utf-8", "surrogatepass")
        self._hashes = [(0, sha256(start))]
        self._cut(self._text)
        self.cuts = [start, *(running.digest()[:SIZE] for _, running in self._hashes[1:])]
        self.digests = [self._prefix(len(self._hashes) - 1, len(self._text))]
        self.known = (start, 0)

    def _cut(self, text: bytes) -> None:
        """Hash on to the last cut of the text, which begins where the last one was."""
        at, running = self._hashes[-1]
        begin, end = at, _next_cut(at)
        while end - at <= len(text):
            running = running.copy()
            running.update(text[begin - at : end - at])
            self._hashes.append((end, running))
            begin, end = end, _next_cut(end)
        self._tail = text[begin - at :]

    def _prefix(self, cut: int, length: int) -> bytes:
        at, running = self._hashes[cut]
        running = running.copy()
        running.update(self._text[at:length])
        return running.digest()[:SIZE]

    def split(self, cut: int, length: int) -> bool:
        """Take the first so many bytes, which end behind this cut, for what was said before; False if that is not less
        than the text."""
        if length >= len(self._text):
            return False
        self.digests[:-1] = [self._prefix(cut, length)]
        self.answers = [0]
        return True

    def join(self) -> None:
        """Take all of the text for new again."""
        del self.digests[:-1]
        self.answers = []

    def settle(self) -> None:
        self._text = b""
        del self._hashes[:-1]

    def answered(self, message: Message) -> bytes:
        """As for all histories; `known` then is what has to be remembered: the last cut, and the length of the whole."""
        said = message.text.encode("utf-8", "surrogatepass")
        self._cut(self._tail + said)
        at, running = self._hashes[-1]
        anchor = self.start if at == 0 else running.digest()[:SIZE]
        self.known = (anchor, at + len(self._tail))
        running = running.copy()
        running.update(self._tail)
        return running.digest()[:SIZE]


def _next_cut(at: int) -> int:
    return at + max(_FIRST_STEP, at // _COARSER)


def head_digests(start: bytes, tools: str, messages: Sequence[Message]) -> list[bytes]:
    """Digests of a prompt's beginnings of growing length, tools first, as chat templates put them. At most 64 KiB count."""
    return list(_heads(start, _joined(tools, messages)))


def _joined(tools: str, messages: Sequence[Message]) -> bytes:
    parts, size = [tools], len(tools)
    for message in messages:
        if size >= _LONGEST_HEAD:
            break
        parts.append(f"{message.role}\0{message.text}")
        size += len(parts[-1])
    return "\0".join(parts).encode("utf-8", "surrogatepass")[:_LONGEST_HEAD]


def _heads(start: bytes, text: bytes) -> Iterator[bytes]:
    running = sha256(start)
    begin, end = 0, _next_cut(0)
    while end <= len(text):
        running.update(text[begin:end])
        yield running.digest()[:SIZE]
        begin, end = end, _next_cut(end)
