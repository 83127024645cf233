"""Errors that the router makes itself: in the shape of the client's API, saying what happened and what to do."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import msgspec

from ..core import routes
from ..core.resume import Why
from ..core.routes import Protocol

_LONGEST_SHOWN = 200
"""Characters of what a client typed that its answer repeats."""
_MOST_NAMES = 50


class Code(StrEnum):
    """What went wrong, for programs: the `code` of an error. Each has its `status`; docs/errors.md tells cause and cure."""

    status: int

    def __new__(cls, code: str, status: int) -> Self:
        member = str.__new__(cls, code)
        member._value_ = code
        member.status = status
        return member

    BAD_REQUEST = "bad_request", 400
    BAD_HANDSHAKE = "bad_handshake", 400
    NOT_FOR_CLIENTS = "not_for_clients", 400
    INVALID_API_KEY = "invalid_api_key", 401
    ASKS_TOO_MUCH = "asks_too_much", 400
    UNKNOWN_PATH = "unknown_path", 404
    MODEL_NOT_FOUND = "model_not_found", 404
    RESPONSE_NOT_FOUND = "response_not_found", 404
    METHOD_NOT_ALLOWED = "method_not_allowed", 405
    HEAD_TIMEOUT = "head_timeout", 408
    BODY_TIMEOUT = "body_timeout", 408
    BODY_TOO_LARGE = "body_too_large", 413
    UPGRADE_REQUIRED = "upgrade_required", 426
    TENANT_LIMIT = "tenant_limit", 429
    HEADERS_TOO_LARGE = "headers_too_large", 431
    ROUTER_ERROR = "router_error", 500
    BACKEND_FAILED = "backend_failed", 502
    NO_BACKEND_AVAILABLE = "no_backend_available", 503
    OVERLOADED = "overloaded", 503
    RESPONSE_OWNER_UNAVAILABLE = "response_owner_unavailable", 503
    CONVERSATION_OWNER_UNAVAILABLE = "conversation_owner_unavailable", 503
    ROUTER_UNAVAILABLE = "router_unavailable", 503
    TOO_MANY_CONNECTIONS = "too_many_connections", 503


_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    426: "invalid_request_error",
    431: "invalid_request_error",
    503: "overloaded_error",
}


@dataclass(frozen=True, slots=True)
class RouterError:
    """One error answer. `retry_after` is in seconds, given where waiting helps."""

    code: Code
    message: str
    retry_after: int | None = None
    allow: tuple[str, ...] = ()
    challenge: bool = False

    @property
    def status(self) -> int:
        return self.code.status

    def type(self, protocol: Protocol) -> str:
        """The kind of error in the words of the client's API."""
        if protocol is Protocol.ANTHROPIC:
            return _ANTHROPIC_TYPES.get(self.status, "api_error")
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self, protocol: Protocol) -> bytes:
        return msgspec.json.encode(self._payload(protocol))

    def event(self, protocol: Protocol, number: int = 0) -> bytes:
        """The error as an event, for a stream that has begun. `number` is its place among the events of a response."""
        payload = self._payload(protocol)
        if protocol is Protocol.RESPONSES:
            # Clients of this API look at the event itself, or at the `error` in it as in every other stream: both are there.
            told = {"code": self.code, "message": self.message, "param": None}
            payload = {"type": "error", **told, "sequence_number": number, **payload}
        prefix = b"" if protocol is Protocol.OPENAI else b"event: error\n"
        return prefix + b"data: " + msgspec.json.encode(payload) + b"\n\n"

    def headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"content-type", b"application/json")]
        if self.retry_after is not None:
            headers.append((b"retry-after", str(self.retry_after).encode()))
        if self.challenge:
            headers.append((b"www-authenticate", b"Bearer"))
        if self.allow:
            headers.append((b"allow", ", ".join(self.allow).encode()))
        if self.code is Code.UPGRADE_REQUIRED:
            headers += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket"), (b"sec-websocket-version", b"13")]
        return headers

    def _payload(self, protocol: Protocol) -> dict[str, object]:
        if protocol is Protocol.ANTHROPIC:
            return {"type": "error", "error": {"type": self.type(protocol), "message": self.message}}
        return {"error": {"message": self.message, "type": self.type(protocol), "code": self.code, "param": None}}


def not_http() -> RouterError:
    return RouterError(
        Code.BAD_REQUEST,
        "this is not a valid HTTP/1.1 request, and nothing of it was sent on; look at the client and at any proxy before"
        " the router, where TLS and HTTP/2 must end",
    )


def not_one_host() -> RouterError:
    return RouterError(
        Code.BAD_REQUEST,
        "a request must have one Host header, neither none nor several; look at the client and at any proxy before the router",
    )


def head_too_large(limit: int) -> RouterError:
    return RouterError(
        Code.HEADERS_TOO_LARGE,
        f"the request's line and headers are larger than {limit} bytes; send fewer or shorter ones (cookies are often the"
        " cause)",
    )


def too_many_headers(limit: int) -> RouterError:
    return RouterError(Code.HEADERS_TOO_LARGE, f"the request has more than {limit} headers; send fewer")


def head_too_slow() -> RouterError:
    return RouterError(
        Code.HEAD_TIMEOUT,
        "the request's headers did not arrive within limits.head_timeout of the router; send it again",
    )


def body_too_slow() -> RouterError:
    return RouterError(
        Code.BODY_TIMEOUT,
        "the request's body stopped, or came more slowly than limits.min_body_rate of the router; send it again",
    )


def too_many_connections(limit: int) -> RouterError:
    return RouterError(
        Code.TOO_MANY_CONNECTIONS,
        f"the router has {limit} connections already; try again shortly, or raise limits.max_connections",
        retry_after=2,
    )


def no_key() -> RouterError:
    return RouterError(
        Code.INVALID_API_KEY,
        "the request shows no key that this router knows; give the client one of listen.keys as its API key",
        challenge=True,
    )


def not_for_clients(what: str, key: str) -> RouterError:
    return RouterError(
        Code.NOT_FOR_CLIENTS, f"{what} is not for clients to set here; leave it out, or allow it by {key} of the router"
    )


def not_readable(what: str = "the body is no JSON in UTF-8") -> RouterError:
    return RouterError(
        Code.NOT_FOR_CLIENTS,
        f"{what}, so that it may hide a field that is not for clients to set here (see forward.priority,"
        " forward.kv_transfer_params, isolation and tenants of the router); mend the body",
    )


def tenant_limit(tenant: str, limit: str, most: float, retry_after: int) -> RouterError:
    return RouterError(
        Code.TENANT_LIMIT,
        f"{tenant} uses as much as it may: tenants.{tenant}.{limit} is {most:g}; try again in {retry_after} s",
        retry_after=retry_after,
    )


def asks_too_much(tenant: str, field: str, most: int) -> RouterError:
    return RouterError(
        Code.ASKS_TOO_MUCH,
        f"{field} is more than {tenant} may ask for, which is {most} (tenants.{tenant}.{field}); ask for less",
    )


def response_not_found() -> RouterError:
    return RouterError(
        Code.RESPONSE_NOT_FOUND,
        "nobody here has made the response that this request names; send the conversation's messages instead",
    )


def not_found(path: str) -> RouterError:
    meant = _meant(path)
    cure = (
        f"did you mean {_shown(meant)}? Then mend the base URL that the client was given"
        if meant is not None
        else "docs/reference.md lists those that are"
    )
    return RouterError(Code.UNKNOWN_PATH, f"{_shown(path)} is not a path of the model API; {cure}")


def method_not_allowed(label: str, methods: tuple[str, ...]) -> RouterError:
    return RouterError(
        Code.METHOD_NOT_ALLOWED, f"{label} takes {' or '.join(methods)} and no other method", allow=methods
    )


def upgrade_required(what: str) -> RouterError:
    return RouterError(Code.UPGRADE_REQUIRED, f"/v1/realtime {what}")


def bad_handshake(why: str) -> RouterError:
    return RouterError(
        Code.BAD_HANDSHAKE, f"this WebSocket handshake {why}; look at the client, and at any proxy before the router"
    )


def body_too_large(limit: int) -> RouterError:
    return RouterError(
        Code.BODY_TOO_LARGE,
        f"the request's body is larger than {limit} bytes; send less, or raise limits.body of the router, or of the tenant",
    )


def unknown_model(model: str, known: list[str]) -> RouterError:
    more = f" and {len(known) - _MOST_NAMES} more" if len(known) > _MOST_NAMES else ""
    names = ", ".join(known[:_MOST_NAMES]) + more if known else "none yet"
    return RouterError(
        Code.MODEL_NOT_FOUND, f"no backend serves the model {_shown(model)}; choose one of the models here: {names}"
    )


def none_available(reasons: list[str]) -> RouterError:
    why = "; ".join(reasons) or "no backend can take this request"
    return RouterError(Code.NO_BACKEND_AVAILABLE, f"no backend is available: {why}; try again shortly", retry_after=2)


def busy(backend: str | None) -> RouterError:
    who = f"{backend}, which holds this conversation," if backend else "every backend that can take this request"
    return RouterError(
        Code.OVERLOADED,
        f"{who} has as many requests as it may have, and as many wait or have waited too long; try again shortly",
        retry_after=1,
    )


def owner_gone(backend: str) -> RouterError:
    return RouterError(
        Code.RESPONSE_OWNER_UNAVAILABLE,
        f"the response that this request names is held by {backend} alone, which cannot be asked now; try again shortly,"
        " or send the conversation's messages instead of previous_response_id",
        retry_after=2,
    )


def pin_gone(backend: str | None) -> RouterError:
    return RouterError(
        Code.CONVERSATION_OWNER_UNAVAILABLE,
        f"{backend}, which holds this conversation, cannot be asked now, and conversations do not move here"
        " (affinity.when_gone); try again shortly",
        retry_after=2,
    )


def all_failed(failures: list[str]) -> RouterError:
    return RouterError(
        Code.BACKEND_FAILED,
        f"the backends failed before answering: {'; '.join(failures)}; try again",
        retry_after=1,
    )


def own_fault(detail: str) -> RouterError:
    return RouterError(Code.ROUTER_UNAVAILABLE, f"{detail}; try again shortly", retry_after=1)


_NOT_GONE_ON_WITH: Mapping[Why, str] = {
    Why.OFF: "the router is not to continue answers elsewhere (resume.enabled)",
    Why.PROTOCOL: "answers of this API cannot be continued elsewhere",
    Why.TOKENS_UNKNOWN: "it could not be continued elsewhere, as not all of its tokens were known",
    Why.BOUNDARY: "it could not be continued elsewhere, as the place of the cut among its tokens was not to be found",
    Why.REASONING: "it could not be continued elsewhere, as it was cut while the model was thinking",
    Why.FIELD: "it could not be continued elsewhere, as the request has a field that does not allow it",
    Why.LENGTH: "it could not be continued elsewhere, as nothing tells how long it may become",
    Why.FAILED: "no other backend could continue it",
}


def broke_off(detail: str, why: Why) -> RouterError:
    """For a stream that has begun; `why` it could not be gone on with."""
    if why is Why.STOPPING:
        return RouterError(Code.ROUTER_UNAVAILABLE, f"the answer broke off: {detail}; ask again")
    return RouterError(
        Code.BACKEND_FAILED, f"the answer broke off: {detail}; {_NOT_GONE_ON_WITH[why]}; ask again for a whole one"
    )


def internal() -> RouterError:
    return RouterError(
        Code.ROUTER_ERROR, "the router failed at this request; its log says why, and the next one may well work"
    )


def _shown(text: str) -> str:
    """What a client typed, in quotes, safe in one line and short."""
    return repr(text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "...")


def _meant(path: str) -> str | None:
    """The path of the model API that a client with a wrong base URL meant, if it is plain."""
    return next((near for near in _nearby(path) if routes.find(near.encode("utf-8", "replace")) is not None), None)


def _nearby(path: str) -> Iterable[str]:
    bare = "/" + path.strip("/")
    yield bare
    yield "/v1" + bare
    for prefix in ("/v1", "/api", "/openai", "/openai/v1", "/anthropic", "/api/v1"):
        if bare.startswith(prefix + "/"):
            yield bare.removeprefix(prefix)
            yield "/v1" + bare.removeprefix(prefix)
