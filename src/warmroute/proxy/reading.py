"""Reads requests off a client's bytes, strictly: a head as it was known before, or by the parser; ignores upgrades."""

import re
from enum import Enum

import httptools

from ..core import routes
from . import errors
from .client import Client
from .errors import RouterError
from .heads import Found, Head, KnownHeads, fault_of, size_of

_HEAD_LIMIT = 64 << 10
"""Bytes of a request's line and headers, and of what surrounds the parts of a chunked body."""
_REQUEST_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64} ([!-~]+) HTTP/1\.[01]\r\n")


class _At(Enum):
    """Which part of a request comes next: its first byte, the rest of its head, or of its body."""

    START = 0
    HEAD = 1
    BODY = 2


START, HEAD, BODY = _At


class _Refused(Exception):
    """The head of a request is refused; it ends the parser's work."""


class Reading:
    """Takes a connection's bytes and makes requests of them, one behind the other.

    `latest` is the request that is read, or was read last. What becomes of a request is for the connection to say: it is told
    of each head by `_begin`, and of what is not well by `_refuse` and `_end_body`. `_deaf`: nothing more is heard.
    """

    latest: Client | None = None
    url = b""
    _at = START
    _owed = 0
    _new: Found | None = None
    _head_bytes = 0
    _body_bytes = 0
    _framing_bytes = 0
    _replaying = False
    _deaf = False
    _refusal: RouterError | None = None

    def __init__(self, known: KnownHeads) -> None:
        self._known = known
        self.headers: list[tuple[bytes, bytes]] = []
        self.parser = httptools.HttpRequestParser(self)
        # A request behind one that closes is not answered, but the one before it is.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _begin(self, head: Head, length: int | None) -> None:
        """A request has begun, whose body has this many bytes if it says so: make it the latest."""
        raise NotImplementedError

    def _refuse(self, error: RouterError) -> None:
        """Answer with this error and hear no more, behind the answers that are on their way."""
        raise NotImplementedError

    def _end_body(self, error: RouterError) -> None:
        """The body being read will not be whole."""
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        while data and not self._deaf:
            if self._owed:
                data = self._go_on(data)
                continue
            # Behind a request that closes the connection the parser hears nothing any more.
            hears = self._at is START and (self.latest is None or self.latest.keep_alive)
            new = self._known.find(data) if hears else None
            if new is None or new.head is None:
                self._new = new
                self._parse(data)
                break
            self._head(new.head, new.length)
            self._owed = new.length
            data = data[new.begins :]
            if not new.length:
                self.on_message_complete()

    def _go_on(self, data: bytes) -> bytes:
        """Take what comes of the body of a request whose head was known; returns what is behind it."""
        owed = self._owed
        self._owed = max(0, owed - len(data))
        self.on_body(data if self._owed or len(data) == owed else data[:owed])
        if not self._owed:
            self.on_message_complete()
        return data[owed:]

    def _parse(self, data: bytes) -> None:
        if self._at is not BODY:
            self._head_bytes += len(data)
        had = self._body_bytes
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserInvalidMethodError:
            began_here = self._head_bytes == len(data)
            self._refuse(self._unknown_method(data) if began_here else errors.not_http())
        except httptools.HttpParserError:
            self._garbled()
        if self._deaf:
            return
        if self._at is BODY:
            self._framing_bytes = 0 if self._body_bytes != had else self._framing_bytes + len(data)
            if self._framing_bytes > _HEAD_LIMIT:
                self._garbled()
        elif self._head_bytes > _HEAD_LIMIT:
            self._refuse(errors.head_too_large(_HEAD_LIMIT))

    # What the parser calls

    def on_message_begin(self) -> None:
        if not self._replaying:
            self._at = HEAD
            self.url, self.headers = b"", []

    def on_url(self, url: bytes) -> None:
        if not self._replaying:
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer would come here too: it must not look like a header (RFC 9110, 6.5.1), and nobody needs one.
        if self._at is HEAD:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._replaying:
            self._at = BODY
            return
        parser, headers = self.parser, self.headers
        version = parser.get_http_version()
        self._refusal = fault_of(headers, version)
        if self._head_bytes > _HEAD_LIMIT and size_of(self.url, headers) > _HEAD_LIMIT:  # it came whole in one read
            self._refusal = errors.head_too_large(_HEAD_LIMIT)
        if self._refusal is not None:
            raise _Refused
        head = Head.of(parser.get_method().decode(), self.url, version, headers, keep_alive=parser.should_keep_alive())
        length = next((int(value) for name, value in headers if name == b"content-length"), None)
        if self._new is not None:
            self._known.learn(self._new, head, length)
            self._new = None
        self._head(head, length)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        assert self.latest is not None
        self.latest.comes(body)

    def on_message_complete(self) -> None:
        self._at = START
        assert self.latest is not None
        self.latest.ends()

    def _head(self, head: Head, length: int | None) -> None:
        self._at, self._head_bytes, self._framing_bytes = BODY, 0, 0
        self._begin(head, length)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Go on as if nobody had asked for another protocol (RFC 9110, 7.8: a server may).

        The parser takes the end of such a head for the end of HTTP and never looks at the body. Java's client offers HTTP/2
        in this way by default. A fresh parser takes over behind the head, told only how the body is framed.
        """
        framing = [pair for pair in self.headers if pair[0] in (b"content-length", b"transfer-encoding")]
        self.parser = httptools.HttpRequestParser(self)
        self._replaying = True
        head = b"POST / HTTP/1.1\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in framing)
        try:
            self.parser.feed_data(head + b"\r\n")
        finally:
            self._replaying = False
        if self._at is BODY and self.latest is not None:
            self.latest.whole = False
        if rest:
            self.data_received(rest)

    # What is no request

    def _garbled(self) -> None:
        if self._at is BODY:
            self._end_body(errors.not_http())
        else:
            self._refuse(self._refusal or errors.not_http())

    def _unknown_method(self, data: bytes) -> RouterError:
        """The answer to a method that the parser does not know, if all else of the request's line is HTTP."""
        line = _REQUEST_LINE.match(data)
        if line is None:
            return errors.not_http()
        self.url = line[1]
        route = routes.find(line[1].partition(b"?")[0])
        if route is None:
            return errors.not_found(line[1].decode())
        return errors.method_not_allowed(route.label, route.methods)
