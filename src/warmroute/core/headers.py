"""Which headers pass, in both directions, and the bytes of the request that is sent on."""

import re
from collections.abc import Iterable, Sequence

Headers = Sequence[tuple[bytes, bytes]]
"""Name and value pairs in the order they came; request names are lower case."""

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers of one connection (RFC 9110, 7.6.1), with the two that no client may send through."""

_SET_BY_US = frozenset({b"content-length", b"expect", b"host", b"x-data-parallel-rank", b"x-request-id"})
_NOT_SENT_ON = _HOP_BY_HOP | _SET_BY_US
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def request_id(headers: Headers, fresh: str) -> str:
    """The client's x-request-id if it is safe in logs and as vLLM's own request id, else the fresh one."""
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value.decode()
    return fresh


def _named_in_connection(headers: Headers) -> set[bytes]:
    named: set[bytes] = set()
    for name, value in headers:
        if name.lower() == b"connection":
            named.update(token.strip().lower() for token in value.split(b","))
    return named


def request_head(
    method: str,
    target: bytes,
    headers: Headers,
    *,
    host: bytes,
    body_length: int | None,
    extra: Iterable[tuple[bytes, bytes]] = (),
) -> bytes:
    """The head of the request to a backend.

    The target is sent as it came, percent-encoding and all. `body_length` is None for a request without a body.
    """
    drop = _NOT_SENT_ON
    if named := _named_in_connection(headers) - {b"close", b"keep-alive"}:
        drop = drop | named
    parts = [method.encode(), b" ", target, b" HTTP/1.1\r\nhost: ", host, b"\r\n"]
    for name, value in headers:
        if name not in drop:
            parts += (name, b": ", value, b"\r\n")
    for name, value in extra:
        parts += (name, b": ", value, b"\r\n")
    if body_length is not None:
        parts.append(b"content-length: %d\r\n" % body_length)
    parts.append(b"\r\n")
    return b"".join(parts)


def response_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The headers of a backend's answer that go to the client; repeated ones stay repeated."""
    drop: frozenset[bytes] | set[bytes] = _HOP_BY_HOP
    if named := _named_in_connection(headers) - {b"close", b"keep-alive"}:
        drop = drop | named
    return [(name, value) for name, value in headers if name.lower() not in drop]


def header_value(headers: Headers, wanted: bytes) -> bytes | None:
    """The first value of a header, or None; `wanted` is lower case."""
    for name, value in headers:
        if name.lower() == wanted:
            return value
    return None
