"""The usage that only the router asked for is taken out of a stream, and nothing else, however the bytes are cut."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.unasked import UsageFilter
from warmroute.core.usage import usage_from

GOLDEN = Path(__file__).parent.parent / "golden"
STREAMS = {name: (GOLDEN / f"{name}-stream.sse").read_bytes() for name in ("chat", "completions")}


def through(stream: bytes, cuts: list[int]) -> tuple[bytes, UsageFilter]:
    """The stream as a client gets it when it arrives in pieces that are cut there."""
    told = UsageFilter()
    places = [0, *sorted(c % (len(stream) + 1) for c in cuts), len(stream)]
    out = b"".join(told.take(stream[a:b]) for a, b in pairwise(places))
    return out + told.end(), told


def by_chunks(stream: bytes, cuts: list[int]) -> tuple[bytes, UsageFilter]:
    """The same of pieces that come as a chunk each, which are passed on in their framing where that may be."""
    told = UsageFilter()
    places = [0, *sorted(c % (len(stream) + 1) for c in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(places)]
    out = b"".join(p if told.passes(b"%x\r\n%b\r\n" % (len(p), p)) else told.take(p) for p in pieces)
    return out + told.end(), told


def without_usage(stream: bytes) -> bytes:
    return b"\n\n".join(event for event in stream.split(b"\n\n") if b'"choices":[]' not in event)


@pytest.mark.parametrize("name", STREAMS)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=12))
def test_of_real_streams_only_the_usage_is_taken(name: str, cuts: list[int]) -> None:
    stream = STREAMS[name]
    assert stream.count(b'"choices":[]') == 1
    out, told = through(stream, cuts)
    assert out == without_usage(stream)
    usage = usage_from(told.usage)
    assert (usage.prompt, usage.completion) == ((21, 6) if name == "chat" else (11, 4))


@pytest.mark.parametrize("name", STREAMS)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=12), events=st.booleans())
def test_chunks_that_pass_in_their_framing_change_nothing(name: str, cuts: list[int], events: bool) -> None:
    stream = STREAMS[name]
    if events:
        cuts = cuts[:2] + [at + 2 for at in range(len(stream)) if stream.startswith(b"\n\n", at)]
    out, told = by_chunks(stream, cuts)
    assert (out, told.usage) == (without_usage(stream), through(stream, cuts)[1].usage)


def test_the_chunk_of_a_token_passes_in_its_framing() -> None:
    first, *_ = STREAMS["chat"].split(b"\n\n")
    chunk = b"%x\r\n%b\n\n\r\n" % (len(first) + 2, first)
    told = UsageFilter()
    assert told.passes(chunk)
    assert not told.passes(chunk.replace(b'"finish_reason":null', b'"finish_reason":"stop"'))
    told.take(first[:-9])
    assert not told.passes(chunk)


@pytest.mark.parametrize("name", STREAMS)
def test_until_an_answer_ends_every_byte_passes_when_it_comes(name: str) -> None:
    stream, told = STREAMS[name], UsageFilter()
    ends = stream.index(b'"finish_reason":"')
    for at in range(ends):
        assert told.take(stream[at : at + 1]) == stream[at : at + 1]


@given(cuts=st.lists(st.integers(0, 10_000), max_size=30))
def test_a_server_that_writes_spaces(cuts: list[int]) -> None:
    stream = STREAMS["chat"].replace(b'":', b'": ')
    out, told = through(stream, cuts)
    assert out == without_usage(STREAMS["chat"]).replace(b'":', b'": ')
    assert usage_from(told.usage).prompt == 21


@given(cuts=st.lists(st.integers(0, 10_000), max_size=8))
def test_other_line_ends(cuts: list[int]) -> None:
    stream = STREAMS["chat"].replace(b"\n", b"\r\n")
    assert through(stream, cuts)[0] == without_usage(STREAMS["chat"]).replace(b"\n", b"\r\n")


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b"data: [DONE]\n\n",
        b'data: {"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}\n\ndata: [DONE]\n\n',
        b'data: {"choices":[{"finish_reason":"stop"}]}\n\ndata: {"choices":[]}\n\n',
        b'data: {"choices":[{"finish_reason":"stop"}]}\n\ndata: {"error":{"message":"x"}}\n\n',
        b'data: {"choices":[{"finish_reason":"stop"}]}\n\ndata: {"half',
        b"no events at all",
    ],
)
def test_nothing_else_is_touched(stream: bytes) -> None:
    for size in (1, 3, 1000):
        told = UsageFilter()
        out = b"".join(told.take(stream[at : at + size]) for at in range(0, len(stream), size)) + told.end()
        assert out == stream
        assert told.usage == b""


def test_an_event_without_an_end_is_not_held_for_ever() -> None:
    told = UsageFilter()
    told.take(b'data: {"finish_reason":"stop"}\n\n')
    big = b"x" * (2 << 20)
    assert told.take(big) == big
