"""A prompt that goes on from another is known by its bytes; what it adds is the same as when all of it is looked at."""

import json
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.identity import DEFAULT_SOURCES
from warmroute.core.messages import Shape
from warmroute.core.sketch import Kind, Stem, sketch
from warmroute.proxy.parts import Said, parts_of
from warmroute.proxy.request import reader_for

READER = reader_for(DEFAULT_SOURCES)
LISTED = {Shape.CHAT: "messages", Shape.MESSAGES: "messages", Shape.RESPONSES: "input"}

texts = st.one_of(st.text(max_size=30), st.sampled_from(["x" * 3000, "y" * 20_000, "x-anthropic-billing-header: 1"]))
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", "developer"]), "content": texts}
)
layouts = st.sampled_from([{}, {"separators": (",", ":")}, {"indent": 2}, {"ensure_ascii": False}])


class Fields:
    """The fields of a body."""

    def __init__(self, body: bytes) -> None:
        self._fields = READER.read(body)

    def raw(self, name: str) -> bytes | None:
        return READER.raw(self._fields, name)

    def written(self, name: str) -> memoryview | None:
        raw = self.raw(name)
        return None if raw is None else memoryview(raw)


def said(shape: Shape, body: bytes) -> Said:
    return Said(shape, Fields(body))


@given(
    st.sampled_from(sorted(LISTED)),
    st.lists(messages, min_size=1, max_size=5),
    st.lists(messages, max_size=3),
    layouts,
)
def test_what_is_added_is_what_all_of_it_shows(
    shape: Shape, old: list[dict[str, str]], more: list[dict[str, str]], layout: dict[str, object]
) -> None:
    beside = {"system": "You help.", "instructions": "Help.", "tools": [{"name": "t"}]}
    before, now = (
        json.dumps({LISTED[shape]: listed, **beside}, **layout).encode("utf-8", "surrogatepass")  # type: ignore[arg-type]
        for listed in (old, old + more)
    )
    had = sketch(parts_of(shape, partial(READER.raw, READER.read(before))))
    had.stem, _ = said(shape, before).added(None)
    later = said(shape, now)
    made, added = later.added(had.stem)
    assert added is not None
    if not had.begun:
        return
    whole, grown = sketch(later.parts()), had.grown(added)
    for name in ("digests", "lengths", "kinds", "size", "billing", "text"):
        assert getattr(grown, name) == getattr(whole, name)
    assert later.added(made) == (made, [])


LONG = b'{"role":"user","content":"%b"}' % (b"x" * 50_000)


def chat(*messages: bytes, **beside: str) -> Said:
    fields = b"".join(b',"%b":"%b"' % (name.encode(), value.encode()) for name, value in beside.items())
    return said(Shape.CHAT, b'{"messages":[' + b",".join(messages) + b"]" + fields + b"}")


def stem_of(said: Said) -> Stem:
    stem, _ = said.added(None)
    assert stem is not None
    return stem


@pytest.mark.parametrize("at", [30, 239, 241, 1023, 1025, 16 << 10, 40_000, len(LONG) - 3])
def test_one_byte_that_differs_anywhere_is_seen(at: int) -> None:
    old = stem_of(chat(LONG))
    more = b'{"role":"assistant","content":"b"}'
    stem, added = chat(LONG, more).added(old)
    assert added == [(Kind.ASSISTANT, more)]
    assert stem == stem_of(chat(LONG, more))
    changed = LONG[:at] + b"y" + LONG[at + 1 :]
    stem, added = chat(changed, more).added(old)
    assert added is None
    assert stem == stem_of(chat(changed, more))
    assert stem_of(chat(changed)) != old


def test_what_stands_beside_it_is_seen_and_a_shorter_one_too() -> None:
    old = stem_of(chat(LONG, LONG))
    assert chat(LONG, LONG).added(old) == (old, [])
    assert chat(LONG).added(old)[1] is None
    for name in ("tools", "system", "instructions"):
        other = chat(LONG, LONG, **{name: "a"})
        assert other.added(old)[1] is None
        assert other.added(stem_of(other))[1] == []


def test_a_prompt_that_is_no_list_has_no_stem() -> None:
    for shape, body in (
        (Shape.COMPLETIONS, b'{"prompt":"a"}'),
        (Shape.RESPONSES, b'{"input":"a"}'),
        (Shape.CHAT, b'{"messages":{}}'),
        (Shape.CHAT, b"{}"),
    ):
        assert said(shape, body).added(None) == (None, None)


def test_what_stands_behind_the_old_list_must_be_a_list_that_goes_on() -> None:
    old, _ = said(Shape.CHAT, b'{"messages":[{"role":"user","content":"a"}]}').added(None)
    assert said(Shape.CHAT, b'{"messages":[{"role":"user","content":"a"} ]}').added(old)[1] == []
    more = said(Shape.CHAT, b'{"messages":[{"role":"user","content":"a"} , {"role":"assistant","content":"b"}]}')
    assert more.added(old)[1] == [(Kind.ASSISTANT, b'{"role":"assistant","content":"b"}')]
    empty, _ = said(Shape.CHAT, b'{"messages":[]}').added(None)
    assert said(Shape.CHAT, b'{"messages":[{"role":"user","content":"a"}]}').added(empty)[1] is None
