"""Server-sent events before the first content: where does an answer begin to say something?"""

import json
from typing import Any

_MAX_HELD = 1 << 20
"""Bytes held back at most while waiting for content: the first event of vLLM can carry all prompt token ids."""

_PREAMBLE_TYPES = frozenset(
    {
        # Anthropic messages
        "message_start",
        "content_block_start",
        "ping",
        # OpenAI responses
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_part.added",
    }
)


class ContentGate:
    """Holds an event stream back until its first content event, then is done.

    Comments (vLLM's keep-alives) and events that only announce an answer are not content: after them another backend could
    still give the whole answer. Anything not known to be a preamble is content. At most 1 MiB is held.
    """

    __slots__ = ("_held", "_scanned")

    def __init__(self) -> None:
        self._held = bytearray()
        self._scanned = 0

    def __repr__(self) -> str:
        return f"<ContentGate {len(self._held)} bytes held>"

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; return b"" while no content has come, then all bytes so far, unchanged."""
        held = self._held
        held += data
        while True:
            end, after = _event_end(held, self._scanned)
            if end < 0:
                break
            if is_content(bytes(held[self._scanned : end])):
                return self.release()
            self._scanned = after
        return self.release() if len(held) > _MAX_HELD else b""

    def release(self) -> bytes:
        """All bytes held, for an answer that ended without content."""
        held = bytes(self._held)
        self._held.clear()
        self._scanned = 0
        return held


def _event_end(buffer: bytearray, start: int) -> tuple[int, int]:
    """The end of the event that begins at `start` and the start of the next one, or -1, -1 while it is not whole."""
    best = (-1, -1)
    for blank in (b"\n\n", b"\r\n\r\n", b"\r\r"):
        at = buffer.find(blank, start)
        if at >= 0 and (best[0] < 0 or at < best[0]):
            best = (at, at + len(blank))
    return best


def event_data(event: bytes) -> bytes:
    """The data of one event, its lines joined as the standard says (WHATWG HTML, 9.2.6)."""
    lines = [line[5:] for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(line.removeprefix(b" ") for line in lines)


def is_content(event: bytes) -> bool:
    """True if the event shows something of the answer, or anything this router does not know."""
    data = event_data(event)
    if not data:
        return False
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return True
    if not isinstance(value, dict):
        return True
    if isinstance(value.get("type"), str) and value["type"] in _PREAMBLE_TYPES:
        return False
    choices = value.get("choices")
    if not isinstance(choices, list) or not choices:
        return True
    return any(_says_something(choice) for choice in choices)


def _says_something(choice: Any) -> bool:
    if not isinstance(choice, dict) or choice.get("finish_reason") is not None or choice.get("text"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(value for key, value in delta.items() if key != "role")
