"""What an answer says of its own tokens, read from its last bytes in the shapes of all protocols."""

import json
import re
from typing import Any, NamedTuple

MARK = b'"usage":'
_DECODER = json.JSONDecoder()

_COUNT = rb"(0|[1-9][0-9]{0,11})"
_AS_VLLM = re.compile(
    rb'"usage": ?\{"prompt_tokens": ?'
    + _COUNT
    + rb', ?"total_tokens": ?[0-9]+, ?"completion_tokens": ?'
    + _COUNT
    + rb', ?"prompt_tokens_details": ?(?:null|\{"cached_tokens": ?'
    + _COUNT
    + rb'(?:, ?"created_cache_tokens": ?[0-9]+)?\})\}'
)
"""How vLLM writes it for chat and completions (0.32): to find the numbers in it takes a third of reading it as JSON."""
_MOST = 1 << 40
"""Tokens that an answer may be said to have; a number without end would stay in sums that no longer fit into a float."""


class Usage(NamedTuple):
    """Tokens of one exchange; None where the backend did not say. Cached tokens are part of the prompt's."""

    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None


NO_USAGE = Usage()


def usage_from(tail: bytes) -> Usage:
    """The last usage object in the end of an answer, streamed or not.

    Inside a JSON string quotation marks are escaped, so text that an answer quotes cannot be taken for it.
    """
    at = tail.rfind(MARK)
    usual = _AS_VLLM.match(tail, at) if at >= 0 else None
    if usual is not None:
        prompt, completion, cached = usual.groups()
        return Usage(int(prompt), None if cached is None else int(cached), int(completion))
    while at >= 0:
        text = tail[at + len(MARK) :].decode("utf-8", "replace").lstrip()
        if text.startswith("{"):
            try:
                found, _ = _DECODER.raw_decode(text)
            except (ValueError, RecursionError):
                return NO_USAGE
            return _read(found)
        at = tail.rfind(MARK, 0, at)
    return NO_USAGE


def _read(usage: dict[str, Any]) -> Usage:
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    if "cache_read_input_tokens" in usage:
        return _anthropic(usage)
    return Usage(
        _count(usage.get("prompt_tokens", usage.get("input_tokens"))),
        _count(details.get("cached_tokens")) if isinstance(details, dict) else None,
        _count(usage.get("completion_tokens", usage.get("output_tokens"))),
    )


def _anthropic(usage: dict[str, Any]) -> Usage:
    """Anthropic's input_tokens leave out what was read from the cache and what was written to it."""
    read, written = _count(usage["cache_read_input_tokens"]), _count(usage.get("cache_creation_input_tokens"))
    fresh = _count(usage.get("input_tokens"))
    prompt = None if fresh is None else fresh + (read or 0) + (written or 0)
    return Usage(prompt=prompt, cached=read, completion=_count(usage.get("output_tokens")))


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= _MOST else None
