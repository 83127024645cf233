"""A span for each request, to whoever collects traces. OpenTelemetry is loaded only where an endpoint is named."""

import secrets
from typing import Protocol

from ..core.trace import FRESH, Hop, hop
from .record import RequestRecord

_LAST_SPANS = 2.0
"""Seconds that a collector has at the end for what was not sent to it yet."""


class Exporter(Protocol):
    """Takes the records of requests that are sampled; `close` waits for so many seconds for what is still to be sent."""

    def take(self, record: RequestRecord) -> None: ...
    async def close(self, within: float) -> None: ...


class Spans:
    """Gives each request its place in a trace when it comes, and its span away when it has ended."""

    def __init__(self, exporter: Exporter, share: float) -> None:
        self._exporter = exporter
        self._share = share

    def __repr__(self) -> str:
        return f"<Spans {self._share:g} of new traces to {self._exporter!r}>"

    def hop(self, traceparent: bytes | None) -> Hop:
        """The router's hop in the trace of a request that came with this header."""
        return hop(traceparent, secrets.token_bytes(FRESH), self._share)

    def settle(self, record: RequestRecord) -> None:
        """A request has ended."""
        if record.hop is not None and record.hop.sampled:
            self._exporter.take(record)

    async def close(self) -> None:
        """Send what is left, if the collector takes it now."""
        await self._exporter.close(_LAST_SPANS)


def spans(endpoint: str | None, share: float) -> Spans | None:
    """Spans to the collector of this URL; None where there is none."""
    if endpoint is None:
        return None
    from .tracing import Otlp, exporter_to

    return Spans(Otlp(exporter_to(endpoint)), share)
