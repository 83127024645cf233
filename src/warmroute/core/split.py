"""What became of a turn's prompt tokens, and why: what was expected of the cache, against what it had."""

from enum import StrEnum
from typing import NamedTuple

BLOCK = 16
"""Tokens of a block of vLLM's cache where its metrics do not say."""


class Outcome(StrEnum):
    """What became of a prompt token. A closed set: it labels metrics. Every prompt token has exactly one."""

    REUSED = "reused"  # its block was in the cache of the engine
    RELOADED = "reloaded"  # its block came from the tier behind: host memory, or a store that servers share
    NEW = "new"  # the turn's own text
    FIRST_TURN = "first_turn"  # of a prompt that goes on from none that is known
    MOVED = "moved"  # it is in the cache of another engine: the conversation was moved
    EVICTED = "evicted"  # it was in this engine's cache, and is gone
    PROMPT_CHANGED = "prompt_changed"  # the client sent another text where the conversation's last turn had one
    BLOCK_ROUNDING = "block_rounding"  # the rest of a block that is not full
    UNKNOWN = "unknown"  # the backend does not say how much was cached, or what came before is not known


class Expected(NamedTuple):
    """What could have hit, in tokens of the new prompt, each part of the one before.

    `known`: its beginning is the same as one that some engine has computed for this conversation. `here`: as one that this
    engine has. `asked`: of those the tokens that were in the last prompt; beyond, they were generated. `replaced`: tokens that
    would have been known had the client not changed its prompt.
    """

    known: int
    here: int
    asked: int
    replaced: int = 0


class Split(NamedTuple):
    """A prompt's tokens by outcome, and whether those of PROMPT_CHANGED are of the last answer, sent back otherwise."""

    tokens: dict[Outcome, int]
    answer_changed: bool = False


def split(
    prompt: int,
    cached: int | None,
    expected: Expected | None,
    *,
    block: int = BLOCK,
    older: bool = False,
    gone: int | None = None,
) -> Split:
    """Put each of `prompt` tokens under an outcome; `cached` is what the backend says it had (None: it does not say).

    `expected` is None for a prompt that goes on from none; `older` says that there was one that is not known. `gone` is how
    much of the last prompt the engine has told to have dropped, None if it does not tell: what is missing is then put down to
    that where the figures allow. vLLM reuses whole blocks, and computes a prompt's last token in any case.
    """
    if cached is None:
        return Split({Outcome.UNKNOWN: prompt} if prompt else {})
    cached = min(cached, prompt)
    found = {Outcome.REUSED: cached} if cached else {}
    left = prompt - cached
    if expected is None:
        if left:
            found[Outcome.UNKNOWN if older else Outcome.FIRST_TURN] = left
        return Split(found)
    known = min(expected.known, prompt)
    reachable = min(known, prompt - 1) // block * block
    here = min(expected.here, reachable) // block * block
    if (new := min(left, prompt - known - expected.replaced)) > 0:
        found[Outcome.NEW] = new
        left -= new
    else:
        new = 0
    if (changed := min(left, prompt - known - new)) > 0:
        found[Outcome.PROMPT_CHANGED] = changed
        left -= changed
    if (rounding := min(left, known - reachable)) > 0:
        found[Outcome.BLOCK_ROUNDING] = rounding
        left -= rounding
    if left == 0:
        return Split(found)
    moved = max(0, min(left, reachable - max(here, cached // block * block)))
    if moved:
        found[Outcome.MOVED] = moved
        left -= moved
    if gone is not None:
        slack = 2 * block if gone else 0  # ends of prompts are told in whole blocks
        evicted = left if left <= gone + slack else gone
        if evicted:
            found[Outcome.EVICTED] = evicted
            left -= evicted
    answer_changed = left > 0 and moved == 0 and cached >= expected.asked // block * block - block and cached > 0
    if answer_changed:
        found[Outcome.PROMPT_CHANGED] = found.get(Outcome.PROMPT_CHANGED, 0) + left
    elif left:
        found[Outcome.EVICTED if gone is None else Outcome.UNKNOWN] = left
    return Split(found, answer_changed)
