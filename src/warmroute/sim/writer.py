"""Writes the simulated answers: readable sentences in which every token follows from all the tokens before it."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from warmroute.sim.tokens import IM_END_ID, NEWLINE_ID, Tokenizer, token_text
from warmroute.sim.words import CLASSES, FOLLOWERS

# How likely an answer ends with a sentence, in 256ths: sentences have about nine words, answers about four sentences.
_END_AFTER_SENTENCE: Final = 64


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token; `is_end` marks the one by which the model says that its answer is complete."""

    token_id: int
    text: str
    is_end: bool = False


class Answer:
    """The answer to one prompt, token by token.

    It depends on the prompt's ids and the seed alone, and a prompt that already ends with part of an answer is
    continued with the rest of that answer, as greedy sampling does.
    """

    def __init__(self, prompt: Sequence[int], seed: int) -> None:
        self._state = blake2b(seed.to_bytes(8, "big", signed=True), digest_size=8)
        self._state.update(array("q", prompt).tobytes())
        self._last = prompt[-1]
        self.written = 0

    def next(self, *, may_end: bool) -> Token:
        """The next token; the one that ends the answer is given only where `may_end`."""
        dice = self._state.digest()
        token = self._choose(dice, may_end)
        self._state.update(array("q", (token.token_id,)).tobytes())
        self._last = token.token_id
        self.written += 1
        return token

    def _choose(self, dice: bytes, may_end: bool) -> Token:
        current = _class_of(self._last)
        if may_end and current == "stop" and dice[0] < _END_AFTER_SENTENCE:
            return Token(IM_END_ID, "", is_end=True)
        followers = FOLLOWERS[current] if current else (("first_opener" if self._last == NEWLINE_ID else "opener", 1),)
        words = _TOKENS[_weighted(followers, dice[1])]
        return words[int.from_bytes(dice[2:6], "big") % len(words)]

    def __repr__(self) -> str:
        return f"Answer(written={self.written}, last={token_text(self._last)!r})"


def _class_of(token: int) -> str | None:
    text = token_text(token)
    return None if text is None else _CLASS_OF.get(text)


def _weighted(choices: Sequence[tuple[str, int]], dice: int) -> str:
    remaining = dice * sum(weight for _, weight in choices) // 256
    for name, weight in choices:
        if remaining < weight:
            return name
        remaining -= weight
    return choices[-1][0]


def _spelled() -> Mapping[str, tuple[Token, ...]]:
    tokenizer = Tokenizer(remembered=0)
    return {name: tuple(Token(tokenizer.encode(word)[0], word) for word in words) for name, words in CLASSES.items()}


_TOKENS: Final = _spelled()
_CLASS_OF: Final = {word: name for name, words in CLASSES.items() for word in words}
