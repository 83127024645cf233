"""Which headers pass, in both directions, and the bytes of the request that is sent on."""

import re
from collections.abc import Sequence
from typing import NamedTuple

Headers = Sequence[tuple[bytes, bytes]]
"""Name and value pairs in the order they came; names are lower case."""

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
"""Headers of one connection (RFC 9110, 7.6.1), and those between a client and its proxy."""

NEVER_SENT_ON = _HOP_BY_HOP | {b"content-length", b"expect", b"host", b"x-data-parallel-rank", b"x-request-id"}
"""Headers of a request that the router sets itself or has answered itself."""
_TOLD_BY_US = frozenset({b"x-request-id", b"x-warmroute-backend", b"x-warmroute-decision", b"x-warmroute-key"})
_NOT_PASSED_ON = _HOP_BY_HOP | _TOLD_BY_US
_NOR_COOKIES = _NOT_PASSED_ON | {b"set-cookie"}
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def request_id(given: bytes | None, fresh: str) -> str:
    """The client's x-request-id if it is safe in logs and as vLLM's own request id, else the fresh one."""
    return given.decode() if given is not None and _REQUEST_ID.fullmatch(given) else fresh


def first_values(headers: Headers) -> dict[bytes, bytes]:
    """Name -> value; of a header that is repeated the first one."""
    return dict(reversed(headers))


def _named(connection: bytes) -> set[bytes]:
    """The headers that a Connection header names as belonging to this hop."""
    return {token.strip().lower() for token in connection.split(b",")} - {b"close", b"keep-alive", b""}


def _passing(headers: Headers, drop: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
    """The headers but those to drop and those that a Connection header names; names are lower case."""
    passing = []
    named = None
    for pair in headers:
        name = pair[0]
        if name not in drop:
            passing.append(pair)
        elif name == b"connection" and pair[1] != b"keep-alive":
            named = (named or set()) | _named(pair[1])
    return [pair for pair in passing if pair[0] not in named] if named else passing


def as_lines(headers: Headers) -> bytes:
    """Headers as they are written. Raises ValueError for one that has a line break in it."""
    lines = b"".join([b"%b: %b\r\n" % pair for pair in headers])
    if not lines.count(b"\r") == lines.count(b"\n") == len(headers):
        raise ValueError("a header has a line break in it")
    return lines


class SentOn(NamedTuple):
    """What of a request's headers a backend gets: their names, and all of them as lines."""

    names: frozenset[bytes]
    lines: bytes


def sent_on(headers: Headers, drop: frozenset[bytes] = NEVER_SENT_ON) -> SentOn:
    """The client's headers without those to drop, which hold NEVER_SENT_ON, and those that are of its hop alone."""
    passing = _passing(headers, drop)
    return SentOn(frozenset(name for name, _ in passing), b"".join(b"%b: %b\r\n" % pair for pair in passing))


def request_head(
    method: str,
    target: bytes,
    client: SentOn,
    *,
    host: bytes,
    body_length: int | None,
    extra: Headers = (),
) -> bytes:
    """The head of the request to a backend. A header among `extra` takes the place of the client's own.

    The target is sent as it came, percent-encoding and all. `body_length` is None for a request without a body.
    """
    lines, ours = client.lines, list[bytes]()
    for name, value in extra:
        ours += (name, b": ", value, b"\r\n")
        if name in client.names:
            lines = _without(name, lines)
    parts = [method.encode(), b" ", target, b" HTTP/1.1\r\nhost: ", host, b"\r\n", lines, *ours]
    if body_length is not None:
        parts.append(b"content-length: %d\r\n" % body_length)
    parts.append(b"\r\n")
    return b"".join(parts)


def _without(name: bytes, lines: bytes) -> bytes:
    """Header lines, but for those of this name."""
    return b"".join(line for line in lines.splitlines(keepends=True) if not line.startswith(name + b": "))


def response_headers(headers: Headers, *, cookies: bool = False) -> list[tuple[bytes, bytes]]:
    """The headers of a backend's answer that go to the client; repeated ones stay repeated.

    Cookies are set where clients' `cookies` travel on.
    """
    return _passing(headers, _NOT_PASSED_ON if cookies else _NOR_COOKIES)
