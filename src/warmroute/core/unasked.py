"""Takes the event that tells a stream's usage out of it, on the way to a client that did not ask for it."""

_FINISHED = b'"finish_reason":"'
_NO_CHOICES = b'"choices":[]'
_USAGE = b'"usage":{'
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

    def take(self, data: bytes) -> bytes:
        """Take bytes of the stream; returns what the client gets."""
        if not self._ending:
            # The mark may be cut in two, as everything may.
            self._ending = _FINISHED in data or _FINISHED in self._last + data[: len(_FINISHED)]
            self._last = data[-len(_FINISHED) :]
            if not self._ending:
                return data
        data = self._held + data
        blank = _BLANK[0] if _BLANK[0] in data else _BLANK[1]
        *events, self._held = data.split(blank)
        if len(self._held) > _LONGEST_EVENT:
            events, self._held = [data], b""
            return data
        return b"".join([event + blank for event in events if not self._hidden(event)])

    def end(self) -> bytes:
        """The stream has ended, whole or not: what was held of an event that nothing ends."""
        held, self._held = self._held, b""
        return b"" if self._hidden(held) else held

    def _hidden(self, event: bytes) -> bool:
        if _NO_CHOICES not in event or _USAGE not in event:
            return False
        self.usage = event
        return True
