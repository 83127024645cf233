"""Server-sent events before the first content: where does an answer begin to say something?"""

import json
import re
from typing import Any

_MAX_HELD = 4 << 20
"""Bytes held back at most while waiting for content: the first event of vLLM can carry all prompt token ids."""

_BLANK_LINE = re.compile(rb"\r\r(?!\n)|(?:\r\n|\n|\r(?=[^\n])){2}")
"""What ends an event: two line ends, each of any of the three kinds; a CR may be half of a CRLF until the next byte comes."""

_LONGEST_BLANK_LINE = 4
"""Bytes of the longest blank line, which may begin in bytes that were searched already."""

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
    still give the whole answer. Anything not known to be a preamble is content. At most 4 MiB are held.
    """

    __slots__ = ("_begun", "_held", "_searched")

    def __init__(self) -> None:
        self._held = bytearray()
        self._begun = self._searched = 0

    def __repr__(self) -> str:
        return f"<ContentGate {len(self._held)} bytes held>"

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; return b"" while no content has come, then all bytes so far, unchanged."""
        held = self._held
        held += data
        while blank := _BLANK_LINE.search(held, self._searched):
            if is_content(bytes(held[self._begun : blank.start()])):
                return self.release()
            self._begun = self._searched = blank.end()
        self._searched = max(self._searched, len(held) - _LONGEST_BLANK_LINE)
        return self.release() if len(held) > _MAX_HELD else b""

    def release(self) -> bytes:
        """All bytes held, for an answer that ended without content."""
        held = bytes(self._held)
        self._held.clear()
        self._begun = self._searched = 0
        return held


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
    if not isinstance(choice, dict) or choice.get("finish_reason") is not None:
        return True
    delta, text = choice.get("delta"), choice.get("text")
    if isinstance(delta, dict):
        return any(value for key, value in delta.items() if key != "role")
    return text != ""
