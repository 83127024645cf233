"""The content gate: which event begins an answer, and that no byte is lost or shown before it."""

import json
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warmroute.core.sse import ContentGate, event_data, is_content

GOLDEN = Path(__file__).parent.parent / "golden"
FIRST_CONTENT = {
    "chat-stream": 1,
    "chat-stream-token-ids": 1,
    "completions-stream": 0,
    "messages-stream": 2,
    "responses-stream": 4,
}
"""For each captured stream of a real vLLM the place of the first event that says something."""

STREAMS = {name: (GOLDEN / f"{name}.sse").read_bytes() for name in FIRST_CONTENT}
ENDS = {"LF": b"\n", "CRLF": b"\r\n", "CR": b"\r"}
MIB = 1 << 20


def border(stream: bytes, events: int, end: bytes = b"\n") -> int:
    """The number of bytes up to and with the blank line that ends event number `events`, counted from 0."""
    at = 0
    for _ in range(events + 1):
        at = stream.index(end * 2, at) + len(end * 2)
    return at


def until_released(gate: ContentGate, pieces: list[bytes]) -> tuple[bytes, int]:
    """Feed pieces until something comes out: what came, and how many bytes had been fed."""
    fed = 0
    for piece in pieces:
        fed += len(piece)
        if out := gate.feed(piece):
            return out, fed
    return b"", fed


def cut(data: bytes, at: list[int]) -> list[bytes]:
    """The data in pieces, cut at these places (modulo its length)."""
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in at)})
    return [data[a:b] for a, b in pairwise(places)]


def event(**value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def choice(**value: object) -> bytes:
    return event(choices=[value])


cuts = st.lists(st.integers(0, 5_000), max_size=25)
lines = pytest.mark.parametrize("end", list(ENDS.values()), ids=list(ENDS))
captured = pytest.mark.parametrize("name", list(FIRST_CONTENT))

# Captured streams


@captured
@lines
def test_a_stream_fed_whole_is_released_whole(name: str, end: bytes) -> None:
    stream = STREAMS[name].replace(b"\n", end)
    assert ContentGate().feed(stream) == stream


@captured
@lines
def test_byte_by_byte_nothing_is_released_before_the_first_content_event_ends(name: str, end: bytes) -> None:
    stream = STREAMS[name].replace(b"\n", end)
    expected = border(stream, FIRST_CONTENT[name], end)
    out, fed = until_released(ContentGate(), [stream[i : i + 1] for i in range(len(stream))])
    assert fed == expected
    assert out == stream[:expected]


@captured
@lines
@given(at=cuts)
def test_cut_anywhere_the_border_is_the_same(name: str, end: bytes, at: list[int]) -> None:
    stream = STREAMS[name].replace(b"\n", end)
    expected = border(stream, FIRST_CONTENT[name], end)
    pieces = cut(stream, at)
    out, fed = until_released(ContentGate(), pieces)
    assert out == stream[:fed]
    assert fed == next(end for end in accumulate(map(len, pieces)) if end >= expected)


@captured
def test_keep_alive_comments_between_events_change_no_border(name: str) -> None:
    comment = b": keep-alive\n\n"
    stream = comment * 3 + STREAMS[name].replace(b"\n\n", b"\n\n" + comment)
    content = FIRST_CONTENT[name]
    expected = border(stream, 3 + 2 * content)
    out, fed = until_released(ContentGate(), [stream[i : i + 1] for i in range(len(stream))])
    assert (fed, out) == (expected, stream[:expected])


@captured
def test_a_stream_that_ends_before_its_content_is_released_as_it_is(name: str) -> None:
    stream = STREAMS[name][: border(STREAMS[name], FIRST_CONTENT[name]) - 1]
    gate = ContentGate()
    assert gate.feed(stream) == b""
    assert gate.release() == stream
    assert gate.release() == b""


# What is held


@pytest.mark.parametrize(
    "held",
    [
        b": ping\n\n",
        b":\n\n",
        b"\n\n\n\n",
        b"event: ping\n\n",
        b"id: 7\nretry: 100\n\n",
        b"data\n\n",
        b"data:\n\n",
        choice(delta={"role": "assistant"}),
        choice(delta={"role": "assistant", "content": ""}),
        choice(delta={"role": "assistant", "content": None, "tool_calls": []}),
        choice(delta={}),
        choice(text=""),
        choice(text="", finish_reason=None),
        event(choices=[{"delta": {"role": "assistant"}}, {"delta": {"role": "assistant"}}]),
        event(type="message_start", message={"content": []}),
        event(type="content_block_start", content_block={"type": "text", "text": ""}),
        event(type="ping"),
        event(type="response.created"),
        event(type="response.queued"),
        event(type="response.in_progress"),
        event(type="response.output_item.added"),
        event(type="response.content_part.added"),
        event(type="response.reasoning_part.added"),
        b'data: {"choices":[{"delta":\ndata: {"role":"assistant"}}]}\n\n',
        b'data:{"type":"ping"}\n\n',
        b': comment\ndata: {"type":"ping"}\n: comment\n\n',
        b'data: {"type":"ping"}\r\n\r\ndata: {"type":"ping"}\n\n',
        b'data: {"type":"ping"}\r\rdata: {"type":"ping"}\r\n\r\ndata: {"type":"ping"}\n\n',
    ],
    ids=lambda value: ascii(value)[2:60],
)
def test_events_that_only_announce_an_answer_are_held(held: bytes) -> None:
    gate = ContentGate()
    assert gate.feed(held) == b""
    assert gate.release() == held


# What is content


@pytest.mark.parametrize(
    "content",
    [
        choice(delta={"content": "x"}),
        choice(delta={"role": "assistant", "content": "x"}),
        choice(delta={"reasoning_content": "x"}),
        choice(delta={"reasoning": "x"}),
        choice(delta={"tool_calls": [{"index": 0}]}),
        choice(delta={}, finish_reason="stop"),
        choice(delta={"role": "assistant", "content": ""}, finish_reason="length"),
        choice(text="x"),
        choice(text=" "),
        event(choices=[{"delta": {"role": "assistant"}}, {"delta": {"content": "x"}}]),
        event(choices=[]),
        event(choices=[], usage={"prompt_tokens": 1}),
        event(choices=None),
        event(choices="x"),
        event(choices=["x"]),
        event(error={"message": "out of memory"}),
        event(type="error"),
        event(type="content_block_delta"),
        event(type="message_delta"),
        event(type="response.output_text.delta"),
        event(type="response.completed"),
        event(type="something new"),
        event(type=None),
        event(type=["ping"]),
        event(type={"ping": 1}),
        event(),
        b"data: [DONE]\n\n",
        b'data: {"choices":[\n\n',
        b"data: \xff\xfe\n\n",
        b"data: [1, 2]\n\n",
        b'data: "text"\n\n',
        b"data: null\n\n",
        b"data: " + b"[" * 100_000 + b"\n\n",
        b"data: " + b"9" * 5_000 + b"\n\n",
        b'event: message\ndata: {"choices":\ndata: [{"text":"x"}]}\nid: 1\n\n',
        choice(message={"content": "x"}),
    ],
    ids=lambda value: ascii(value)[2:60],
)
def test_anything_else_is_content(content: bytes) -> None:
    assert ContentGate().feed(content) == content


def test_content_brings_everything_that_was_held_before_it() -> None:
    gate = ContentGate()
    role, text = choice(delta={"role": "assistant"}), choice(delta={"content": "x"})
    assert gate.feed(b": ping\n\n" + role) == b""
    assert gate.feed(text + b"data: half") == b": ping\n\n" + role + text + b"data: half"


@pytest.mark.parametrize("blank", [b"\r\n\n", b"\n\r\n"], ids=ascii)
def test_line_ends_may_be_mixed(blank: bytes) -> None:
    stream = b'data: {"choices":[{"text":"x"}]}' + blank
    assert ContentGate().feed(stream) == stream


@lines
def test_a_stream_may_begin_with_blank_lines(end: bytes) -> None:
    stream = end * 4 + choice(delta={"content": "x"}).replace(b"\n", end)
    assert ContentGate().feed(stream) == stream


def test_a_byte_order_mark_survives() -> None:
    stream = b"\xef\xbb\xbf" + choice(delta={"role": "assistant"}) + choice(delta={"content": "x"})
    assert ContentGate().feed(stream) == stream


# How much is held


def test_four_mebibytes_may_be_held_and_not_a_byte_more() -> None:
    gate = ContentGate()
    for _ in range(16):
        assert gate.feed(b":" + b"x" * (MIB // 4 - 1)) == b""
    assert gate.feed(b"x") == b":" + (b"x" * (MIB // 4 - 1) + b":") * 15 + b"x" * (MIB // 4)


def test_a_first_event_with_many_prompt_token_ids_is_held() -> None:
    gate = ContentGate()
    first = event(choices=[{"delta": {"role": "assistant", "content": ""}}], prompt_token_ids=list(range(100_000)))
    assert 500_000 < len(first) < MIB
    assert gate.feed(first) == b""
    text = choice(delta={"content": "x"})
    assert gate.feed(text) == first + text


def test_preambles_beyond_the_limit_are_released() -> None:
    gate = ContentGate()
    preamble = b": " + b"x" * 100_000 + b"\n\n"
    out, fed = until_released(gate, [preamble] * 42)
    assert len(out) == fed == 42 * len(preamble)


# One event


@pytest.mark.parametrize(
    ("raw", "data"),
    [
        (b"data: x", b"x"),
        (b"data:x", b"x"),
        (b"data:  x", b" x"),
        (b"data: a\ndata: b", b"a\nb"),
        (b"data: a\r\ndata: b", b"a\nb"),
        (b"data: a\rdata: b", b"a\nb"),
        (b"event: e\ndata: a\nid: 1", b"a"),
        (b": c\ndata: a", b"a"),
        (b"database: a", b""),
        (b" data: a", b""),
        (b"event: e", b""),
        (b"data:\ndata:", b"\n"),
        (b"data: \xe4\xbd\xa0", b"\xe4\xbd\xa0"),
        ("data: a\u2028data: b".encode(), "a\u2028data: b".encode()),
        (b"data: a\x0bdata: b", b"a\x0bdata: b"),
    ],
    ids=ascii,
)
def test_event_data(raw: bytes, data: bytes) -> None:
    assert event_data(raw) == data


@given(st.binary(max_size=200))
@example(b'data: {"type":[]}')
def test_no_event_raises(raw: bytes) -> None:
    assert is_content(raw) in (True, False)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
field_names = st.sampled_from(["type", "choices", "delta", "text", "finish_reason", "usage", "error"])


@given(st.dictionaries(field_names, json_values | st.lists(st.dictionaries(field_names, json_values), max_size=2)))
@example({"type": []})
@example({"choices": [{"delta": []}]})
def test_no_object_raises(value: dict[str, object]) -> None:
    assert is_content(event(**value)) in (True, False)


@given(
    st.lists(st.sampled_from([b"data: x", b": c", b"\n", b"\r", b"\r\n", b"\n\n", b"data: {}", b""]), max_size=20), cuts
)
def test_no_byte_is_lost_or_made_up(parts: list[bytes], at: list[int]) -> None:
    stream = b"".join(parts)
    gate = ContentGate()
    pieces = cut(stream, at) if stream else []
    out, fed = until_released(gate, pieces)
    assert out + gate.release() == stream[:fed]


def test_repr_tells_what_is_held() -> None:
    gate = ContentGate()
    gate.feed(b": ping\n\n")
    assert repr(gate) == "<ContentGate 8 bytes held>"
