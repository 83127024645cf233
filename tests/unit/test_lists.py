"""A history known by its bytes: what comes of it is what comes of reading all, and only what is new is read."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.turns import PATHS, PLAIN, Asked, Entry, Got, Said, Style, World, request_body, whole_answer
from warmroute.core.answer import Decode
from warmroute.core.history import History
from warmroute.core.messages import RawField, Shape
from warmroute.recognition.lists import Lists

SHAPES = (Shape.CHAT, Shape.MESSAGES)
HELLO: list[Entry] = [Asked("hello")]


class Blind(Lists):
    """Knows no list, so that all of each is read."""

    def look(self, shape: Shape, start: bytes, written: RawField, decode: Decode) -> tuple[bytes, History | None]:
        return b"", None


def blind() -> World:
    world = World()
    lists = Blind(lambda: world.now, expiry=1.0, limit=1)
    world.recognizer.memory = world.memory = replace(world.memory, lists=lists)
    return world


@pytest.mark.parametrize("style", [PLAIN, Style(indent=1), Style(parts=True)], ids=["plain", "indented", "parts"])
@pytest.mark.parametrize("shape", SHAPES)
def test_only_what_is_new_is_read(shape: Shape, style: Style) -> None:
    world, chat = World(), list(HELLO)
    lengths = []
    for turn in range(4):
        said = Said(f'an "assistant" {{{turn}')
        went = world.send(PATHS[shape], request_body(shape, "", chat, style), whole_answer(shape, said))
        lengths.append(len(went.turn.history.digests) if went.turn.history is not None else 0)
        chat += [said, Asked(f"more {turn}")]
    assert lengths == [1, 2, 2, 2]


def test_what_only_looks_like_an_answer_is_none() -> None:
    """The guess is wrong then, and all is read."""
    world = World()
    call = Said("", (("get", '{"message": {"role": "assistant"}}'),))
    first = world.say(HELLO, call, shape=Shape.MESSAGES)
    second = world.say([*HELLO, call, Got("it")], Said("so"), shape=Shape.MESSAGES)
    assert second.key == first.key
    assert second.turn.history is not None
    assert len(second.turn.history.digests) == 3


@pytest.mark.parametrize("change", [{"model": "other"}, {"cache_salt": "s"}, {"system": "x"}], ids=str)
def test_the_same_list_beside_something_else_is_another_history(change: dict[str, str]) -> None:
    world = World()
    bodies = []
    for chat in (HELLO, [*HELLO, Said("hi"), Asked("more")]):
        bodies.append(json.loads(request_body(Shape.MESSAGES, "", chat)))
    answer = whole_answer(Shape.MESSAGES, Said("hi"))
    first = world.send(PATHS[Shape.MESSAGES], json.dumps(bodies[0]).encode(), answer)
    second = world.send(PATHS[Shape.MESSAGES], json.dumps(bodies[1] | change).encode(), answer)
    assert first.key != second.key


def test_a_list_that_ends_with_an_answer_is_read_again() -> None:
    """What comes behind may go on with that answer, and then is one message with it."""
    world = World()
    world.say([*HELLO, Said("hi "), Asked("more")], Said("yes"))
    prefilled = world.say([*HELLO, Said("hi "), Asked("more"), Said("y")], Said("es"))
    after = world.say([*HELLO, Said("hi "), Asked("more"), Said("y"), Said("es"), Asked("so")], Said("then"))
    assert prefilled.key == after.key
    assert after.turn.history is not None
    assert len(after.turn.history.digests) == 5


@pytest.mark.parametrize(
    "written", ["[]", "{}", '"x"', "null", "1", "[1,2]", '[{"role":"assistant"}]', '[,{"assistant"']
)
def test_any_value_may_stand_for_the_list(written: str) -> None:
    lists = Lists(lambda: 0.0, expiry=1.0, limit=9)
    digest, history = lists.look(Shape.CHAT, b"", {"messages": written.encode()}.get, json.loads)
    assert bool(digest) == written.startswith("[")
    assert history is None


def test_a_changed_answer_goes_to_who_asked_last() -> None:
    world = World()
    changed = [*HELLO, Said("changed"), Asked("b")]
    world.say(HELLO, Said("hi"))
    second = world.say(HELLO, Said("hi"))
    assert world.say(changed).key == second.key
    third = world.say(HELLO, Said("hi"))
    assert world.say(changed).key == third.key


texts = st.sampled_from(["a", "b", ', {"role": "assistant"', '"assistant"', "<think>x</think>a", " a"])
entries = st.one_of(texts.map(Asked), texts.map(Said), texts.map(Got))
styles = st.builds(Style, parts=st.booleans(), indent=st.none() | st.just(1), thoughts=st.booleans())


def after(chat: Sequence[Entry], keep: int, *more: Entry) -> list[Entry]:
    return [*chat[: max(1, len(chat) - keep)], *more]


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_what_is_found_is_what_reading_all_of_it_finds(shape: Shape, data: st.DataObject) -> None:
    """Chats that grow, are edited, regenerated, branched and written anew, with a few texts so that they often meet."""
    seeing, reading = World(), blind()
    chats: list[list[Entry]] = [[Asked("a")], [Asked("a")], [Asked("b")]]
    style = data.draw(styles)
    for _ in range(data.draw(st.integers(4, 14))):
        which = data.draw(st.integers(0, 2))
        chat = after(
            chats[which], data.draw(st.sampled_from([0, 0, 0, 1, 2, 3])), *data.draw(st.lists(entries, max_size=2))
        )
        said = Said(data.draw(texts))
        body = request_body(shape, "", chat, data.draw(st.sampled_from([style, style, PLAIN])))
        heard = whole_answer(shape, said) if data.draw(st.sampled_from([True, True, True, False])) else None
        one, other = (world.send(PATHS[shape], body, heard) for world in (seeing, reading))
        assert (one.key, one.reason, one.backend, one.turn.new) == (
            other.key,
            other.reason,
            other.backend,
            other.turn.new,
        )
        match = [went.turn.found and went.turn.found.match for went in (one, other)]
        assert match[0] == match[1]
        assert (one.turn.heads, one.turn.wishes) == (other.turn.heads, other.turn.wishes)
        if one.turn.history is not None and other.turn.history is not None:
            assert one.turn.history.digests[-1] == other.turn.history.digests[-1]
        chats[which] = [*chat, said, Asked(data.draw(texts))] if data.draw(st.booleans()) else [*chat, said]
