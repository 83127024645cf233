"""W3C trace context: the router as one hop of a trace, between its client's span and those of vLLM."""

import re
from typing import NamedTuple

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
FRESH = 24
"""Random bytes that a hop takes: 8 for its span, 16 for a trace that begins here."""


class Hop(NamedTuple):
    """The router's span of a request: its trace, its own id, and the span it is part of, None where the trace begins here."""

    trace: bytes
    span: bytes
    parent: bytes | None
    flags: int

    @property
    def sampled(self) -> bool:
        """Whether somebody wants to see it: who began the trace decides that."""
        return bool(self.flags & _SAMPLED)

    @property
    def header(self) -> bytes:
        """The traceparent that a backend gets."""
        return b"00-%b-%b-%02x" % (self.trace.hex().encode(), self.span.hex().encode(), self.flags)


def hop(traceparent: bytes | None, fresh: bytes, share: float) -> Hop:
    """The hop of a request that came with this header. Of traces that begin here `share` (0 to 1) are sampled."""
    span, trace = fresh[:8], fresh[8:]
    given = _TRACEPARENT.fullmatch(traceparent) if traceparent is not None else None
    if given is not None and _usable(given):
        return Hop(bytes.fromhex(given[2].decode()), span, bytes.fromhex(given[3].decode()), int(given[4], 16))
    sampled = int.from_bytes(trace[8:], "big") < share * (1 << 64)
    return Hop(trace, span, None, _SAMPLED if sampled else 0)


def _usable(given: re.Match[bytes]) -> bool:
    """Version ff is none, the first one ends with its flags, and ids of zeros are none."""
    version, trace, span, _, rest = given.groups()
    return (
        version != b"ff" and (version != b"00" or rest is None) and bool(trace.strip(b"0")) and bool(span.strip(b"0"))
    )
