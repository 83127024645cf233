"""Bytes put together of what their readers look for, of noise, and of each other, cut anywhere: by the bytes of a dice.

Hypothesis draws one string of bytes a case, which costs it little and which it knows how to shrink; everything else follows.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

from hypothesis import strategies as st

Case = tuple[bytes, ...]
_T = TypeVar("_T")

_NUMBERS = (b"0", b"1", b"-1", b"1e400", b"9" * 25, b"9" * 5000, b"0.1", b"1E-9", b"00", b"1_0", b"+1")


class Dice:
    """Choices out of a string of bytes; zero, or the first, when that has come to its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __repr__(self) -> str:
        return f"<Dice {self._at} of {len(self._data)}>"

    def below(self, limit: int) -> int:
        """A number from 0 to limit - 1."""
        self._at += 2
        return int.from_bytes(self._data[self._at - 2 : self._at]) % limit

    def pick(self, choices: Sequence[_T]) -> _T:
        return choices[self.below(len(choices))]

    def noise(self, most: int) -> bytes:
        """Bytes as they come."""
        length = self.below(most + 1)
        self._at += length
        return self._data[self._at - length : self._at]

    def word(self, words: Sequence[bytes]) -> bytes:
        """Mostly one of these; now and then noise, or a number."""
        kind = self.below(8)
        return self.noise(12) if kind == 7 else self.pick(_NUMBERS) if kind == 6 else self.pick(words)

    def soup(self, words: Sequence[bytes], most: int = 24) -> bytes:
        """Words in any order."""
        return b"".join([self.word(words) for _ in range(self.below(most + 1))])

    def spoiled(self, whole: Sequence[bytes], words: Sequence[bytes]) -> bytes:
        """Something whole in which some bytes were replaced, taken out or put in."""
        data = self.pick(whole)
        for _ in range(self.below(4)):
            at, length = self.below(len(data) + 1), self.pick((0, 0, 1, 2, 7, 40))
            data = data[:at] + self.word(words) + data[at + length :]
        return data

    def text(self, whole: Sequence[bytes], words: Sequence[bytes]) -> bytes:
        """Two times in three something whole but spoiled, else soup."""
        return self.spoiled(whole, words) if self.below(3) else self.soup(words)

    def cut(self, data: bytes) -> Case:
        """The data in up to six pieces."""
        places = sorted({0, len(data), *(self.below(len(data) + 1) for _ in range(self.below(6)))})
        return tuple(data[a:b] for a, b in pairwise(places))


def cases(build: Callable[[Dice], Case]) -> st.SearchStrategy[Case]:
    """What `build` makes of any dice."""
    return st.binary(min_size=16, max_size=120).map(lambda data: build(Dice(data)))
