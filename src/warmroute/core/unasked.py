"""Takes the event that tells a stream's usage out of it, on the way to a client that did not ask for it."""

import re

_REASON = b'"finish_reason":'
_NO_REASON = (b"nu", b" n")
"""How `null` begins; vLLM writes no spaces, servers that do are asked too."""
_REACH = len(_REASON) + 2
_USAGE_ALONE = re.compile(rb'(?=.*"choices": ?\[\]).*"usage": ?\{', re.DOTALL)
_BLANK = (b"\r\n\r\n", b"\n\n")
_LONGEST_EVENT = 1 << 20


class UsageFilter:
    """Until an answer says why it ended, its bytes pass as they come; from then on event by event, without that of the usage.

    `usage` is that event, b"" until it has come.
    """

    __slots__ = ("_ending", "_held", "_last", "usage")

    def __init__(self) -> None:
        self.usage = b""
        self._ending = False
        self._last = b""
        self._held = b""

    def __repr__(self) -> str:
        return f"<UsageFilter{' of a stream that ends' if self._ending else ''}{', with usage' if self.usage else ''}>"

    def passes(self, framed: bytes) -> bool:
        """Whether a chunk of the stream is passed on in its framing; if it is not it has yet to be taken.

        That of a token is: whole events, the last of which gives no reason.
        """
        if self._ending or self._last or not framed.endswith(b"\n\n\r\n"):
            return False
        at = framed.rfind(_REASON)
        return at < 0 or framed.startswith(_NO_REASON, at + len(_REASON))

    def take(self, data: bytes) -> bytes:
        """Take bytes of the stream; returns what the client gets."""
        if not self._ending:
            self._ending = _gives_reason(data) or (bool(self._last) and _gives_reason(self._last + data[:_REACH]))
            self._last = b"" if data.endswith(b"\n\n") else (self._last + data)[-_REACH:]
            if not self._ending:
                return data
        data = self._held + data
        blank = _BLANK[0] if _BLANK[0] in data else _BLANK[1]
        *events, self._held = data.split(blank)
        if len(self._held) > _LONGEST_EVENT:
            self._held = b""
            return data
        return b"".join([event + blank for event in events if not self._hidden(event)])

    def end(self) -> bytes:
        """The stream has ended, whole or not: what was held of an event that nothing ends."""
        held, self._held = self._held, b""
        return b"" if self._hidden(held) else held

    def _hidden(self, event: bytes) -> bool:
        if not _USAGE_ALONE.match(event):
            return False
        self.usage = event
        return True


def _gives_reason(data: bytes) -> bool:
    """Whether the last reason in these bytes is one; an answer that has ended gives no more of them."""
    at = data.rfind(_REASON)
    return at >= 0 and len(data) >= at + _REACH and data[at + _REACH - 2 : at + _REACH] not in _NO_REASON
