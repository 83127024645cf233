"""Errors that the router makes itself: in the shape of the client's API, saying what happened and what to do."""

from dataclasses import dataclass

import msgspec

from ..core.routes import Protocol

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    431: "invalid_request_error",
    503: "overloaded_error",
}


@dataclass(frozen=True, slots=True)
class RouterError:
    """One error answer. `retry_after` is in seconds, given where waiting helps."""

    status: int
    code: str
    message: str
    retry_after: int | None = None
    allow: tuple[str, ...] = ()

    def body(self, protocol: Protocol) -> bytes:
        return msgspec.json.encode(self._payload(protocol))

    def event(self, protocol: Protocol) -> bytes:
        """The error as an event, for a stream that has begun."""
        prefix = b"event: error\n" if protocol is Protocol.ANTHROPIC else b""
        return prefix + b"data: " + self.body(protocol) + b"\n\n"

    def headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"content-type", b"application/json")]
        if self.retry_after is not None:
            headers.append((b"retry-after", str(self.retry_after).encode()))
        if self.allow:
            headers.append((b"allow", ", ".join(self.allow).encode()))
        return headers

    def _payload(self, protocol: Protocol) -> dict[str, object]:
        if protocol is Protocol.ANTHROPIC:
            kind = _ANTHROPIC_TYPES.get(self.status, "api_error")
            return {"type": "error", "error": {"type": kind, "message": self.message}}
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "code": self.code, "param": None}}


def not_http() -> RouterError:
    return RouterError(400, "bad_request", "this is not a valid HTTP/1.1 request; nothing of it was sent on")


def not_one_host() -> RouterError:
    return RouterError(400, "bad_request", "a request must have one Host header, neither none nor several")


def head_too_large(limit: int) -> RouterError:
    return RouterError(431, "headers_too_large", f"the request's headers are larger than {limit} bytes")


def too_many_headers(limit: int) -> RouterError:
    return RouterError(431, "headers_too_large", f"the request has more than {limit} headers")


def head_too_slow() -> RouterError:
    return RouterError(
        408,
        "head_timeout",
        "the request's headers did not arrive within limits.head_timeout of the router; send it again",
    )


def body_too_slow() -> RouterError:
    return RouterError(
        408,
        "body_timeout",
        "the request's body stopped, or came more slowly than limits.min_body_rate of the router; send it again",
    )


def too_many_connections(limit: int) -> RouterError:
    return RouterError(
        503,
        "too_many_connections",
        f"the router has {limit} connections already; try again shortly, or raise limits.max_connections",
        retry_after=2,
    )


def not_found(path: str) -> RouterError:
    return RouterError(
        404, "unknown_path", f"{path!r} is not a path of the model API; docs/reference.md lists those that are"
    )


def method_not_allowed(label: str, methods: tuple[str, ...]) -> RouterError:
    return RouterError(405, "method_not_allowed", f"{label} takes {' or '.join(methods)}", allow=methods)


def body_too_large(limit: int) -> RouterError:
    return RouterError(
        413, "body_too_large", f"the body is larger than {limit} bytes; send less, or raise limits.body of the router"
    )


def unknown_model(model: str, known: list[str]) -> RouterError:
    names = ", ".join(known) or "none yet"
    return RouterError(404, "model_not_found", f"no backend serves the model {model!r}; models here: {names}")


def none_available(reasons: list[str]) -> RouterError:
    why = "; ".join(reasons) or "no backend can take this request"
    return RouterError(503, "no_backend_available", f"no backend is available: {why}; try again shortly", retry_after=2)


def busy(backend: str | None) -> RouterError:
    who = f"{backend}, which holds this conversation," if backend else "every backend that can take this request"
    return RouterError(
        503, "overloaded", f"{who} has as many requests as it may have; try again shortly", retry_after=1
    )


def owner_gone(backend: str) -> RouterError:
    return RouterError(
        503,
        "response_owner_unavailable",
        f"the response that this request names is held by {backend} alone, which cannot be asked now; try again shortly,"
        " or send the conversation's messages instead of previous_response_id",
        retry_after=2,
    )


def all_failed(failures: list[str]) -> RouterError:
    return RouterError(
        502, "backend_failed", f"the backends failed before answering: {'; '.join(failures)}; try again", retry_after=1
    )


def own_fault(detail: str) -> RouterError:
    return RouterError(503, "router_unavailable", f"{detail}; try again shortly", retry_after=1)


def broke_off(detail: str) -> RouterError:
    return RouterError(502, "backend_failed", f"the answer broke off: {detail}; ask again for a whole one")


def internal() -> RouterError:
    return RouterError(
        500, "router_error", "the router failed at this request; its log says why, and the next one may well work"
    )
