"""A prompt that only grows, seen at its bytes: the next turn's begins with all of the last one's, and adds to it."""

from array import array
from typing import NamedTuple

STEP = 16 << 10
"""Bytes that are hashed together. Of a stem that is gone on with, at most so many are hashed twice. Slices are copies: to hash
a part of a memoryview, Python hashes all of what it is a view of."""


class Stem(NamedTuple):
    """A list of messages as the client wrote it, up to the end of the last one: `length` bytes, as digests of its steps.

    `beside` is a digest of what stands beside the list in the prompt: tools, system prompt. Digests are Python's own, so that
    stems can be compared within one process only.
    """

    beside: int
    length: int
    steps: "array[int]"
    rest: int

    @property
    def nbytes(self) -> int:
        """About what this keeps, in bytes."""
        return 260 + 8 * len(self.steps)

    def begins(self, now: "Stem", data: bytes) -> bool:
        """Whether the list that `now` is the stem of begins with all of this one; `data` are its bytes."""
        if self.beside != now.beside or self.length > now.length:
            return False
        whole = len(self.steps)
        if self.steps != (now.steps if whole == len(now.steps) else now.steps[:whole]):
            return False
        return self.rest == (now.rest if self.length == now.length else hash(data[whole * STEP : self.length]))


def stem(beside: int, data: bytes, length: int) -> Stem:
    """The stem of a list from its bytes, of which `length` are without the closing bracket."""
    if length < STEP:
        return Stem(beside, length, _NONE, hash(data[:length]))
    whole = length // STEP * STEP
    steps = array("q", [hash(data[start : start + STEP]) for start in range(0, whole, STEP)])
    return Stem(beside, length, steps, hash(data[whole:length]))


_NONE: "array[int]" = array("q")
