"""Messages: equal for all ways to write the same, different for all that differs, and never an exception."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.messages import (
    ASSISTANT,
    SYSTEM,
    USER,
    Message,
    Shape,
    answer_message,
    request_messages,
    tools_text,
)
from warmroute.proxy.request import decoded


def read(shape: Shape, **fields: object) -> list[Message]:
    return request_messages(shape, fields.get)


def chat(*messages: object) -> list[Message]:
    return read(Shape.CHAT, messages=list(messages))


def blocks(*content: object) -> list[Message]:
    return read(Shape.MESSAGES, messages=[{"role": "assistant", "content": list(content)}])


def items(*given: object) -> list[Message]:
    return read(Shape.RESPONSES, input=list(given))


def call(arguments: object, name: str = "get") -> dict[str, object]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


def called(*calls: object, content: object = None) -> dict[str, object]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def test_each_protocol_says_the_same() -> None:
    said = [Message(SYSTEM, "be kind"), Message(USER, "hi"), Message(ASSISTANT, "hello"), Message(USER, "so?")]
    turns = [{"role": m.role, "content": m.text} for m in said]
    assert chat(*turns) == said
    assert read(Shape.MESSAGES, system="be kind", messages=turns[1:]) == said
    assert read(Shape.RESPONSES, instructions="be kind", input=turns[1:]) == said
    assert read(Shape.COMPLETIONS, prompt="hi") == [Message(USER, "hi")]


# Ways to write the same

SAME: list[tuple[str, Callable[[], list[Message]], Callable[[], list[Message]]]] = [
    (
        "one part",
        lambda: chat({"role": "user", "content": "hi"}),
        lambda: chat({"role": "user", "content": [{"type": "text", "text": "hi"}]}),
    ),
    (
        "cache mark",
        lambda: chat({"role": "user", "content": [{"type": "text", "text": "hi"}]}),
        lambda: chat({"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "x"}}]}),
    ),
    (
        "cache mark on an image",
        lambda: chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}),
        lambda: chat(
            {"role": "user", "content": [{"image_url": {"url": "u"}, "type": "image_url", "cache_control": {"a": "b"}}]}
        ),
    ),
    (
        "developer",
        lambda: chat({"role": "system", "content": "s"}),
        lambda: chat({"role": "developer", "content": "s"}),
    ),
    (
        "ids and nulls",
        lambda: chat({"role": "user", "content": "hi"}),
        lambda: chat({"id": "1", "role": "user", "content": "hi", "name": None, "refusal": None, "status": "x"}),
    ),
    (
        "blanks at the ends",
        lambda: chat({"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}),
        lambda: chat({"role": "user", "content": "hi \n"}, {"role": "assistant", "content": "\n\nyes\t"}),
    ),
    (
        "think block",
        lambda: chat({"role": "assistant", "content": "yes"}),
        lambda: chat({"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"}),
    ),
    (
        "reasoning",
        lambda: chat({"role": "assistant", "content": "yes"}),
        lambda: chat({"role": "assistant", "content": "yes", "reasoning": "hm", "reasoning_content": "hm"}),
    ),
    (
        "thinking block",
        lambda: blocks({"type": "text", "text": "yes"}),
        lambda: blocks({"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "yes"}),
    ),
    (
        "reasoning item",
        lambda: items({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]}),
        lambda: items({"type": "reasoning", "summary": []}, {"role": "assistant", "content": "yes"}),
    ),
    (
        "arguments in another order",
        lambda: chat(called(call('{"a": 1, "b": "x"}'))),
        lambda: chat(called(call('{"b":"x","a":1}'))),
    ),
    (
        "arguments as an object",
        lambda: chat(called(call('{"a": [1, "x"]}'))),
        lambda: chat(called(call({"a": [1, "x"]}))),
    ),
    ("escapes in arguments", lambda: chat(called(call('{"a": "\\u00e9"}'))), lambda: chat(called(call('{"a": "é"}')))),
    (
        "another id of the call",
        lambda: chat(called(call("{}"))),
        lambda: chat(called({**call("{}"), "id": "c2", "index": 0})),
    ),
    ("no content and an empty one", lambda: chat(called(call("{}"))), lambda: chat(called(call("{}"), content=""))),
    (
        "the legacy call",
        lambda: chat(called(call("{}"))),
        lambda: chat({"role": "assistant", "content": None, "function_call": {"name": "get", "arguments": "{}"}}),
    ),
    (
        "an answer in two messages",
        lambda: chat({"role": "assistant", "content": "ab"}),
        lambda: chat({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}),
    ),
    (
        "a call in a message of its own",
        lambda: chat(called(call("{}"), content="I look.")),
        lambda: chat({"role": "assistant", "content": "I look."}, called(call("{}"))),
    ),
    (
        "a text as the whole input",
        lambda: read(Shape.RESPONSES, input="hi"),
        lambda: items({"role": "user", "content": [{"type": "input_text", "text": "hi"}]}),
    ),
    (
        "the billing line of Claude Code",
        lambda: read(Shape.MESSAGES, system=[{"type": "text", "text": "be kind"}], messages=[]),
        lambda: read(
            Shape.MESSAGES,
            system=[
                {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=17;"},
                {"type": "text", "text": "be kind"},
            ],
            messages=[],
        ),
    ),
    (
        "numbers as JavaScript writes them again",
        lambda: chat(called(call('{"a": 1.0, "b": 1e3, "c": -0.0, "d": 2.50}'))),
        lambda: chat(called(call('{"a": 1, "b": 1000, "c": 0, "d": 2.5}'))),
    ),
    (
        "no arguments, written as an empty object",
        lambda: chat(called(call(""), call('{"a": 1}'))),
        lambda: chat(called(call("{}"), call('{"a": 1}'))),
    ),
    (
        "blanks before a call",
        lambda: blocks({"type": "text", "text": "I look.\n"}, {"type": "tool_use", "name": "get", "input": {"a": 1}}),
        lambda: blocks({"type": "text", "text": "I look."}, {"type": "tool_use", "name": "get", "input": {"a": 1}}),
    ),
    (
        "an empty text before a call",
        lambda: blocks(
            {"type": "text", "text": "I look."},
            {"type": "text", "text": ""},
            {"type": "tool_use", "name": "get", "input": {"a": 1}},
        ),
        lambda: blocks({"type": "text", "text": "I look."}, {"type": "tool_use", "name": "get", "input": {"a": 1}}),
    ),
]


@pytest.mark.parametrize(("one", "other"), [case[1:] for case in SAME], ids=[case[0] for case in SAME])
def test_ways_to_write_the_same(one: Callable[[], list[Message]], other: Callable[[], list[Message]]) -> None:
    assert one() == other()


# What differs

DIFFERENT: list[tuple[str, list[Message], list[Message]]] = [
    ("text", chat({"role": "user", "content": "hi"}), chat({"role": "user", "content": "hi!"})),
    ("role", chat({"role": "user", "content": "hi"}), chat({"role": "system", "content": "hi"})),
    ("blanks inside", chat({"role": "user", "content": "a b"}), chat({"role": "user", "content": "a  b"})),
    ("case", chat({"role": "user", "content": "a"}), chat({"role": "user", "content": "A"})),
    (
        "image",
        chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}),
        chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "v"}}]}),
    ),
    ("the tool that is called", chat(called(call("{}"))), chat(called(call("{}", "put")))),
    ("arguments", chat(called(call('{"path": "a"}'))), chat(called(call('{"path": "b"}')))),
    ("arguments named id", chat(called(call('{"id": "a"}'))), chat(called(call('{"id": "b"}')))),
    ("arguments named type", chat(called(call('{"type": "bug"}'))), chat(called(call('{"type": "task"}')))),
    ("arguments named status", chat(called(call('{"status": "open"}'))), chat(called(call('{"status": "done"}')))),
    (
        "input named id",
        blocks({"type": "tool_use", "name": "get", "input": {"id": "a"}}),
        blocks({"type": "tool_use", "name": "get", "input": {"id": "b"}}),
    ),
    (
        "arguments of an item named id",
        items({"type": "function_call", "name": "get", "arguments": '{"id": "a"}'}),
        items({"type": "function_call", "name": "get", "arguments": '{"id": "b"}'}),
    ),
    (
        "result",
        chat({"role": "tool", "tool_call_id": "1", "content": "a"}),
        chat({"role": "tool", "tool_call_id": "1", "content": "b"}),
    ),
    (
        "a thought said aloud",
        chat({"role": "assistant", "content": "<think>a"}),
        chat({"role": "assistant", "content": "<think>b"}),
    ),
    (
        "a thought of the user",
        chat({"role": "user", "content": "<think>a</think>x"}),
        chat({"role": "user", "content": "x"}),
    ),
    (
        "order",
        items({"role": "user", "content": "a"}, {"role": "user", "content": "b"}),
        items({"role": "user", "content": "b"}, {"role": "user", "content": "a"}),
    ),
]


@pytest.mark.parametrize(("one", "other"), [case[1:] for case in DIFFERENT], ids=[case[0] for case in DIFFERENT])
def test_what_differs(one: list[Message], other: list[Message]) -> None:
    assert one != other


@given(st.lists(st.sampled_from(["user", "tool", "system"]), max_size=5), st.data())
def test_other_texts_are_other_messages(roles: list[str], data: st.DataObject) -> None:
    texts = st.lists(st.text(max_size=4), min_size=len(roles), max_size=len(roles))
    one, other = data.draw(texts), data.draw(texts)
    first = chat(*({"role": r, "content": t} for r, t in zip(roles, one, strict=True)))
    second = chat(*({"role": r, "content": t} for r, t in zip(roles, other, strict=True)))
    assert (first == second) == ([t.strip() for t in one] == [t.strip() for t in other])


# Answers


@pytest.mark.parametrize(
    ("shape", "said", "text"),
    [
        (Shape.CHAT, {"role": "assistant", "content": " yes "}, "yes"),
        (Shape.MESSAGES, [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "yes"}], "yes"),
        (Shape.RESPONSES, [{"type": "reasoning"}, {"type": "message", "role": "assistant", "content": "yes"}], "yes"),
        (Shape.COMPLETIONS, " yes ", " yes "),
    ],
    ids=lambda value: value if isinstance(value, Shape) else "",
)
def test_an_answer_is_what_the_next_turn_has(shape: Shape, said: object, text: str) -> None:
    assert answer_message(shape, said) == Message(ASSISTANT, text)


@pytest.mark.parametrize("shape", list(Shape))
@pytest.mark.parametrize(
    "said", [None, [], {}, [{"role": "user", "content": "x"}] * 2], ids=["null", "list", "object", "users"]
)
def test_what_is_no_answer(shape: Shape, said: object) -> None:
    found = answer_message(shape, said)
    assert found is None or found.role == ASSISTANT
    if said is None:
        assert found is None or found.text == ""


def test_the_tools_are_one_text_whatever_the_order_of_their_keys() -> None:
    tool = {"type": "function", "function": {"name": "get", "parameters": {"a": {"type": "string"}}}}
    turned = {"function": {"parameters": {"a": {"type": "string"}}, "name": "get"}, "type": "function"}
    assert tools_text({"tools": [tool]}.get) == tools_text({"tools": [turned]}.get)
    assert "get" in tools_text({"tools": [tool]}.get)
    assert tools_text(lambda name: None) == ""


# Anything at all

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = (
    *("role", "content", "type", "text", "tool_calls", "function", "name", "arguments", "function_call", "input"),
    *("output", "id", "status"),
)
WORDS = ("assistant", "user", "system", "tool_use", "tool_result", "message", "function_call", "text", "reasoning")
near_values = st.recursive(
    json_values | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(list(Shape)), near_values | st.lists(near_values, max_size=3), near_values)
def test_nothing_raises_and_nothing_changes(shape: Shape, value: Any, other: Any) -> None:
    fields = {
        "messages": value,
        "input": value,
        "prompt": value,
        "system": other,
        "instructions": other,
        "tools": other,
    }
    before = copy.deepcopy(fields)
    first = request_messages(shape, fields.get)
    assert repr(fields) == repr(before)
    assert first == request_messages(shape, fields.get)
    assert all(isinstance(m.role, str) and isinstance(m.text, str) for m in first)
    answer_message(shape, value)
    tools_text(fields.get)


def nested(depth: int, before: str, after: str) -> str:
    """JSON of so many levels; written by hand, since the encoder's own limit of depth is lower than the decoder's."""
    return before * depth + '"x"' + after * depth


RESULT = ('[{"type": "tool_result", "content": ', "}]")
DEEP: dict[str, tuple[str, tuple[str, str], str]] = {
    "tool results": ('{"role": "user", "content": ', RESULT, "}"),
    "objects": ('{"role": "user", "content": [{"type": "x", "y": ', ('{"a": ', "}"), "}]}"),
    "lists": ('{"role": "user", "content": ', ("[", "]"), "}"),
    "a tool's name": ('{"role": "assistant", "tool_calls": [{"function": {"name": ', ("[", "]"), "}}]}"),
    "arguments": ('{"role": "assistant", "tool_calls": [{"function": {"arguments": ', ("[", "]"), "}}]}"),
    "an item's output": ('{"type": "function_call_output", "output": ', RESULT, "}"),
    "an item's name": ('{"type": "function_call", "name": ', ("[", "]"), "}"),
}


@pytest.mark.parametrize("shape", [Shape.CHAT, Shape.RESPONSES])
@pytest.mark.parametrize("what", list(DEEP))
def test_whatever_can_be_decoded_can_be_read(what: str, shape: Shape) -> None:
    """The decoder's own limit of depth comes close to the interpreter's."""
    readable = 0
    begin, level, end = DEEP[what]
    for depth in [*range(50, 450, 25), *range(450, 500), *range(900, 1000)]:
        value = decoded(f"{begin}{nested(depth, *level)}{end}".encode())
        if value is not None:
            readable += 1
            read(shape, messages=[value], input=[value])
    assert readable > 20


def test_arguments_of_any_depth_are_a_text_then() -> None:
    deep = "[" * 200_000 + "]" * 200_000
    assert chat(called(call(deep))) == [Message(ASSISTANT, f"\0get\n{deep}")]


@pytest.mark.parametrize("kind", [[], {}, 7, None, True, 1.5], ids=repr)
def test_a_type_that_is_no_word(kind: object) -> None:
    part = {"type": kind, "text": "hi"}
    assert chat({"role": "user", "content": [part]}) == [Message(USER, "hi")]
    assert len(items({"type": kind, "output": "x"})) <= 1


@pytest.mark.parametrize("role", [[], {}, 7, None], ids=repr)
def test_a_role_that_is_no_word(role: object) -> None:
    assert chat({"role": role, "content": "hi"}) == [Message("", "hi")]
