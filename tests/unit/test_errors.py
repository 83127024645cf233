"""The router's own errors: in the shape of each API, and every one says what to do."""

import json

import pytest

from warmroute.core.resume import Why
from warmroute.core.routes import Protocol
from warmroute.proxy import errors
from warmroute.proxy.errors import Code, RouterError

ALL = {
    "not_http": (errors.not_http(), 400, "bad_request"),
    "not_one_host": (errors.not_one_host(), 400, "bad_request"),
    "head_too_large": (errors.head_too_large(1024), 431, "headers_too_large"),
    "too_many_headers": (errors.too_many_headers(100), 431, "headers_too_large"),
    "head_too_slow": (errors.head_too_slow(), 408, "head_timeout"),
    "body_too_slow": (errors.body_too_slow(), 408, "body_timeout"),
    "too_many_connections": (errors.too_many_connections(10), 503, "too_many_connections"),
    "not_for_clients": (errors.not_for_clients("the field priority", "forward.priority"), 400, "not_for_clients"),
    "not_readable": (errors.not_readable(), 400, "not_for_clients"),
    "asks_too_much": (errors.asks_too_much("team-a", "n", 1), 400, "asks_too_much"),
    "response_not_found": (errors.response_not_found(), 404, "response_not_found"),
    "tenant_limit": (errors.tenant_limit("team-a", "rate", 2.5, 3), 429, "tenant_limit"),
    "no_key": (errors.no_key(), 401, "invalid_api_key"),
    "not_found": (errors.not_found("/sleep"), 404, "unknown_path"),
    "method_not_allowed": (errors.method_not_allowed("/v1/models", ("GET", "HEAD")), 405, "method_not_allowed"),
    "body_too_large": (errors.body_too_large(1024), 413, "body_too_large"),
    "unknown_model": (errors.unknown_model("x", ["m", "n"]), 404, "model_not_found"),
    "none_available": (errors.none_available(["a is down (timed out)", "b is starting"]), 503, "no_backend_available"),
    "all_failed": (errors.all_failed(["a: connection refused by a:8000"]), 502, "backend_failed"),
    "own_fault": (errors.own_fault("no file descriptor is left"), 503, "router_unavailable"),
    "broke_off": (errors.broke_off("the connection to a broke", Why.REASONING), 502, "backend_failed"),
    "internal": (errors.internal(), 500, "router_error"),
    "busy": (errors.busy(None), 503, "overloaded"),
    "owner_gone": (errors.owner_gone("b1"), 503, "response_owner_unavailable"),
    "pin_gone": (errors.pin_gone("b1"), 503, "conversation_owner_unavailable"),
    "bad_handshake": (errors.bad_handshake("has no Sec-WebSocket-Key"), 400, "bad_handshake"),
    "upgrade_required": (errors.upgrade_required("can only be a WebSocket; ask for one"), 426, "upgrade_required"),
}
ANTHROPIC_TYPES = {
    "not_http": "invalid_request_error",
    "not_one_host": "invalid_request_error",
    "head_too_large": "invalid_request_error",
    "too_many_headers": "invalid_request_error",
    "head_too_slow": "timeout_error",
    "body_too_slow": "timeout_error",
    "too_many_connections": "overloaded_error",
    "not_for_clients": "invalid_request_error",
    "not_readable": "invalid_request_error",
    "asks_too_much": "invalid_request_error",
    "response_not_found": "not_found_error",
    "tenant_limit": "rate_limit_error",
    "no_key": "authentication_error",
    "not_found": "not_found_error",
    "method_not_allowed": "invalid_request_error",
    "body_too_large": "request_too_large",
    "unknown_model": "not_found_error",
    "none_available": "overloaded_error",
    "all_failed": "api_error",
    "own_fault": "overloaded_error",
    "broke_off": "api_error",
    "internal": "api_error",
    "busy": "overloaded_error",
    "owner_gone": "overloaded_error",
    "pin_gone": "overloaded_error",
    "bad_handshake": "invalid_request_error",
    "upgrade_required": "invalid_request_error",
}

every = pytest.mark.parametrize("name", list(ALL))


@every
@pytest.mark.parametrize("protocol", [Protocol.OPENAI, Protocol.RESPONSES])
def test_openai_shape(name: str, protocol: Protocol) -> None:
    error, status, code = ALL[name]
    assert error.status == status
    kind = "rate_limit_error" if status == 429 else "invalid_request_error" if status < 500 else "server_error"
    assert json.loads(error.body(protocol)) == {
        "error": {"message": error.message, "type": kind, "code": code, "param": None}
    }


@every
def test_anthropic_shape(name: str) -> None:
    error = ALL[name][0]
    assert json.loads(error.body(Protocol.ANTHROPIC)) == {
        "type": "error",
        "error": {"type": ANTHROPIC_TYPES[name], "message": error.message},
    }


@every
@pytest.mark.parametrize("protocol", list(Protocol))
def test_as_an_event_it_stands_on_lines_of_its_own(name: str, protocol: Protocol) -> None:
    error = ALL[name][0]
    event = error.event(protocol)
    head = b"" if protocol is Protocol.OPENAI else b"event: error\n"
    assert event.startswith(head + b"data: {")
    shown, body = json.loads(event.removeprefix(head).removeprefix(b"data: ")), json.loads(error.body(protocol))
    assert shown == body if protocol is not Protocol.RESPONSES else shown["error"] == body["error"]
    assert b"[DONE]" not in event
    assert event.count(b"\n\n") == 1


@every
def test_in_a_stream_of_responses_it_is_one_of_their_events(name: str) -> None:
    error, _, code = ALL[name]
    event = error.event(Protocol.RESPONSES, 7)
    shown = json.loads(event.removeprefix(b"event: error\ndata: "))
    whole = json.loads(error.body(Protocol.RESPONSES))
    assert shown == {
        "type": "error",
        "code": code,
        "message": error.message,
        "param": None,
        "sequence_number": 7,
        "error": whole["error"],
    }


def test_every_constructor_is_covered() -> None:
    made = {
        name
        for name, value in vars(errors).items()
        if callable(value) and getattr(value, "__module__", "") == errors.__name__ and not name.startswith("_")
    }
    assert made - {RouterError.__name__, Code.__name__} == set(ALL)


def test_every_code_is_made_by_somebody() -> None:
    assert {error.code for error, _, _ in ALL.values()} == set(Code)


@pytest.mark.parametrize("why", list(Why))
def test_a_stream_that_ends_with_an_error_says_why_it_was_not_gone_on_with(why: Why) -> None:
    error = errors.broke_off("a closed the connection", why)
    assert error.message.startswith("the answer broke off: a closed the connection; ")
    assert "ask again" in error.message
    assert error.code is (Code.ROUTER_UNAVAILABLE if why is Why.STOPPING else Code.BACKEND_FAILED)
    others = {errors.broke_off("a closed the connection", other).message for other in Why if other is not why}
    assert error.message not in others


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("not_found", ["'/sleep'", "reference"]),
        ("no_key", ["shows no key", "listen.keys"]),
        ("not_http", ["nothing of it was sent on", "look at"]),
        ("not_one_host", ["one Host header", "look at"]),
        ("head_too_large", ["1024 bytes", "send fewer"]),
        ("too_many_headers", ["100 headers", "send fewer"]),
        ("head_too_slow", ["limits.head_timeout", "send it again"]),
        ("body_too_slow", ["limits.min_body_rate", "send it again"]),
        ("too_many_connections", ["10 connections", "try again", "limits.max_connections"]),
        ("method_not_allowed", ["/v1/models takes GET or HEAD"]),
        ("busy", ["as many requests as it may have", "try again"]),
        ("owner_gone", ["b1", "try again", "messages"]),
        ("pin_gone", ["b1", "affinity.when_gone", "try again"]),
        ("bad_handshake", ["Sec-WebSocket-Key", "look at"]),
        ("body_too_large", ["1024 bytes", "limits.body"]),
        ("unknown_model", ["'x'", "choose one", "m, n"]),
        ("none_available", ["a is down (timed out); b is starting", "try again"]),
        ("all_failed", ["a: connection refused by a:8000", "try again"]),
        ("own_fault", ["no file descriptor is left", "try again"]),
        ("broke_off", ["the connection to a broke", "ask again"]),
        ("internal", ["its log says why"]),
    ],
)
def test_each_says_what_happened_and_what_to_do(name: str, told: list[str]) -> None:
    message = ALL[name][0].message
    assert all(part in message for part in told)
    assert "\n" not in message


@every
def test_waiting_is_advised_where_it_helps_and_only_there(name: str) -> None:
    error = ALL[name][0]
    headers = dict(error.headers())
    assert headers[b"content-type"] == b"application/json"
    waits = {
        "none_available": b"2",
        "all_failed": b"1",
        "own_fault": b"1",
        "owner_gone": b"2",
        "pin_gone": b"2",
        "busy": b"1",
        "too_many_connections": b"2",
        "tenant_limit": b"3",
    }
    assert headers.get(b"retry-after") == waits.get(name)
    assert headers.get(b"allow") == (b"GET, HEAD" if name == "method_not_allowed" else None)


def test_where_no_reason_or_model_is_known_there_is_still_a_sentence() -> None:
    assert "no backend can take this request" in errors.none_available([]).message
    assert "none yet" in errors.unknown_model("x", []).message


@pytest.mark.parametrize("odd", ["a\r\nb", '"', "\ud800", "\x00", "é😀"], ids=ascii)
def test_what_a_client_typed_cannot_spoil_an_error(odd: str) -> None:
    for error in (errors.not_found(odd), errors.unknown_model(odd, ["m"])):
        body = json.loads(error.body(Protocol.OPENAI))
        assert repr(odd) in body["error"]["message"]
        assert error.event(Protocol.OPENAI).count(b"\n") == 2


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/messages", "/v1/messages"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("//v1/chat/completions", "/v1/chat/completions"),
        ("/api/v1/models", "/v1/models"),
        ("/openai/deployments/x", None),
        ("/sleep", None),
        ("/v1/sleep", None),
        ("/v1/load_lora_adapter", None),
        ("/", None),
        ("", None),
    ],
)
def test_a_wrong_base_url_is_told_the_path_that_was_meant(path: str, meant: str | None) -> None:
    message = errors.not_found(path).message
    if meant is None:
        assert "did you mean" not in message
    else:
        assert f"did you mean {meant!r}?" in message
        assert "base URL" in message


def test_what_a_client_typed_is_repeated_in_part() -> None:
    for message in (
        errors.not_found("/v1/models/" + "a" * 60_000).message,
        errors.unknown_model("m" * 9_999, []).message,
    ):
        assert len(message) < 600
    many = errors.unknown_model("x", [f"m{i}" for i in range(1000)]).message
    assert "m49 and 950 more" in many
