"""What the router understands of WebSockets (RFC 6455): a handshake, where a frame ends, and how a connection is closed."""

import re
from collections.abc import Sequence

VERSION = b"13"
_KEY = re.compile(rb"[A-Za-z0-9+/]{22}==")
"""16 bytes in base64."""
_LONGEST_REASON = 123
"""Bytes of text that a close frame can hold."""
_CLOSE = 8
_OPCODES = frozenset({0, 1, 2, _CLOSE, 9, 10})
_EXTENDED = {126: 2, 127: 8}
"""Bytes in which a payload's length follows, by the length in the frame's second byte."""
_MASK_BYTES = 4


def asks(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a request asks for a WebSocket, well or badly. Names are lower case."""
    return b"upgrade" in _tokens(headers, b"connection") and b"websocket" in _tokens(headers, b"upgrade")


def fault(headers: Sequence[tuple[bytes, bytes]], http_version: str) -> str | None:
    """What is wrong with a handshake whose version is right, in words that go on "this handshake ..."; None if nothing is."""
    if http_version != "1.1":
        return f"came over HTTP/{http_version}; it takes HTTP/1.1"
    if _values(headers, b"transfer-encoding") or _values(headers, b"content-length") not in ([], [b"0"]):
        return "has a body; send it without one"
    keys = _values(headers, b"sec-websocket-key")
    if len(keys) != 1 or not _KEY.fullmatch(keys[0]):
        return "must have one Sec-WebSocket-Key of 16 bytes in base64"
    return None


def is_version(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a handshake is of the one version that there is."""
    return _values(headers, b"sec-websocket-version") == [VERSION]


def switches(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a 101 switches to the WebSocket that was asked for, and to nothing else."""
    upgrade = _values(headers, b"upgrade")
    return b"upgrade" in _tokens(headers, b"connection") and [value.lower() for value in upgrade] == [b"websocket"]


def close_frame(code: int, reason: str) -> bytes:
    """A server's close frame; the reason is cut where it is longer than 123 bytes."""
    text = reason.encode()[:_LONGEST_REASON].decode(errors="ignore").encode()
    return bytes((0x80 | _CLOSE, 2 + len(text))) + code.to_bytes(2) + text


class Frames:
    """Follows the frames of one direction by their heads and keeps nothing of them.

    `closed` is True once a close frame has passed. What is no WebSocket is not followed any further.
    """

    __slots__ = ("_head", "_left", "_lost", "closed")

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        self._lost = False
        self.closed = False

    def __repr__(self) -> str:
        return f"<Frames {'lost' if self._lost else 'closed' if self.closed else f'{self._left} bytes left'}>"

    @property
    def between(self) -> bool:
        """Whether a frame of the router's own would stand between two others, and nothing has closed the connection."""
        return not (self._head or self._left or self._lost or self.closed)

    def feed(self, data: bytes) -> None:
        """The next bytes have passed."""
        at = min(self._left, len(data))
        self._left -= at
        while at < len(data) and not self._lost:
            known = len(self._head)
            head = self._head + data[at : at + 2 + 8 + _MASK_BYTES - known]
            size = _head_size(head)
            if size > len(head):
                self._head = head
                return
            at += size - known
            self._head = b""
            self._left = _payload(head)
            if head[0] & 0x0F not in _OPCODES:
                self._lost = True
            elif head[0] & 0x0F == _CLOSE:
                self.closed = True
            step = min(self._left, len(data) - at)
            self._left -= step
            at += step


def _head_size(head: bytes) -> int:
    """Bytes of a frame's head, as far as its beginning tells."""
    if len(head) < 2:
        return 2
    return 2 + _EXTENDED.get(head[1] & 0x7F, 0) + (_MASK_BYTES if head[1] & 0x80 else 0)


def _payload(head: bytes) -> int:
    length = head[1] & 0x7F
    return int.from_bytes(head[2 : 2 + _EXTENDED[length]]) if length in _EXTENDED else length


def _values(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value.strip() for key, value in headers if key == name]


def _tokens(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> set[bytes]:
    return {token.strip().lower() for value in _values(headers, name) for token in value.split(b",")}
