"""Traces: the context that reaches a backend, and the span that is made of a request's record."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from warmroute.app import Router
from warmroute.config import Config, ConfigError, extras, require_extras
from warmroute.core.trace import hop
from warmroute.observe import tracing
from warmroute.observe.record import RequestRecord

from .conftest import FAST, until, up
from .scripted import Scripted, Talk, answer, free_port

CHAT = "/v1/chat/completions"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What takes the place of the collector that is configured."""
    memory = InMemorySpanExporter()
    monkeypatch.setattr(tracing, "exporter_to", lambda endpoint: memory)
    return memory


@asynccontextmanager
async def routing(backends: Sequence[Scripted], **tracing: Any) -> AsyncIterator[Router]:
    """A router whose spans have all been sent when the block has ended."""
    sections = {**FAST, "tracing": {"endpoint": "http://127.0.0.1:4318", **tracing}}
    async with Router(Config.model_validate({**sections, "backends": [b.url for b in backends]})) as router:
        await until(lambda: up(router) == len(backends))
        yield router


async def ask(router: Router, path: str = CHAT, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    async with httpx.AsyncClient(base_url=router.data_url) as client:
        return await client.post(path, json=body, headers=named)


def only(exporter: InMemorySpanExporter) -> tuple[ReadableSpan, dict[str, Any]]:
    (span,) = exporter.get_finished_spans()
    return span, dict(span.attributes or {})


async def test_context_passes_untouched_where_nothing_is_traced(router: Router, backends: list[Scripted]) -> None:
    await ask(router, traceparent=CONTEXT, tracestate="vendor=1")
    (seen,) = (s for b in backends for s in b.posts)
    assert (seen.header("traceparent"), seen.header("tracestate")) == (CONTEXT, "vendor=1")


async def test_a_span_lies_between_the_clients_and_the_backends(
    backends: list[Scripted], exporter: InMemorySpanExporter
) -> None:
    began = time.time_ns()
    async with routing(backends) as router:
        response = await ask(router, traceparent=CONTEXT, tracestate="vendor=1", x_session_id="s", x_request_id="r-1")
    span, found = only(exporter)
    (seen,) = (s for b in backends for s in b.posts)
    assert span.context is not None
    assert span.parent is not None
    assert span.context.trace_id == span.parent.trace_id == int(TRACE, 16)
    assert (span.parent.span_id, span.parent.is_remote) == (int(SPAN, 16), True)
    assert seen.header("traceparent") == f"00-{TRACE}-{span.context.span_id:016x}-01"
    assert seen.header("tracestate") == "vendor=1"
    assert (span.name, span.kind, span.status.status_code) == (f"POST {CHAT}", SpanKind.SERVER, StatusCode.UNSET)
    assert span.resource.attributes["service.name"] == "warmroute"
    assert span.start_time is not None
    assert span.end_time is not None
    (first,) = span.events
    assert first.name == "first_content"
    assert began - 10**9 < span.start_time < first.timestamp <= span.end_time < time.time_ns() + 10**9
    session = router.counters.recent[0].session
    assert found == {
        "http.request.method": "POST",
        "http.route": CHAT,
        "http.response.status_code": 200,
        "gen_ai.usage.input_tokens": 8,
        "gen_ai.usage.output_tokens": 1,
        "warmroute.request_id": "r-1",
        "warmroute.decision": response.headers["x-warmroute-decision"],
        "warmroute.backend": response.headers["x-warmroute-backend"],
        "warmroute.key_source": "x-session-id",
        "warmroute.session": session,
        "warmroute.moved": False,
        "warmroute.attempts": 1,
        "warmroute.client_aborted": False,
    }


async def test_what_was_cached_is_told(backends: list[Scripted], exporter: InMemorySpanExporter) -> None:
    async def cached(talk: Talk) -> None:
        usage = {"prompt_tokens": 90, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 64}}
        talk.json({"choices": [{"message": {"content": "hello"}}], "usage": usage})

    for backend in backends:
        backend.script = cached
    async with routing(backends) as router:
        await ask(router)
    _, found = only(exporter)
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.cache_read.input_tokens"]) == (90, 64)


async def test_a_trace_that_begins_here_has_no_parent_and_no_foreign_state(
    backends: list[Scripted], exporter: InMemorySpanExporter
) -> None:
    async with routing(backends) as router:
        await ask(router, traceparent="00-nonsense-01", tracestate="vendor=1")
    span, _ = only(exporter)
    (seen,) = (s for b in backends for s in b.posts)
    assert span.parent is None
    assert span.context is not None
    assert seen.header("traceparent") == f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01"
    assert seen.header("tracestate") == ""


async def test_what_nobody_wants_to_see_is_a_hop_and_no_span(
    backends: list[Scripted], exporter: InMemorySpanExporter
) -> None:
    async with routing(backends, share=0.0) as router:
        await ask(router, traceparent=f"00-{TRACE}-{SPAN}-00")
        await ask(router)
    assert exporter.get_finished_spans() == ()
    passed = [str(s.header("traceparent")) for b in backends for s in b.posts]
    assert len(passed) == 2
    assert all(header.endswith("-00") for header in passed)


async def test_failed_attempts_and_the_routers_own_errors_are_told(
    backends: list[Scripted], exporter: InMemorySpanExporter
) -> None:
    async def dies(talk: Talk) -> None:
        talk.close()

    for backend in backends:
        backend.script = dies
    async with routing(backends) as router:
        response = await ask(router)
    span, found = only(exporter)
    assert response.status_code >= 500
    assert span.status.status_code is StatusCode.ERROR
    assert found["http.response.status_code"] == response.status_code
    assert found["error.type"] == response.json()["error"]["code"]
    assert len(found["warmroute.failures"]) >= 2
    assert span.events == ()


async def test_attempts_at_several_backends_are_one_hop(
    backends: list[Scripted], exporter: InMemorySpanExporter
) -> None:
    asked: list[str | None] = []

    async def fails_first(talk: Talk) -> None:
        asked.append(talk.seen.header("traceparent"))
        if len(asked) == 1:
            talk.close()
        else:
            await answer(talk)

    for backend in backends:
        backend.script = fails_first
    async with routing(backends) as router:
        assert (await ask(router)).status_code == 200
    span, found = only(exporter)
    assert len(asked) == 2
    assert len(set(asked)) == 1
    assert found["warmroute.attempts"] == 2
    assert span.status.status_code is StatusCode.UNSET


async def test_paths_that_are_none_are_not_in_the_name(
    backends: list[Scripted], exporter: InMemorySpanExporter
) -> None:
    async with routing(backends) as router:
        await ask(router, "/v1/responses/secret-id/cancel")
    span, found = only(exporter)
    assert "secret-id" not in span.name
    assert "secret-id" not in str(found)


async def test_spans_reach_a_collector(backends: list[Scripted]) -> None:
    """OTLP over HTTP as it is: the body is what any collector reads."""

    async def accept(talk: Talk) -> None:
        talk.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n")

    async with Scripted(script=accept) as collector:
        async with routing(backends, endpoint=collector.url) as router:
            await ask(router, traceparent=CONTEXT)
        (post,) = collector.posts
    assert post.path == "/v1/traces"
    request = ExportTraceServiceRequest.FromString(post.body)
    (span,) = request.resource_spans[0].scope_spans[0].spans
    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.name) == (TRACE, SPAN, f"POST {CHAT}")


async def test_a_collector_that_is_not_there_delays_nothing(
    backends: list[Scripted], caplog: pytest.LogCaptureFixture
) -> None:
    async with routing(backends, endpoint=f"http://127.0.0.1:{free_port()}") as router:
        assert (await ask(router)).status_code == 200
        ended = time.monotonic()
    assert time.monotonic() - ended < 8


class Stuck(SpanExporter):
    """Takes for ever, until it is told to stop."""

    def __init__(self) -> None:
        self.stopped = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        while not self.stopped:
            time.sleep(0.01)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.stopped = True


async def test_a_collector_that_takes_for_ever_does_not_keep_the_router() -> None:
    stuck = Stuck()
    otlp = tracing.Otlp(stuck)
    async with asyncio.timeout(15):
        record = RequestRecord("r", "POST", CHAT, 0.0, 1.5, hop=hop(None, b"x" * 24, 1.0))
        otlp.take(record)
        await otlp.close(0.05)
    assert stuck.stopped


# Configuration


def of(**tracing: Any) -> Config:
    return Config.model_validate({"backends": ["http://a"], "tracing": tracing})


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://otlp.example/api/traces", "https://otlp.example/api/traces"),
        ("https://otlp.example?x=1", "https://otlp.example?x=1"),
    ],
)
def test_the_usual_path_is_added_to_a_bare_address(given: str, used: str) -> None:
    assert of(endpoint=given).tracing.endpoint == used


@pytest.mark.parametrize(
    "given",
    ["collector:4318", "grpc://a:4317", "http://", "http://user:pass@a", "http://a:0", "http://a:x", "http://a b"],
)
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="collector"):
        of(endpoint=given)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"tracing": {"endpoint": "http://a"}}, r"tracing.endpoint needs .* pip install 'warmroute\[otel\]'"),
        ({"kv_events": {"enabled": True}}, r"kv_events.enabled needs .* pip install 'warmroute\[kv-events\]'"),
    ],
)
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, section: dict[str, Any], says: str) -> None:
    config = Config.model_validate({"backends": ["http://a"], **section})
    require_extras(config)
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=says):
        require_extras(config)
    require_extras(of())
