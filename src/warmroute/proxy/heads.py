"""The head of a request: what it says, what is wrong with it that the parser lets pass, and those that have come before."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from httptools import parse_url

from ..core.headers import Headers, SentOn, first_values, sent_on
from ..recognition.recent import Recent
from . import errors
from .errors import RouterError
from .keys import without_keys

_MOST_HEADERS = 100


@dataclass(slots=True)
class Head:
    """One request's line and headers, but for its body's length. Names are lower case; `named` has each one's first value.

    `path` and `target` (with the query) are as they came. `expects`: the body comes only when the client has seen a 100.
    """

    method: str
    path: bytes
    target: bytes
    version: str
    headers: list[tuple[bytes, bytes]]
    named: dict[bytes, bytes]
    keep_alive: bool
    expects: bool
    _sent_on: tuple[frozenset[bytes], SentOn] | None = field(default=None, init=False, compare=False, repr=False)
    _keyless: "Head | None" = field(default=None, init=False, compare=False, repr=False)

    @classmethod
    def of(
        cls, method: str, url: bytes, version: str, headers: list[tuple[bytes, bytes]], *, keep_alive: bool
    ) -> "Head":
        """What a parser has found. Raises ValueError for a target that is no path."""
        parsed = parse_url(url)
        path = parsed.path
        if path is None or not path.isascii():
            raise ValueError("no path")
        headers = [pair for pair in headers if pair[0] != b"content-length"]
        expects = any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)
        target = path + b"?" + parsed.query if parsed.query else path
        return cls(
            method, path, target, version, headers, first_values(headers), keep_alive and version != "1.0", expects
        )

    def sent_on(self, drop: frozenset[bytes]) -> SentOn:
        """What a backend gets of it, without the headers to drop; made once for all turns that have the same head."""
        if self._sent_on is None or self._sent_on[0] is not drop:
            self._sent_on = drop, sent_on(self.headers, drop)
        return self._sent_on[1]

    def keyless(self) -> "Head":
        """It without the credentials that the client shows to the router; made once, too."""
        if self._keyless is None:
            headers = without_keys(self.headers)
            self._keyless = replace(self, headers=headers, named=first_values(headers))
        return self._keyless


def fault_of(headers: Headers, version: str) -> RouterError | None:
    """The error of such a head, None if it is well. Two servers that read a head in two ways can be played off
    against each other, so what is doubtful is refused."""
    names = [name for name, _ in headers]
    if len(names) > _MOST_HEADERS:
        return errors.too_many_headers(_MOST_HEADERS)
    if names.count(b"host") != 1 and (version != "1.0" or b"host" in names):
        return errors.not_one_host()
    if version not in ("1.1", "1.0"):
        return errors.not_http()
    if b"transfer-encoding" in names:
        coded = [value.lower() for name, value in headers if name == b"transfer-encoding"]
        if coded != [b"chunked"] or version == "1.0":
            return errors.not_http()
    return None


def size_of(url: bytes, headers: Headers) -> int:
    """Bytes of a head's target, names and values."""
    return len(url) + sum(len(name) + len(value) for name, value in headers)


LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ?([0-9]{1,9})\r\n")
"""A body's length as nearly everybody writes it."""
_LONGEST = 4096
"""Bytes of a head that is worth being remembered."""
_MOST = 2048
_OFTEN = 600.0
"""Seconds after which a head that does not come again is forgotten, credentials and all."""
_SINGULAR = frozenset((b"transfer-encoding", b"upgrade", b"expect", b"x-request-id", b"traceparent"))
"""Headers of requests that the parser has to see, or that come only once."""


@dataclass(slots=True)
class Found:
    """The head at the beginning of some bytes, by everything in it but its length: the bytes in which its body begins, the
    body's length, and what is known of it."""

    key: bytes
    begins: int
    length: int
    head: Head | None


class KnownHeads:
    """Heads that were parsed, and refused by nobody, found again by their bytes.

    A client sends the same head with each turn, but for the length of its body: to read it again takes a tenth of what the
    whole request costs. Exactly the same bytes are looked for, so nothing is understood otherwise than the parser did.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._heads: Recent[Head] = Recent(clock, expiry=_OFTEN, limit=_MOST)

    def __repr__(self) -> str:
        return f"<KnownHeads {len(self._heads)}>"

    def find(self, data: bytes) -> Found | None:
        """The head that these bytes begin with; None if it is not whole, is long, or tells no length in the usual way."""
        end = data.find(b"\r\n\r\n", 0, _LONGEST)
        length = LENGTH.search(data, 0, end + 2) if end > 0 else None
        if length is None:
            return None
        at, behind = length.span(1)
        key = data[:at] + data[behind:end]
        return Found(key, end + 4, int(length[1]), self._heads.renew(key))

    def learn(self, found: Found, head: Head, length: int | None) -> None:
        """Remember what the parser made of it, if that is what any further one means.

        It has a line for each header and for one length, and nothing that makes the parser read what is behind it in another
        way.
        """
        lines = len(head.headers) + 1
        as_lines = all(found.key.count(end) == lines for end in (b"\r\n", b"\r", b"\n"))
        if as_lines and length == found.length and head.keep_alive and _SINGULAR.isdisjoint(head.named):
            self._heads.put(found.key, head)
