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


# By names of their own, since to look up a member of an enumeration takes ten times as long.
REUSED, RELOADED, NEW, FIRST_TURN, MOVED, EVICTED, PROMPT_CHANGED, BLOCK_ROUNDING, UNKNOWN = Outcome


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


def split(
    prompt: int,
    cached: int | None,
    expected: Expected | None,
    block: int = BLOCK,
    older: bool = False,
    gone: int | None = None,
) -> tuple[dict[Outcome, int], bool]:
    """Put each of `prompt` tokens under an outcome; `cached` is what the backend says it had (None: it does not say).

    Also tells whether those of PROMPT_CHANGED are of the last answer, sent back otherwise.

    `expected` is None for a prompt that goes on from none; `older` says that there was one that is not known. `gone` is how
    much of the last prompt the engine has told to have dropped, None if it does not tell: what is missing is then put down to
    that where the figures allow. vLLM reuses whole blocks, and computes a prompt's last token in any case.
    """
    if cached is None:
        return ({UNKNOWN: prompt} if prompt else {}), False
    if cached > prompt:
        cached = prompt
    found = {REUSED: cached} if cached else {}
    left = prompt - cached
    if expected is None:
        if left:
            found[UNKNOWN if older else FIRST_TURN] = left
        return found, False
    known, here, asked, replaced = expected
    if known > prompt:
        known = prompt
    unlike = prompt - known
    reachable = (known if unlike else prompt - 1) // block * block
    if (new := min(left, unlike - replaced)) > 0:
        found[NEW] = new
        left -= new
        unlike -= new
    if left and unlike > 0:
        found[PROMPT_CHANGED] = changed = min(left, unlike)
        left -= changed
    if left and known > reachable:
        found[BLOCK_ROUNDING] = rounding = min(left, known - reachable)
        left -= rounding
    if not left:
        return found, False
    here = min(here, reachable) // block * block
    moved = max(0, min(left, reachable - max(here, cached // block * block)))
    if moved:
        found[MOVED] = moved
        left -= moved
    if gone is not None:
        slack = 2 * block if gone else 0  # ends of prompts are told in whole blocks
        evicted = left if left <= gone + slack else gone
        if evicted:
            found[EVICTED] = evicted
            left -= evicted
    answer_changed = left > 0 and moved == 0 and cached >= asked // block * block - block and cached > 0
    if answer_changed:
        found[PROMPT_CHANGED] = found.get(PROMPT_CHANGED, 0) + left
    elif left:
        found[EVICTED if gone is None else UNKNOWN] = left
    return found, answer_changed
