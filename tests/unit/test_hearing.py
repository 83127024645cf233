"""Answers read off a backend's bytes: the same whether a head was known by its bytes or parsed, however the bytes are cut."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warmroute.proxy.answer_head import AnswerHead, LastHead
from warmroute.proxy.hearing import Hearing

OK = b"HTTP/1.1 200 OK\r\n"
DATE = b"date: Mon, 30 Nov 2026 12:00:00 GMT\r\nserver: uvicorn\r\n"
JSON = b"content-type: application/json\r\n\r\n"


class Heard(Hearing):
    """One connection that writes down what it hears."""

    def __init__(self, last: LastHead) -> None:
        super().__init__(last)
        self.said = b""
        self.faults: list[str] = []

    def _body(self, data: bytes) -> None:
        self.said += data

    def _garbled(self, detail: str) -> None:
        self.faults.append(detail)
        self.closed = True

    def _switch(self, rest: bytes) -> None:
        self._garbled("switched")

    def take(self, pieces: Sequence[bytes], *, head_only: bool = False) -> tuple[tuple[object, ...], bool]:
        """What one answer comes to: all that a handler sees of it; and whether its connection may be used again."""
        self._next()
        self.said, self._head_only = b"", head_only
        for piece in pieces:
            if self.complete:
                self._keep_alive = False
            elif piece and not self.closed:
                self._hear(piece)
        head = self.head and (self.head.status, self.head.headers, self.head.named, self.head.passed_on(cookies=False))
        again = self.complete and self._keep_alive and not (self.closed or head_only)
        fault = "" if self.complete else self.faults[:1]  # what is wrong behind a whole answer is nobody's any more
        return (self.status, head, self.length, self.said, self.complete, self._until_close, fault), again


class Forgetful(LastHead):
    """Knows no head, so that all are parsed."""

    def learn(self, data: bytes, head: AnswerHead) -> None:
        pass


def cut(data: bytes, at: Sequence[int]) -> list[bytes]:
    places = sorted({min(place, len(data)) for place in at})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


USUAL = OK + DATE + b"content-length: %d\r\n" + JSON
EARLY = b"HTTP/1.1 103 Early Hints\r\ncontent-length: %d\r\n\r\n" + OK + b"content-length: %d\r\n\r\n"
HEADS = st.sampled_from(
    [
        USUAL,
        OK + DATE + b"Content-Length:%d\r\n" + JSON,
        OK + b"content-length: %d\r\n" + JSON,
        OK + b"content-length: %d\r\nconnection: close\r\n" + JSON,
        OK + b"content-length: %d\r\nconnection: keep-alive\r\n" + JSON,
        OK + b"x-told: content-length: 3\r\ncontent-length: %d\r\n" + JSON,
        OK + b"content-length: %d\r\ntransfer-encoding: chunked\r\n" + JSON,
        OK + b"content-length: %d\r\ncontent-length: %d\r\n" + JSON,
        OK + b"content-length: %d\r\nupgrade: h2c\r\nconnection: upgrade\r\n" + JSON,
        OK + b"content-length: %d \r\n" + JSON,
        OK + b"content-length: %d\n" + JSON,
        OK + b"set-cookie: a=1\r\ncontent-length: %d\r\nset-cookie: b=2\r\n" + JSON,
        b"HTTP/1.0 200 OK\r\ncontent-length: %d\r\n" + JSON,
        b"HTTP/1.1 503 Busy\r\ncontent-length: %d\r\n" + JSON,
        b"HTTP/1.1 204 No Content\r\ncontent-length: %d\r\n" + JSON,
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"content-length: %d\r\n" + JSON,
        EARLY,
        OK + b"transfer-encoding: chunked\r\n" + JSON + b"%x\r\n",
        OK + JSON,
        b"not HTTP %d\r\n\r\n",
    ]
)
ANSWERS = st.tuples(
    HEADS,
    st.binary(max_size=12),
    st.sampled_from([0, 0, 0, 0, -2, 3]),
    st.sampled_from([b"", b"", b"", b"x", b"\r\n", OK + JSON]),
    st.lists(st.integers(0, 170), max_size=3),
    st.sampled_from([False] * 5 + [True]),
)
Answer = tuple[bytes, bytes, int, bytes, list[int], bool]


def written(head: bytes, body: bytes, more: int, behind: bytes) -> bytes:
    lengths = (max(0, len(body) + more),) * head.count(b"%")
    return head % lengths + body + behind


@given(st.lists(ANSWERS, min_size=1, max_size=8))
@example([(USUAL, b"one", 0, b"", [], False), (USUAL, b"another", 0, b"", [], False)])
@example(
    [(USUAL, b"one", 0, b"", [], False), (USUAL, b"cut", 0, b"", [99], False), (USUAL, b"cut", 0, b"", [40], False)]
)
@example([(USUAL, b"one", 0, b"", [], False), (USUAL, b"", 0, b"", [], False), (USUAL, b"short", 3, b"", [], False)])
@example([(EARLY, b"one", 0, b"", [], False), (EARLY, b"two", 0, b"", [], False)])
@example([(USUAL, b"one", 0, b"", [], False), (USUAL, b"behind it", 0, OK + JSON, [], False)])
@example([(USUAL, b"one", 0, b"", [], False), (USUAL, b"", 0, b"x", [], False)])
@example([(USUAL, b"one", 0, b"", [], False), (USUAL, b"none", 0, b"", [], True)])
def test_a_known_head_is_what_the_parser_makes_of_it(answers: list[Answer]) -> None:
    last, plain = LastHead(), Forgetful()
    knows, parses = Heard(last), Heard(plain)
    for head, body, more, behind, at, head_only in answers:
        pieces = cut(written(head, body, more, behind), at)
        found, again = knows.take(pieces, head_only=head_only)
        parsed, too = parses.take(pieces, head_only=head_only)
        assert found == parsed
        # The parser passes over an empty line behind an answer; a known one's connection ends with any byte there.
        assert again == too or (too and behind == b"\r\n")
        if not again:  # as the pool does with a connection that cannot be used again
            knows, parses = Heard(last), Heard(plain)


def test_a_head_that_comes_again_is_not_parsed() -> None:
    last = LastHead()
    first, second = Heard(last), Heard(last)
    first.take([USUAL % 3 + b"one"])
    second.take([USUAL % 5 + b"other"])
    assert second.head is first.head
    assert (second.said, second.length, second.complete) == (b"other", 5, True)


@pytest.mark.parametrize(
    "data",
    [
        USUAL.replace(b"12:00:00", b"12:00:01") % 3,
        USUAL.replace(b"%d", b"3a"),
        USUAL.replace(b"%d", b""),
        USUAL.replace(b"%d", b"1234567890"),
        (USUAL % 3)[:-1],
        (USUAL % 3)[:60],
        b"",
    ],
    ids=["another date", "no number", "no length", "a long length", "not whole", "a part", "nothing"],
)
def test_another_head_is_not_known(data: bytes) -> None:
    last = LastHead()
    Heard(last).take([USUAL % 3 + b"one"])
    assert last.find(USUAL % 4) is not None
    assert last.find(data) is None


@pytest.mark.parametrize(
    "head",
    [
        OK + b"content-length: %d\r\nconnection: close\r\n" + JSON,
        OK + b"content-length: %d\r\nx-long: " + b"x" * 2048 + b"\r\n" + JSON,
        b"HTTP/1.1 404 Not Found\r\ncontent-length: %d\r\n" + JSON,
    ],
    ids=["one that closes", "a long one", "an error"],
)
def test_what_is_not_worth_it_is_not_remembered(head: bytes) -> None:
    last = LastHead()
    Heard(last).take([head % 3 + b"one"])
    assert last.find(head % 3) is None
    assert repr(last) == "<LastHead 0 bytes>"
