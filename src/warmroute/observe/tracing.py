"""The span of a request, made of its record with OpenTelemetry's SDK and sent to a collector from a thread of its own."""

import asyncio

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from .. import __version__
from .record import RequestRecord

_EXPORT_TIMEOUT = 3.0
"""Seconds that the collector has to take a batch."""
_SECOND = 1_000_000_000

Value = str | bool | int | float | list[str]


def exporter_to(endpoint: str) -> SpanExporter:
    """OTLP over HTTP to this URL; headers, certificates and compression by OpenTelemetry's variables of the environment."""
    return OTLPSpanExporter(endpoint, timeout=_EXPORT_TIMEOUT)


class Otlp:
    """Collects spans into batches; where the collector cannot keep up, the oldest are lost."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._processor = BatchSpanProcessor(exporter)
        ours = Resource({"service.name": "warmroute", "service.version": __version__})
        self._resource = ours.merge(OTELResourceDetector().detect())
        self._scope = InstrumentationScope("warmroute", __version__)

    def __repr__(self) -> str:
        return f"<Otlp {type(self._exporter).__name__}>"

    def take(self, record: RequestRecord) -> None:
        """Queue the span of a request that has a hop."""
        self._processor.on_end(span_of(record, self._resource, self._scope))

    async def close(self, within: float) -> None:
        closing = asyncio.ensure_future(asyncio.to_thread(self._processor.shutdown))
        done, _ = await asyncio.wait([closing], timeout=within)
        if not done:
            self._exporter.shutdown()  # which ends the waiting for a collector that does not answer
        await closing


def span_of(record: RequestRecord, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    """From arrival to last byte, the first content marked; the backend's spans are below it."""
    hop = record.hop
    assert hop is not None
    trace, flags = int.from_bytes(hop.trace, "big"), TraceFlags(hop.flags)
    start = int(record.time * _SECOND)
    first = (
        [] if record.first_byte_s is None else [Event("first_content", timestamp=_after(start, record.first_byte_s))]
    )
    return ReadableSpan(
        f"{record.method} {record.path}",
        context=SpanContext(trace, int.from_bytes(hop.span, "big"), is_remote=False, trace_flags=flags),
        parent=None
        if hop.parent is None
        else SpanContext(trace, int.from_bytes(hop.parent, "big"), is_remote=True, trace_flags=flags),
        resource=resource,
        attributes={name: value for name, value in attributes(record).items() if value is not None},
        events=first,
        kind=SpanKind.SERVER,
        status=_status(record),
        start_time=start,
        end_time=_after(start, record.duration_s),
        instrumentation_scope=scope,
    )


def attributes(record: RequestRecord) -> dict[str, Value | None]:
    """What is known of a request, by OpenTelemetry's names where it has some. None is left out."""
    usage, held = record.usage, record.held
    return {
        "http.request.method": record.method,
        "http.route": record.path,
        "http.response.status_code": record.status,
        "error.type": record.error or (str(record.status) if record.status >= 500 else None),
        "gen_ai.usage.input_tokens": usage.prompt,
        "gen_ai.usage.cache_read.input_tokens": usage.cached,
        "gen_ai.usage.output_tokens": usage.completion,
        "warmroute.request_id": record.id,
        "warmroute.decision": record.decision,
        "warmroute.backend": record.backend,
        "warmroute.engine": record.engine,
        "warmroute.key_source": record.key_source,
        "warmroute.session": record.session,
        "warmroute.moved": record.moved,
        "warmroute.attempts": record.attempts,
        "warmroute.failures": record.reasons() or None,
        "warmroute.resumed": record.resumed,
        "warmroute.client_aborted": record.aborted,
        "warmroute.tokens_held_before": None if held is None else held.live,
    }


def _status(record: RequestRecord) -> Status:
    if record.error is not None or record.status >= 500:
        return Status(StatusCode.ERROR, record.error)
    return Status(StatusCode.UNSET)


def _after(start: int, seconds: float) -> int:
    return start + int(seconds * _SECOND)
