"""A prompt's parts, cut out of the JSON of all protocols."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.messages import Shape
from warmroute.core.sketch import Kind
from warmroute.proxy.parts import Part, parts_of
from warmroute.proxy.request import FieldReader

READER = FieldReader(["messages", "system", "tools", "instructions", "input", "prompt"])
TOOL, SYSTEM, USER, ASSISTANT, OTHER = Kind


def parts(shape: Shape, body: Any) -> list[Part]:
    fields = READER.read(body if isinstance(body, bytes) else json.dumps(body).encode())
    return parts_of(shape, lambda name: READER.raw(fields, name))


def kinds(shape: Shape, body: Any) -> list[Kind]:
    return [kind for kind, _ in parts(shape, body)]


def said(role: str, content: Any = "x") -> dict[str, Any]:
    return {"role": role, "content": content}


CHAT = [said("system"), said("user"), said("assistant"), said("tool"), said("user")]


def test_a_chat() -> None:
    body = {"messages": CHAT, "tools": [{"type": "function"}, {"type": "function"}], "model": "m"}
    assert kinds(Shape.CHAT, body) == [TOOL, TOOL, SYSTEM, USER, ASSISTANT, OTHER, USER]
    assert parts(Shape.CHAT, body)[3] == (USER, b'{"role": "user", "content": "x"}')


@pytest.mark.parametrize(
    "text",
    [
        b'{"role":"user","content":"x"}',
        b'{"content":"x","role":"user"}',
        b'{ "role" : "user" , "content" : "x" }',
        b'{"name":"a","content":"\\"role\\":\\"assistant\\"","role":"user"}',
        b'{"content":[{"role":"assistant"}],"role":"user"}',
    ],
)
def test_the_role_is_found_wherever_it_stands(text: bytes) -> None:
    assert kinds(Shape.CHAT, b'{"messages":[' + text + b"]}") == [USER]


def test_a_later_system_message_matters_on_messages_only() -> None:
    body = {"messages": [said("system"), said("user"), said("system"), said("developer")]}
    assert kinds(Shape.CHAT, body) == [SYSTEM, USER, OTHER, OTHER]
    assert kinds(Shape.MESSAGES, body) == [SYSTEM, USER, SYSTEM, SYSTEM]


def test_anthropic() -> None:
    result = said("user", [{"type": "tool_result", "tool_use_id": "t", "content": "r"}])
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {"system": blocks, "messages": [said("user"), said("assistant"), result]}
    assert kinds(Shape.MESSAGES, body) == [SYSTEM, SYSTEM, USER, ASSISTANT, OTHER]
    assert kinds(Shape.MESSAGES, {"system": "a", "messages": [said("user")]}) == [SYSTEM, USER]


def test_responses() -> None:
    items = [said("developer"), said("user"), {"type": "reasoning", "id": "r"}, {"type": "function_call", "name": "f"}]
    items += [{"type": "function_call_output", "output": "o"}, said("system"), {"type": "message", "role": "assistant"}]
    expected = [SYSTEM, SYSTEM, USER, ASSISTANT, ASSISTANT, OTHER, OTHER, ASSISTANT]
    assert kinds(Shape.RESPONSES, {"instructions": "i", "input": items}) == expected


def test_an_input_that_is_a_text_is_the_first_message_of_a_list() -> None:
    text = parts(Shape.RESPONSES, b'{"input":"hello"}')
    assert text == parts(Shape.RESPONSES, b'{"input":[{"role":"user","content":"hello"}]}')


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ('"Once"', [(USER, b'"Once')]),
        ("[1, 2, 3]", [(USER, b"[1, 2, 3")]),
        ('["a", "b"]', []),
        ("[[1], [2]]", []),
        ("[]", []),
        ("7", []),
        ("null", []),
    ],
)
def test_completions(prompt: str, found: list[Part]) -> None:
    assert parts(Shape.COMPLETIONS, f'{{"prompt": {prompt}}}'.encode()) == found


# The same, written otherwise


def as_list(text: str, **more: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text, **more}]


@given(st.text(max_size=60), st.sampled_from(["user", "assistant", "system"]), st.booleans())
def test_one_text_in_a_list_is_that_text(text: str, role: str, compact: bool) -> None:
    def cut(content: Any) -> list[Part]:
        return parts(
            Shape.CHAT,
            json.dumps({"messages": [said(role, content)]}, separators=(",", ":") if compact else None).encode(),
        )

    plain, listed = cut(text), cut(as_list(text))
    if plain != listed:  # only texts that look like JSON's own punctuation are left as they are
        assert any(mark in text for mark in ('"},{', '"}, {', '","', '", "'))
    assert cut(as_list(text, cache_control={"type": "ephemeral"})) == listed


def test_two_texts_stay_two() -> None:
    body = {"messages": [said("user", [*as_list("a"), *as_list("b")])]}
    assert parts(Shape.CHAT, body) == [(USER, json.dumps(body["messages"][0]).encode())]
    other = {"messages": [said("user", as_list("a", citations="b"))]}
    assert parts(Shape.CHAT, other) == [(USER, json.dumps(other["messages"][0]).encode())]


@pytest.mark.parametrize(
    "mark",
    [
        {"cache_control": {"type": "ephemeral"}},
        {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"cache_control": None},
        {"prompt_cache_breakpoint": True},
    ],
)
def test_cache_marks_are_left_out(mark: dict[str, Any]) -> None:
    def body(more: dict[str, Any]) -> dict[str, Any]:
        blocks = [*as_list("a"), *as_list("b", **more)]
        return {"tools": [{"name": "t", **more}], "system": as_list("s", **more), "messages": [said("user", blocks)]}

    assert parts(Shape.MESSAGES, body(mark)) == parts(Shape.MESSAGES, body({}))
    first = {"messages": [{**mark, **said("user", [{**mark, **as_list("a")[0]}, *as_list("b")])}]}
    assert parts(Shape.CHAT, first) == parts(Shape.CHAT, {"messages": [said("user", [*as_list("a"), *as_list("b")])]})


def test_text_that_talks_of_cache_marks_is_left_alone() -> None:
    text = 'use "cache_control": {"type": "ephemeral"} and ,"cache_control":null'
    assert parts(Shape.CHAT, {"messages": [said("user", text)]}) == [(USER, json.dumps(said("user", text)).encode())]


# Anything


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"messages": 3, "tools": "x", "system": {}, "input": 1.5, "prompt": {}, "instructions": []}',
        b'{"messages": null, "tools": {}}',
        b'{"messages": [[[]]], "tools": [1, null, "t"]}',
        b'{"messages": ' + b"[" * 3000 + b"]" * 3000 + b"}",
        b'{"messages": [{"role": {"a": 1}, "content": 4}]}',
        b'{"messages": ["\xff"], "input": ["\xff"], "system": ["\xff"], "prompt": "\xff"}',
    ],
)
@pytest.mark.parametrize("shape", list(Shape))
def test_odd_bodies_have_what_parts_they_have(shape: Shape, body: bytes) -> None:
    for kind, data in parts(shape, body):
        assert isinstance(kind, Kind)
        assert type(data) is bytes


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["user", "system", "tool_result"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["role", "type", "content", "text", "cache_control", "output"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(st.sampled_from(["messages", "system", "tools", "instructions", "input", "prompt"]), json_values)
)
def test_no_json_makes_it_fail(body: dict[str, Any]) -> None:
    for shape in Shape:
        for kind, data in parts(shape, body):
            assert isinstance(kind, Kind)
            assert type(data) is bytes


def test_broken_items_have_no_parts() -> None:
    broken = b'[{"role": "user"}, {"role": ]'
    assert parts_of(Shape.CHAT, lambda name: broken if name == "messages" else None) == []
