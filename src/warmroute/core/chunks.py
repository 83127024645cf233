"""The framing of a chunked body (RFC 9112, 7.1), as far as it is looked at without a parser."""

_LONGEST = 4096


def _head(size: int) -> bytes:
    for digits in range(1, 8):
        content = size - digits - 4
        if content > 0 and len(head := b"%x\r\n" % content) == digits + 2:
            return head
    return bytes(size + 1)  # no chunk is so long, and nothing of that length begins with more


HEADS = tuple(_head(size) for size in range(_LONGEST))
"""How a chunk of so many bytes, framing included, begins where its size is written as servers for Python do.

Bytes that begin so and end in CRLF are exactly one chunk, and not the last. Streams of tokens come as one chunk a token, and
go out as one chunk a token: such bytes can be passed on as they are. Longer and other ones take the parser's way.
"""
