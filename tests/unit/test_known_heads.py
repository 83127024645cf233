"""Heads that have come before: found by exactly their bytes, but for the length; never what the parser has to see."""

from dataclasses import replace

import pytest

from warmroute.proxy.heads import Head, KnownHeads
from warmroute.proxy.reading import Reading

ANY = b"POST /v1/chat/completions?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nAuthorization: Bearer k\r\n\r\n"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Request:
    """A request as `Reading` makes it."""

    def __init__(self, head: Head, length: int | None) -> None:
        self.head = head
        self.length = length
        self.body = b""
        self.whole = False
        self.keep_alive = head.keep_alive

    def comes(self, data: bytes) -> None:
        self.body += data

    def ends(self) -> None:
        self.whole = True


class Connection(Reading):
    """Keeps what was read."""

    def __init__(self, known: KnownHeads) -> None:
        super().__init__(known)
        self.requests: list[Request] = []

    def _begin(self, head: Head, length: int | None) -> None:
        self.requests.append(Request(head, length))
        self.latest = self.requests[-1]  # type: ignore[assignment]

    def read(self, data: bytes) -> list[tuple[Head, bytes]]:
        """The requests that these bytes make whole."""
        before = len(self.requests)
        self.data_received(data)
        new = self.requests[before:]
        assert all(request.whole for request in new)
        return [(request.head, request.body) for request in new]

    def knows(self, data: bytes) -> bool:
        found = self._known.find(data)
        return found is not None and found.head is not None


def connection() -> Connection:
    return Connection(KnownHeads(Clock()))


def test_a_head_that_comes_again_is_known_whatever_its_length_says() -> None:
    a = connection()
    ((head, body),) = a.read(ANY + b"hello")
    assert (head.method, head.path, head.target, body) == (
        "POST",
        b"/v1/chat/completions",
        b"/v1/chat/completions?a=b",
        b"hello",
    )
    assert head.headers == [(b"host", b"x"), (b"authorization", b"Bearer k")]
    longer = ANY.replace(b": 5", b": 12")
    del a.parser  # nobody needs it any more
    ((again, body),) = a.read(longer + b"hello, again")
    assert body == b"hello, again"
    assert again == head
    assert [request.length for request in a.requests] == [5, 12]


def test_others_know_it_too() -> None:
    a = connection()
    a.read(ANY + b"hello")
    assert Connection(a._known).knows(ANY)


@pytest.mark.parametrize("at", range(len(ANY)))
def test_any_other_byte_makes_it_another_head(at: int) -> None:
    a = connection()
    a.read(ANY + b"hello")
    changed = bytearray(ANY)
    changed[at] ^= 1
    length = ANY.index(b": 5") + 2
    assert a.knows(bytes(changed)) == (at == length)


@pytest.mark.parametrize(
    "line",
    [
        b"Connection: close",
        b"Connection: upgrade\r\nUpgrade: h2c",
        b"Expect: 100-continue",
        b"X-Request-Id: 1",
        b"traceparent: 00-1-2-01",
        b"X-Padding: " + b"a" * 5000,
    ],
    ids=lambda line: line[:12].decode(),
)
def test_what_comes_once_or_the_parser_has_to_see_is_not_remembered(line: bytes) -> None:
    a = connection()
    request = ANY.replace(b"\r\n\r\n", b"\r\n" + line + b"\r\n\r\n")
    ((_, body),) = a.read(request + b"hello")
    assert body == b"hello"
    assert not a.knows(request)
    assert len(a._known._heads) == 0


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.0\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Length: 5\r\n\r\n",
    ],
    ids=["no body", "HTTP/1.0", "chunked", "a trailer"],
)
def test_only_bodies_with_a_length_are_known(request_: bytes) -> None:
    a = connection()
    assert len(a.read(request_)) == 1
    assert not a.knows(request_)


def test_a_known_request_may_come_in_pieces_and_others_behind_it() -> None:
    a = connection()
    a.read(ANY + b"hello")
    whole = ANY + b"hello" + ANY.replace(b": 5", b": 0") + b"GET / HTTP/1.1\r\nhost: y\r\n\r\n" + ANY + b"again"
    for size in range(1, len(whole) + 1):
        b = Connection(a._known)
        for at in range(0, len(whole), size):
            b.data_received(whole[at : at + size])
        assert [(r.head.method, r.body, r.whole) for r in b.requests] == [
            ("POST", b"hello", True),
            ("POST", b"", True),
            ("GET", b"", True),
            ("POST", b"again", True),
        ]


def test_nothing_is_known_behind_a_request_that_closes() -> None:
    a = connection()
    a.read(ANY + b"hello")
    before = len(a.requests)
    a.data_received(b"GET / HTTP/1.0\r\nhost: x\r\n\r\n" + ANY + b"hello")
    a.data_received(ANY + b"hello")
    alone = Connection(KnownHeads(Clock()))
    alone.data_received(b"GET / HTTP/1.0\r\nhost: x\r\n\r\n" + ANY + b"hello")
    alone.data_received(ANY + b"hello")
    assert len(a.requests) - before == len(alone.requests)


def test_what_is_in_use_stays_known() -> None:
    clock = Clock()
    a = Connection(KnownHeads(clock))
    a.read(ANY + b"hello")
    for clock.now in range(0, 6000, 500):
        assert a.knows(ANY)


def test_what_is_not_used_is_forgotten() -> None:
    clock = Clock()
    a = Connection(KnownHeads(clock))
    a.read(ANY + b"hello")
    clock.now = 1201
    assert not a.knows(ANY)


def test_what_is_sent_on_of_a_head_is_made_once_for_what_is_dropped() -> None:
    a = connection()
    ((head, _),) = a.read(ANY + b"hello")
    none, keys = frozenset({b"host"}), frozenset({b"host", b"authorization"})
    assert head.sent_on(none).lines == b"authorization: Bearer k\r\n"
    assert head.sent_on(none) is head.sent_on(none)
    assert head.sent_on(keys).lines == b""
    assert head.sent_on(none).names == {b"authorization"}


def test_a_head_with_other_headers_sends_on_those_alone() -> None:
    """A key that was shown is taken out of a head that may have been sent on with it before keys were asked for."""
    shown = [(b"host", b"x"), (b"authorization", b"Bearer k"), (b"x-a", b"b")]
    head, drop = Head.of("POST", b"/", "1.1", shown, keep_alive=True), frozenset({b"host"})
    assert b"Bearer k" in repr(head.sent_on(drop)).encode()
    assert b"Bearer k" not in repr(replace(head, headers=[shown[0], shown[2]]).sent_on(drop)).encode()


def test_a_head_without_its_keys_is_made_once_and_sends_none_on() -> None:
    a = connection()
    ((head, _),) = a.read(ANY + b"hello")
    drop = frozenset({b"host"})
    assert b"Bearer k" in head.sent_on(drop).lines
    assert head.keyless().headers == [(b"host", b"x")]
    assert b"authorization" not in head.keyless().named
    assert head.keyless().sent_on(drop).lines == b""
    assert head.keyless() is head.keyless()
    assert (head.keyless().target, head.headers[1]) == (head.target, (b"authorization", b"Bearer k"))
