"""A prompt that goes on from another is known by its bytes; what it adds is the same as when all of it is looked at."""

import json
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.identity import DEFAULT_SOURCES
from warmroute.core.messages import Shape
from warmroute.core.sketch import Kind, sketch
from warmroute.core.stem import STEP, stem
from warmroute.proxy.parts import Said, parts_of
from warmroute.proxy.request import reader_for

READER = reader_for(DEFAULT_SOURCES)
LISTED = {Shape.CHAT: "messages", Shape.MESSAGES: "messages", Shape.RESPONSES: "input"}

texts = st.one_of(st.text(max_size=30), st.sampled_from(["x" * 3000, "y" * STEP, "x-anthropic-billing-header: 1"]))
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", "developer"]), "content": texts}
)
layouts = st.sampled_from([{}, {"separators": (",", ":")}, {"indent": 2}, {"ensure_ascii": False}])


def said(shape: Shape, body: bytes) -> Said:
    return Said(shape, partial(READER.raw, READER.read(body)))


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
    assert made is not None
    assert made.begins(made, b"")


@pytest.mark.parametrize("at", [5, STEP - 1, STEP, 2 * STEP + 7, 3 * STEP - 1])
def test_one_byte_that_differs_anywhere_is_seen(at: int) -> None:
    data = b"[" + b"x" * (3 * STEP) + b"]"
    old = stem(1, data, len(data) - 1)
    changed = data[:at] + b"y" + data[at + 1 :]
    now = stem(1, changed + b"more]", len(changed) + 4)
    assert not old.begins(now, changed + b"more]")
    longer = data[:-1] + b"more]"
    assert old.begins(stem(1, longer, len(longer) - 1), longer)
    assert not old.begins(stem(2, longer, len(longer) - 1), longer)  # other tools
    assert not stem(1, longer, len(longer) - 1).begins(old, data)  # shorter


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
