"""The head of a backend's answer: what it says, what of it the client gets, and the one that comes again and again."""

from dataclasses import dataclass, field

from ..core.headers import as_lines, response_headers
from .heads import LENGTH

_LONGEST = 2048
"""Bytes of a head that is worth being remembered."""
_WELL = b"HTTP/1.1 200 "
"""How it begins; an interim answer (1xx) that comes before another begins otherwise."""


@dataclass(slots=True)
class AnswerHead:
    """Status and headers of an answer, without its body's length. Names are lower case; `named` has each one's last value.

    `keep_alive`: its connection may serve another request.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    named: dict[bytes, bytes]
    keep_alive: bool
    _passed_on: tuple[bool, bytes] | None = field(default=None, init=False, compare=False, repr=False)

    def passed_on(self, *, cookies: bool) -> bytes:
        """The header lines that the client gets of it; made once for all answers that have the same head."""
        if self._passed_on is None or self._passed_on[0] is not cookies:
            self._passed_on = cookies, as_lines(response_headers(self.headers, cookies=cookies))
        return self._passed_on[1]


class LastHead:
    """The head of a backend's last answer, found again at the beginning of the next by exactly its bytes but for the length.

    A backend's answers have the same head, whose date changes once a second, and to read it again takes a tenth of what the
    whole request costs.
    """

    __slots__ = ("_before", "_behind", "_head")

    def __init__(self) -> None:
        self._head: AnswerHead | None = None
        self._before = self._behind = b""

    def __repr__(self) -> str:
        return f"<LastHead {len(self._before) + len(self._behind)} bytes>"

    def find(self, data: bytes) -> tuple[AnswerHead, int, int] | None:
        """The head that these bytes begin with, the length that it states here, and where the body begins."""
        head, before, behind = self._head, self._before, self._behind
        if head is None or not data.startswith(before):
            return None
        at = len(before)
        end = data.find(b"\r", at, at + 10)
        if end < 0 or not data.startswith(behind, end):
            return None
        length = data[at:end]
        return (head, int(length), end + len(behind)) if length.isdigit() else None

    def learn(self, data: bytes, head: AnswerHead) -> None:
        """Remember what the parser made of the head of these bytes, if more can follow on its connection."""
        end = data.find(b"\r\n\r\n", 0, _LONGEST) if data.startswith(_WELL) and head.keep_alive else -1
        stated = LENGTH.search(data, 0, end + 2) if end > 0 else None
        if stated is not None:
            at, behind = stated.span(1)
            self._head, self._before, self._behind = head, data[:at], data[behind : end + 4]
