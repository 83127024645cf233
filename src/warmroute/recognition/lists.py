"""A history that only grew, known by its bytes: the next turn's list of messages begins with all of the last one's."""

import secrets
from collections.abc import Callable

from xxhash import xxh3_128

from ..core.answer import Decode
from ..core.history import History
from ..core.messages import RawField, Shape, request_messages
from .recent import Recent

_SEED = secrets.randbits(64)
"""What is kept here never leaves the process, and nobody else knows the seed."""
_SYSTEM = {Shape.CHAT: False, Shape.MESSAGES: True}
"""The shapes that have a list of messages, and whether a system prompt stands beside it."""
_ANSWER = b'"assistant"'
_COMMA = ord(",")
_SPACES = b" \t\r\n"


class Lists:
    """The last digest of each history that was asked lately, by its bytes; an entry costs some 0.2 KB."""

    def __init__(self, clock: Callable[[], float], *, expiry: float, limit: int) -> None:
        self._histories: Recent[bytes] = Recent(clock, expiry=expiry, limit=limit)

    def __repr__(self) -> str:
        return f"<Lists {len(self)} entries>"

    def __len__(self) -> int:
        return len(self._histories)

    def look(self, shape: Shape, start: bytes, written: RawField, decode: Decode) -> tuple[bytes, History | None]:
        """The digest of a request's list, b"" where it has none; and the history of its end if it begins with a known one.

        That can only end before the last answer. Where this is guessed wrongly nothing is found: only whole lists are known,
        so that what follows one is whole, too. `start` is where the history's digests begin.
        """
        beside = _SYSTEM.get(shape)
        data = bytes(written("messages") or b"") if beside is not None else b""
        if not data.startswith(b"["):
            return b"", None
        view, end = memoryview(data), _trimmed(data, len(data) - 1)
        hashing = xxh3_128(start + shape.encode(), _SEED)
        if beside:
            hashing.update(written("system") or b"")
        answer = data.rfind(b"{", 0, max(0, data.rfind(_ANSWER)))
        comma = _trimmed(data, answer) - 1
        known, begun = None, 0
        if comma > 0 and data[comma] == _COMMA:
            begun = _trimmed(data, comma)
            hashing.update(view[:begun])
            known = self._histories.get(hashing.digest())
        hashing.update(view[begun:end])
        if known is None:
            return hashing.digest(), None
        rest = decode(b"[" + data[answer:])
        return hashing.digest(), History(known, request_messages(Shape.CHAT, lambda _: rest), begun=True)

    def asked(self, digest: bytes, history: bytes) -> None:
        """Note the digest of a list and that of the history that it is."""
        self._histories.put(digest, history)


def _trimmed(data: bytes, end: int) -> int:
    """The end of what stands before, without white space."""
    while end > 0 and data[end - 1] in _SPACES:
        end -= 1
    return end
