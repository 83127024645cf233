"""Answers on their way: read the same however they are cut, and not at all where they are not whole."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.turns import Said, streamed_answer, whole_answer
from warmroute.core.answer import Answer
from warmroute.core.messages import ASSISTANT, Message, Shape
from warmroute.proxy.request import decoded

GOLDEN = Path(__file__).parent.parent / "golden"
STREAMS = {
    "chat-stream.sse": Shape.CHAT,
    "chat-stream-token-ids.sse": Shape.CHAT,
    "completions-stream.sse": Shape.COMPLETIONS,
    "messages-stream.sse": Shape.MESSAGES,
    "responses-stream.sse": Shape.RESPONSES,
}


def heard(shape: Shape, pieces: Iterable[bytes], stream: bool = True, only_id: bool = False) -> Answer:
    answer = Answer(shape, event_stream=stream, decode=decoded, only_id=only_id)
    for piece in pieces:
        answer.feed(piece)
    return answer


def events_of(name: str) -> list[Any]:
    lines = (GOLDEN / name).read_bytes().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]


def text_of(name: str) -> str:
    """What a captured stream says, put together by hand."""
    events = events_of(name)
    match STREAMS[name]:
        case Shape.CHAT:
            return "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"]).strip()
        case Shape.COMPLETIONS:
            return "".join(e["choices"][0]["text"] for e in events if e["choices"])
        case Shape.MESSAGES:
            return "".join(e["delta"].get("text", "") for e in events if "delta" in e).strip()
        case Shape.RESPONSES:
            return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta").strip()


@pytest.mark.parametrize("name", list(STREAMS))
def test_a_captured_stream_says_the_same_at_every_cut(name: str) -> None:
    data, shape = (GOLDEN / name).read_bytes(), STREAMS[name]
    message = Message(ASSISTANT, text_of(name))
    assert message.text
    for at in range(len(data) + 1):
        assert heard(shape, [data[:at], data[at:]]).message() == message
    assert heard(shape, (data[i : i + 1] for i in range(len(data)))).message() == message
    crlf = data.replace(b"\n", b"\r\n")
    for at in range(0, len(crlf) + 1, 3):
        assert heard(shape, [crlf[:at], crlf[at:]]).message() == message


@pytest.mark.parametrize("name", list(STREAMS))
def test_a_captured_stream_that_is_cut_says_nothing_else(name: str) -> None:
    """Where the rest is missing, the answer is either known to be whole already or not known at all."""
    data, shape = (GOLDEN / name).read_bytes(), STREAMS[name]
    message = Message(ASSISTANT, text_of(name))
    found = [heard(shape, [data[:at]]).message() for at in range(len(data) + 1)]
    assert set(found) == {None, message}
    assert found[len(data) // 2] is None
    assert b"finish_reason" in data[: found.index(message)] or shape in (Shape.MESSAGES, Shape.RESPONSES)
    assert data[: found.index(message)].endswith(b"\n\n")


def test_a_captured_body_says_what_it_holds() -> None:
    data = (GOLDEN / "messages.json").read_bytes()
    message = Message(ASSISTANT, json.loads(data)["content"][0]["text"].strip())
    for at in range(len(data) + 1):
        assert heard(Shape.MESSAGES, [data[:at], data[at:]], stream=False).message() == message
    assert heard(Shape.MESSAGES, [data[:-1]], stream=False).message() is None


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
arguments = st.dictionaries(texts, st.integers(-9, 9) | texts, max_size=3).map(json.dumps)
calls = st.lists(st.tuples(st.sampled_from(["get", "put"]), arguments), max_size=3).map(tuple)


@pytest.mark.parametrize("shape", list(Shape))
@given(st.data())
def test_a_stream_says_what_the_body_would(shape: Shape, data: st.DataObject) -> None:
    with_calls = st.just(()) if shape is Shape.COMPLETIONS else calls
    said = data.draw(st.builds(Said, texts, with_calls, texts))
    stream = streamed_answer(shape, said)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    message = heard(shape, pieces).message()
    assert message == heard(shape, [whole_answer(shape, said)], stream=False).message()
    if said.text.strip():
        assert message is not None
        assert said.text.strip() in message.text


@pytest.mark.parametrize("shape", [Shape.CHAT, Shape.COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
def test_several_choices_are_no_answer(shape: Shape, stream: bool) -> None:
    key = "delta" if stream else "message"
    choices = [{"index": i, key: {"content": "a"}, "text": "a", "finish_reason": "stop"} for i in range(2)]
    if stream:
        events = [{"choices": [choice]} for choice in choices]
        data = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    else:
        data = json.dumps({"choices": choices}).encode()
    assert heard(shape, [data], stream).message() is None


def test_an_error_is_no_answer() -> None:
    data = (GOLDEN / "chat-stream-n2.sse").read_bytes()
    for shape in Shape:
        assert heard(shape, [data], stream=False).message() is None
        assert heard(shape, [b"data: " + data + b"\n\n"]).message() is None


@pytest.mark.parametrize("status", ["failed", "cancelled", "in_progress", None, 7])
def test_a_response_that_did_not_come_to_its_end_is_no_answer(status: object) -> None:
    output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}]
    body = {"id": "resp_1", "status": status, "output": output}
    answer = heard(Shape.RESPONSES, [json.dumps(body).encode()], stream=False)
    assert answer.message() is None
    assert answer.response_id == "resp_1"


def test_the_id_of_a_response_is_known_before_its_end() -> None:
    data = (GOLDEN / "responses-stream.sse").read_bytes()
    first = data[: data.index(b"\n\n") + 2]
    for only_id in (False, True):
        answer = heard(Shape.RESPONSES, [first], only_id=only_id)
        assert answer.response_id == events_of("responses-stream.sse")[0]["response"]["id"]
    assert heard(Shape.RESPONSES, [data], only_id=True).message() is None


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_too_long_is_let_go(stream: bool) -> None:
    said = Said("x" * 50_000)
    choice = {"index": 0, "message": {"role": "assistant", "content": said.text}, "delta": {"content": said.text}}
    for times, kept in ((60, True), (100, False)):
        event = b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
        begin = b'{"choices": [{"message": {"role": "assistant", "content": "'
        pieces = [event] * times if stream else [begin, *[b"x" * 50_000] * times, b'"}}]}']
        end = [streamed_answer(Shape.CHAT, Said("end"))] if stream else []
        message = heard(Shape.CHAT, [*pieces, *end], stream).message()
        assert (message is not None) == kept
        if message is not None:
            assert len(message.text) >= times * 50_000


def test_an_event_that_never_ends_is_let_go() -> None:
    answer = Answer(Shape.CHAT, event_stream=True, decode=decoded)
    for _ in range(80):
        answer.feed(b"data: " + b"x" * 65_536)
    answer.feed(b"\n\n" + streamed_answer(Shape.CHAT, Said("end")))
    assert answer.message() is None


# Anything at all

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = "choices index delta message content tool_calls function name arguments type response output status id text"
MORE = "content_block partial_json input finish_reason role"
near = st.recursive(
    json_values
    | st.sampled_from(["assistant", "content_block_start", "content_block_delta", "message_stop", "completed"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from([*KEYS.split(), *MORE.split()]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.sampled_from(list(Shape)), st.booleans(), st.lists(near, max_size=5), near)
def test_events_of_any_kind_never_raise(shape: Shape, only_id: bool, events: list[object], last: object) -> None:
    fitting = {"choices": [{"message": last, "delta": last, "finish_reason": "stop"}], "content": last}
    fitting |= {"response": {"status": "completed", "output": last}, "output": last, "status": "completed"}
    begun = [{"type": "content_block_start", "index": 0, "content_block": last}, {"type": "message_stop"}]
    everything = [*events, *begun, fitting]
    data = b"".join(b"data: " + json.dumps(e).encode("utf-8", "surrogatepass") + b"\n\n" for e in everything)
    heard(shape, [data], only_id=only_id).message()
    for value in (last, fitting):
        heard(shape, [json.dumps(value).encode()], stream=False, only_id=only_id).message()


chunks = st.binary(max_size=40) | st.sampled_from([b"data: ", b"\n\n", b"\r\n", b"{}"])


@given(st.sampled_from(list(Shape)), st.booleans(), st.lists(chunks, max_size=8))
def test_bytes_of_any_kind_never_raise(shape: Shape, stream: bool, pieces: list[bytes]) -> None:
    assert heard(shape, pieces, stream).message() is None


@pytest.mark.parametrize("shape", [Shape.CHAT, Shape.MESSAGES, Shape.RESPONSES])
@pytest.mark.parametrize("depth", [100, 300, 450, 480, 100_000])
def test_an_answer_of_any_depth_never_raises(shape: Shape, depth: int) -> None:
    content = '[{"type": "tool_result", "content": ' * depth + '"x"' + "}]" * depth
    body = {
        Shape.CHAT: f'{{"choices": [{{"index": 0, "message": {{"role": "assistant", "content": {content}}}}}]}}',
        Shape.MESSAGES: f'{{"content": {content}}}',
        Shape.RESPONSES: f'{{"status": "completed", "output": [{{"role": "assistant", "content": {content}}}]}}',
    }[shape]
    heard(shape, [body.encode()], stream=False).message()
