"""What is passed on without a parser is exactly one chunk, and the usual chunk of a token is passed on so."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warmroute.core.chunks import HEADS


def passes(data: bytes) -> bool:
    return len(data) < len(HEADS) and data.startswith(HEADS[len(data)]) and data.endswith(b"\r\n")


@pytest.mark.parametrize("size", [1, 15, 16, 17, 255, 256, 257, 4088])
def test_a_chunk_passes_whole_and_no_other_way(size: int) -> None:
    chunk = b"%x\r\n%b\r\n" % (size, b"x" * size)
    assert passes(chunk)
    for other in (chunk[:-1], chunk[1:], chunk + b"0", chunk + b"0\r\n\r\n", chunk + chunk, chunk[:-2] + b"xx"):
        assert not passes(other)


@given(st.binary(max_size=40) | st.from_regex(rb"[0-9a-f]{1,3}\r\n[ -~\r\n]{0,300}\r\n", fullmatch=True))
@example(b"0\r\n\r\n")
@example(b"")
@example(b"10\r\n" + b"x" * 15 + b"\r\n")
@example(b"-" * 19 + b"\r\n")
@example(bytes(19) + b"\r\n")
def test_nothing_else_passes(data: bytes) -> None:
    head = re.match(rb"([1-9a-f][0-9a-f]*)\r\n", data)
    one = head is not None and data.endswith(b"\r\n") and len(data) == head.end() + int(head[1], 16) + 2
    assert passes(data) is one
