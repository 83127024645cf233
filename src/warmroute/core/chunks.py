"""The framing of a chunked body (RFC 9112, 7.1), as far as it is looked at without a parser."""

import re

_HEAD = re.compile(rb"[0-9a-fA-F]{1,7}\r\n")
"""A chunk's size and nothing else; longer ones, or with extensions, take the parser's way."""


def whole_chunk(data: bytes) -> int:
    """Where the content begins if these bytes are exactly one chunk that is not the last, else 0.

    Streams of tokens come as one chunk a token, and go out as one chunk a token: such bytes can be passed on as they are.
    """
    head = _HEAD.match(data)
    if head is None or not data.endswith(b"\r\n"):
        return 0
    begins = head.end()
    size = int(data[: begins - 2], 16)
    return begins if size and begins + size + 2 == len(data) else 0
