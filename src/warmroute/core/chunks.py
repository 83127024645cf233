"""The framing of a chunked body (RFC 9112, 7.1), as far as it is looked at without a parser."""

_LONGEST_CHUNK_HEAD = 8
"""Hex digits of a chunk's size that are looked at; longer ones take the parser's way."""


def whole_chunk(data: bytes) -> int:
    """Where the content begins if these bytes are exactly one chunk that is not the last, else 0.

    Streams of tokens come as one chunk a token, and go out as one chunk a token: such bytes can be passed on as they are.
    """
    size_ends = data.find(b"\r\n", 1, _LONGEST_CHUNK_HEAD)
    if size_ends < 0 or not data.endswith(b"\r\n") or not data[:size_ends].isalnum() or b"x" in data[:2].lower():
        return 0
    try:
        size = int(data[:size_ends], 16)
    except ValueError:
        return 0
    return size_ends + 2 if size and size + size_ends + 4 == len(data) else 0
