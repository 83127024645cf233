"""One backend's answer on its way to the client: held back until it says something, then passed on unchanged."""

import re
from collections.abc import Callable, Mapping
from enum import StrEnum

from .sse import ContentGate
from .tap import TokenTap
from .unasked import UsageFilter
from .usage import MARK, NO_USAGE, Usage, usage_from

_TAIL = 4096
"""Bytes of an answer's end kept for its usage, which stands in the last event but one, or at the end of a JSON body."""

_NUMBER = re.compile(rb'"sequence_number": ?([0-9]{1,9})')


class RelayState(StrEnum):
    """HELD: the client has seen nothing, another backend may still answer. STREAMING: it has. DONE: the answer is whole."""

    HELD = "held"
    STREAMING = "streaming"
    DONE = "done"


HELD, STREAMING, DONE = RelayState


class Relay:
    """The border between failing over and ending visibly.

    `feed` takes what the backend sent and returns what the client gets now. The border is the first content, not the
    status line: vLLM sends its 200 before the prompt has been computed. Only a successful event stream is held beyond its
    first byte; of any other body the first byte is content.
    """

    __slots__ = ("_early_usage", "_gate", "_tail", "event_stream", "hides", "listener", "readable", "state", "tap")

    def __init__(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        self.event_stream = headers.get(b"content-type", b"").lower().startswith(b"text/event-stream")
        self.readable = status == 200 and b"content-encoding" not in headers
        self.listener: Callable[[bytes], None] | None = None
        self.tap: TokenTap | None = None
        self.hides: UsageFilter | None = None
        self._gate = ContentGate() if self.readable and self.event_stream else None
        self._tail = bytearray()
        # A JSON body may go on for long after it, with the prompt's token ids; Anthropic's streams begin with the prompt's.
        self._early_usage = b""
        self.state = HELD

    def __repr__(self) -> str:
        return f"<Relay {self.state}{' events' if self.event_stream else ''}>"

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the body; return those to send now, b"" while the answer is held."""
        if self._gate is not None:
            data = self._gate.feed(data)
            if not data:
                return b""
            self._gate = None
        if self.hides is not None or self.tap is not None:
            data = self.without_unasked(data)
        if data:
            self.state = STREAMING
            self.note(data)
        return data

    @property
    def takes(self) -> Callable[[bytes], bytes] | None:
        """What turns the bytes of a stream into what the client gets; None where it gets exactly what the backend sends."""
        if self.tap is None:
            return None if self.hides is None else self.hides.take
        return self.without_unasked

    @property
    def passes(self) -> Callable[[bytes], bool] | None:
        """What tells of a whole chunk in its framing that the client gets it as it is; None where `takes` has to see it."""
        return self.hides.passes if self.hides is not None and self.tap is None else None

    def without_unasked(self, data: bytes) -> bytes:
        """What the client gets of these bytes: nothing of what the router alone has asked for."""
        if self.tap is not None:
            data = self.tap.take(data)
        return data if self.hides is None else self.hides.take(data)

    def note(self, data: bytes) -> None:
        """Once an answer is streaming its bytes pass unchanged: this only remembers the last ones, and tells the listener."""
        if self.listener is not None:
            self.listener(data)
        tail = self._tail
        tail += data
        if len(tail) > 4 * _TAIL:
            if not (self.event_stream and self._early_usage) and (at := tail.rfind(MARK, 0, -_TAIL)) >= 0:
                self._early_usage = bytes(tail[at : at + _TAIL])
            del tail[:-_TAIL]

    def finish(self) -> bytes:
        """The backend ended its answer; return what was still held."""
        self.state = DONE
        if not self.event_stream:  # of which nothing is ever held
            return b""
        held = self._gate.release() if self._gate is not None else b""
        self._gate = None
        held = self.without_unasked(held)
        if self.tap is not None:
            rest = self.tap.end()
            held += rest if self.hides is None else self.hides.take(rest)
        if self.hides is not None:
            held += self.hides.end()
        self.note(held)
        return held

    def flush(self) -> bytes:
        """The backend has gone, and nothing goes on: return what was held of an event that it did not finish."""
        held = self.hides.end() if self.hides is not None else b""
        self.note(held)
        return held

    @property
    def ends_on_blank_line(self) -> bool:
        """Whether an event sent now would stand alone, and not run into one that was cut."""
        return not self._tail or self._tail.endswith((b"\n\n", b"\r\n\r\n"))

    @property
    def next_number(self) -> int:
        """The `sequence_number` that the next event of a response would have; 0 in a stream whose events have none."""
        found = _NUMBER.findall(self._tail)
        return int(found[-1]) + 1 if found else 0

    def usage(self) -> Usage:
        """What the answer said of its tokens, be it not to the client."""
        if self.hides is not None and self.hides.usage:
            return usage_from(self.hides.usage)
        found = usage_from(bytes(self._tail))
        if found == NO_USAGE:
            found = usage_from(self._early_usage)
        return self.tap.counted() if found == NO_USAGE and self.tap is not None else found
