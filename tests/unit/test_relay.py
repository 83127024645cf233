"""The relay: when an answer passes from held to streaming, that it passes unchanged, and what it said of its tokens."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.relay import Relay, RelayState
from warmroute.core.usage import NO_USAGE, Usage

GOLDEN = Path(__file__).parent.parent / "golden"
STREAMS = ["chat-stream", "chat-stream-token-ids", "completions-stream", "messages-stream", "responses-stream"]
USAGE = {
    "chat-stream": Usage(21, 0, 6),
    "chat-stream-token-ids": Usage(16, 0, 6),
    "completions-stream": Usage(11, 0, 4),
    "messages-stream": Usage(30, 0, 5),
    "responses-stream": Usage(21, 0, 5),
}
EVENTS = {b"content-type": b"text/event-stream; charset=utf-8"}
JSON = {b"content-type": b"application/json"}

ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TEXT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
PING = b": keep-alive\n\n"

captured = pytest.mark.parametrize("name", STREAMS)


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.sse").read_bytes()


def events(stream: bytes) -> list[bytes]:
    return [event + b"\n\n" for event in stream.split(b"\n\n")[:-1]]


def passed(relay: Relay, pieces: list[bytes]) -> bytes:
    return b"".join(relay.feed(piece) for piece in pieces) + relay.finish()


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in at)})
    return [data[a:b] for a, b in pairwise(places)]


@captured
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@given(at=st.lists(st.integers(0, 5_000), max_size=25))
def test_a_stream_cut_anywhere_passes_byte_for_byte(name: str, end: bytes, at: list[int]) -> None:
    stream = golden(name).replace(b"\n", end)
    relay = Relay(200, EVENTS)
    assert passed(relay, cut(stream, at)) == stream
    assert relay.state is RelayState.DONE


@captured
def test_a_stream_passes_byte_by_byte(name: str) -> None:
    stream = golden(name)
    relay = Relay(200, EVENTS)
    out = [relay.feed(stream[i : i + 1]) for i in range(len(stream))]
    first = next(i for i, data in enumerate(out) if data)
    assert not any(out[:first])
    assert all(len(data) == 1 for data in out[first + 1 :])
    assert b"".join(out) + relay.finish() == stream


def test_the_states_of_a_stream() -> None:
    relay = Relay(200, EVENTS)
    assert relay.event_stream
    steps = [(b"", RelayState.HELD), (PING + ROLE, RelayState.HELD), (TEXT[:9], RelayState.HELD)]
    steps += [(TEXT[9:], RelayState.STREAMING), (PING, RelayState.STREAMING)]
    out = []
    for data, state in steps:
        out.append(relay.feed(data))
        assert relay.state == state
    assert out == [b"", b"", b"", PING + ROLE + TEXT, PING]
    assert relay.finish() == b""
    assert relay.state is RelayState.DONE


def test_a_stream_that_never_says_anything_comes_out_at_its_end() -> None:
    relay = Relay(200, EVENTS)
    assert relay.feed(PING + ROLE) == b""
    assert relay.finish() == PING + ROLE
    assert relay.state is RelayState.DONE


@pytest.mark.parametrize(
    ("status", "headers", "event_stream"),
    [
        (200, JSON, False),
        (200, {}, False),
        (200, {b"content-type": b"application/octet-stream"}, False),
        (400, EVENTS, True),
        (500, EVENTS, True),
        (200, EVENTS | {b"content-encoding": b"gzip"}, True),
        (200, EVENTS | {b"content-encoding": b"br"}, True),
    ],
    ids=["json", "no type", "binary", "refused", "failed", "gzip", "brotli"],
)
def test_of_any_other_body_the_first_byte_is_content(
    status: int, headers: dict[bytes, bytes], event_stream: bool
) -> None:
    relay = Relay(status, headers)
    assert relay.event_stream is event_stream
    assert relay.feed(b":") == b":"
    assert relay.state is RelayState.STREAMING
    assert relay.feed(ROLE) == ROLE
    assert relay.finish() == b""


def test_an_error_in_place_of_a_stream_passes_as_it_came() -> None:
    body = golden("chat-stream-n2")
    relay = Relay(400, JSON)
    assert passed(relay, cut(body, [40])) == body


@pytest.mark.parametrize(
    "kind",
    [b"text/event-stream", b"TEXT/EVENT-STREAM", b"text/event-stream;charset=utf-8"],
    ids=lambda kind: kind.decode(),
)
def test_an_event_stream_is_known_by_its_type(kind: bytes) -> None:
    relay = Relay(200, {b"x-other": b"1", b"content-type": kind})
    assert relay.event_stream
    assert relay.feed(ROLE) == b""


def test_an_empty_answer_is_done_at_its_end() -> None:
    relay = Relay(204, {})
    assert relay.finish() == b""
    assert relay.state is RelayState.DONE
    assert relay.usage() == NO_USAGE


# Where an event of ours would stand


@pytest.mark.parametrize(
    ("pieces", "alone"),
    [
        ([TEXT], True),
        ([TEXT.replace(b"\n", b"\r\n")], True),
        ([TEXT, PING], True),
        ([TEXT, b'data: {"i":'], False),
        ([TEXT, b'data: {"i":1}\n'], False),
        ([TEXT, TEXT[:-1]], False),
        ([TEXT, b"data: 1\r\n"], False),
    ],
    ids=["whole", "whole with CRLF", "comment", "cut in an event", "cut after a line", "cut between ends", "cut CRLF"],
)
def test_ends_on_blank_line(pieces: list[bytes], alone: bool) -> None:
    relay = Relay(200, EVENTS)
    for piece in pieces:
        relay.feed(piece)
    assert relay.ends_on_blank_line is alone


def test_before_anything_was_sent_an_event_stands_alone() -> None:
    relay = Relay(200, EVENTS)
    relay.feed(ROLE[:10])
    assert relay.ends_on_blank_line


@given(st.lists(st.integers(0, 5_000), max_size=25), st.integers(0, 1_900))
def test_an_event_is_never_taken_to_stand_alone_in_the_middle_of_another(at: list[int], end: int) -> None:
    relay = Relay(200, EVENTS)
    sent = b"".join(relay.feed(piece) for piece in cut(golden("chat-stream")[:end], at))
    assert not relay.ends_on_blank_line or sent == b"" or sent.endswith(b"\n\n")


# What it said of its tokens


@captured
def test_pieces_that_are_only_noted_count_as_those_that_are_fed(name: str) -> None:
    relay = Relay(200, EVENTS)
    found = events(golden(name))
    while relay.state is RelayState.HELD:
        relay.feed(found.pop(0))
    for event in found:
        relay.note(event)
        assert relay.ends_on_blank_line
    relay.note(b"data: cut")
    assert not relay.ends_on_blank_line
    assert relay.finish() == b""
    assert relay.usage() == USAGE[name]


@captured
@pytest.mark.parametrize("together", [1, 2, 3, 1000], ids=["each alone", "pairs", "threes", "whole"])
def test_usage_of_a_stream_that_comes_event_by_event(name: str, together: int) -> None:
    relay = Relay(200, EVENTS)
    found = events(golden(name))
    pieces = [b"".join(found[i : i + together]) for i in range(0, len(found), together)]
    passed(relay, pieces)
    assert relay.usage() == USAGE[name]


@captured
def test_usage_of_a_stream_that_comes_in_small_pieces(name: str) -> None:
    relay = Relay(200, EVENTS)
    stream = golden(name)
    passed(relay, [stream[i : i + 16] for i in range(0, len(stream), 16)])
    assert relay.usage() == USAGE[name]


def test_usage_of_a_body_that_is_not_streamed() -> None:
    relay = Relay(200, JSON)
    body = (GOLDEN / "messages.json").read_bytes()
    passed(relay, cut(body, [100]))
    assert relay.usage() == Usage(30, 0, 5)


def test_usage_of_a_long_body_in_many_pieces() -> None:
    body = json.dumps({"choices": [{"message": {"content": "x" * 300_000}}], "usage": {"prompt_tokens": 3}}).encode()
    relay = Relay(200, JSON)
    passed(relay, [body[i : i + 65_536] for i in range(0, len(body), 65_536)])
    assert relay.usage() == Usage(prompt=3)


@pytest.mark.parametrize("size", [1, 1000, 4096, 16_384, 16_385, 100_000])
def test_what_is_kept_of_an_answer_is_bounded_and_its_end_is_never_cut(size: int) -> None:
    relay = Relay(200, JSON)
    for _ in range(5 + 100_000 // size):
        relay.feed(b"x" * size)
        assert len(relay._tail) <= 16_384
    relay.feed(b" " * 4_000 + b'"usage":{"prompt_tokens":3}')
    assert relay.usage() == Usage(prompt=3)


def test_usage_that_the_prompts_token_ids_follow() -> None:
    ids = list(range(30_000))
    body = json.dumps({"choices": [], "usage": {"prompt_tokens": 30_000}, "prompt_token_ids": ids}).encode()
    relay = Relay(200, JSON)
    passed(relay, [body[i : i + 65_536] for i in range(0, len(body), 65_536)])
    assert relay.usage() == Usage(prompt=30_000)


def test_usage_of_an_answer_that_ended_before_it_said_anything() -> None:
    relay = Relay(200, EVENTS)
    passed(relay, events(golden("messages-stream"))[:2])
    assert relay.usage() == Usage(30, None, 0)


def test_a_stream_that_is_left_long_after_it_told_the_prompt() -> None:
    relay = Relay(200, EVENTS)
    first, *rest = events(golden("messages-stream"))
    relay.feed(first)
    for event in rest[:3] * 100:
        relay.feed(event)
    assert relay.usage() == Usage(30, None, 0)


def test_a_stream_that_broke_before_its_usage_has_none() -> None:
    relay = Relay(200, EVENTS)
    for event in events(golden("chat-stream"))[:4]:
        relay.feed(event)
    assert relay.usage() == NO_USAGE


def test_repr_tells_the_state() -> None:
    assert repr(Relay(200, EVENTS)) == "<Relay held events>"
    assert repr(Relay(200, JSON)) == "<Relay held>"


def test_the_next_event_of_a_response_has_the_next_number() -> None:
    relay = Relay(200, EVENTS)
    numbers = []
    for event in events(golden("responses-stream")):
        relay.feed(event)
        numbers.append(relay.next_number)
    assert numbers[-1] == len(numbers)
    assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("stream", "number"),
    [
        (TEXT, 0),
        (b'data: {"delta":"x","sequence_number":4}\n\n', 5),
        (b'data: {"sequence_number": 41, "delta": "x"}\n\n', 42),
        (b'data: {"delta":"say \\"sequence_number\\":900","sequence_number":7}\n\n', 8),
        (b'data: {"delta":"x","sequence_number":4}\n\ndata: {"sequence_number":5,"de', 6),
        (b'data: {"delta":"x","sequence_number":"4"}\n\n', 0),
    ],
    ids=["chat", "last", "first, with blanks", "in a text", "of a cut event", "text"],
)
def test_the_next_number_of_streams(stream: bytes, number: int) -> None:
    relay = Relay(200, EVENTS)
    relay.feed(TEXT)
    relay.note(stream)
    assert relay.next_number == number
