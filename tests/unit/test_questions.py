"""What is put into a request's body: behind its first brace, nothing else changes, and only where it is of use."""

import json
from typing import Any

import pytest

from warmroute.core.messages import Shape
from warmroute.core.questions import TOKENS, USAGE, Asked, Asks, put_into

ALL = Asks(1000, True)


class Body:
    """A body's fields, read in the simplest way."""

    def __init__(self, body: bytes) -> None:
        self._fields: dict[str, Any] = json.loads(body)

    def field(self, name: str) -> object:
        return self._fields.get(name)

    def has(self, name: str) -> bool:
        return name in self._fields


def put(body: bytes, shape: Shape | None = Shape.CHAT, asks: Asks = ALL) -> Asked:
    return put_into(body, shape, Body(body), asks)


@pytest.mark.parametrize("blank", [b"", b" ", b"\n  "])
@pytest.mark.parametrize("shape", [Shape.CHAT, Shape.COMPLETIONS])
def test_the_questions_are_put_behind_the_first_brace_and_nothing_else_changes(blank: bytes, shape: Shape) -> None:
    body = blank + b'{ "model" : "m",\t"stream":true, "x": {"a": 1.0} }'
    asked = put(body, shape)
    assert (asked.tokens, asked.usage) == (True, True)
    assert asked.body.replace(TOKENS + USAGE, b"", 1) == body
    both = {"return_token_ids": True, "stream_options": {"include_usage": True}}
    assert json.loads(asked.body) == {**json.loads(body), **both}


@pytest.mark.parametrize(
    ("fields", "tokens", "usage"),
    [
        ('"n":2', False, True),
        ('"n":1', True, True),
        ('"n":null', True, True),
        ('"tools":[]', False, True),
        ('"return_token_ids":false', False, True),
        ('"stream_options":{"include_usage":true}', True, False),
        ('"stream_options":{"include_usage":false}', True, False),
        ('"stream_options":null', True, False),
    ],
)
def test_what_the_client_says_of_either_is_left_alone(fields: str, tokens: bool, usage: bool) -> None:
    asked = put(b'{"stream":true,' + fields.encode() + b"}")
    assert (asked.tokens, asked.usage) == (tokens, usage)
    assert json.loads(asked.body)["stream_options" if not usage else "stream"] == (
        json.loads("{" + fields + "}").get("stream_options") if not usage else True
    )


@pytest.mark.parametrize("shape", [Shape.MESSAGES, Shape.RESPONSES, None])
def test_other_apis_are_asked_nothing(shape: Shape | None) -> None:
    body = b'{"stream":true}'
    assert put(body, shape) == Asked(body)


@pytest.mark.parametrize("body", [b'{"stream":false}', b'{"model":"m"}', b"{}", b'{"stream":1}'])
def test_what_does_not_stream_is_asked_nothing(body: bytes) -> None:
    assert put(body) == Asked(body)


def test_a_long_body_is_not_asked_for_tokens_and_each_question_has_its_switch() -> None:
    body = b'{"stream": true}'
    assert len(body) == 16
    assert put(body, asks=Asks(16, False))[1:] == (True, False)
    assert put(body, asks=Asks(15, True))[1:] == (False, True)
    assert put(body, asks=Asks(0, False)) == Asked(body)
