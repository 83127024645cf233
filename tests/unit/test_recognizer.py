"""From requests to sessions and backends, all but the I/O: what clients send, and what must hold for any of them."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.turns import (
    PATHS,
    PLAIN,
    Asked,
    Entry,
    Got,
    Said,
    Style,
    Went,
    World,
    request_body,
    streamed_answer,
    whole_answer,
)
from warmroute.core.messages import Shape
from warmroute.core.model import Reason
from warmroute.recognition.recognizer import FIELDS

UUID = "0b5c1f9e-3a77-4a53-9a61-0c2a4c1b7d11"
CHAT = PATHS[Shape.CHAT]
HELLO = [Asked("hello")]
GROWING = (Shape.CHAT, Shape.MESSAGES, Shape.RESPONSES)


def after(entries: Sequence[Entry], *more: Entry) -> list[Entry]:
    return [*entries, *more]


# What clients send


@pytest.mark.parametrize(
    ("headers", "fields", "source", "refused"),
    [
        ({"ChatUI-Conversation-ID": ""}, {}, "content", ("chatui-conversation-id", "empty")),
        (
            {"X-Conversation-Id": "{{LIBRECHAT_BODY_CONVERSATION_ID}}"},
            {},
            "content",
            ("x-conversation-id", "template"),
        ),
        ({"X-Claude-Code-Session-Id": "S"}, {}, "claude-code", None),
        ({}, {"metadata": {"user_id": '{"device_id":"d","session_id":"U"}'}}, "metadata.user_id", None),
        ({}, {"metadata": {"user_id": f"user_ab_account__session_{UUID}"}}, "metadata.user_id", None),
        ({}, {"metadata": {"user_id": "alice"}}, "content", None),
        ({"session-id": "U"}, {}, "content", None),
        ({"session-id": "U", "user-agent": "codex_cli_rs/0.171.0"}, {}, "codex", None),
        ({}, {"user": {"id": "x"}}, "content", None),
        ({"x-request-id": "r", "x-correlation-id": "c"}, {}, "content", None),
    ],
    ids=str,
)
def test_what_clients_send(
    headers: Mapping[str, str], fields: dict[str, Any], source: str, refused: tuple[str, str] | None
) -> None:
    world = World()
    first = world.say(HELLO, Said("hi"), headers, **fields)
    second = world.say(after(HELLO, Said("hi"), Asked("more")), Said("yes"), headers, **fields)
    assert (first.turn.source, first.turn.refused) == (source, (refused,) if refused else ())
    assert (second.key, second.backend, second.reason) == (first.key, first.backend, Reason.PIN_HIT)


def test_a_task_of_open_webui_keeps_its_key_and_touches_no_pin() -> None:
    world = World()
    chat = {"X-OpenWebUI-Chat-Id": "temporary:Ab_12"}
    world.say(HELLO, Said("hi"), chat)
    before = list(world.pins.newest())
    task = world.say([Asked("title please")], Said("t"), {**chat, "X-OpenWebUI-Task": "title_generation"})
    assert (task.reason, task.turn.source, task.key) == (Reason.SIDE, "x-openwebui-chat-id", None)
    assert list(world.pins.newest()) == before


def test_an_agent_of_claude_code_has_a_session_near_its_parent() -> None:
    world = World()
    main = {"X-Claude-Code-Session-Id": "S"}
    root = world.say(HELLO, Said("hi"), main)
    agent = world.say([Asked("look")], Said("a"), {**main, "x-claude-code-agent-id": "A"})
    again = world.say(after([Asked("look")], Said("a"), Got("r")), Said("b"), {**main, "x-claude-code-agent-id": "A"})
    assert agent.turn.session is not None
    assert agent.turn.session.parent == root.key != agent.key
    assert (agent.reason, agent.backend) == (Reason.NEAR_PARENT, root.backend)
    assert (again.key, again.reason) == (agent.key, Reason.PIN_HIT)


def test_codex_has_a_session_and_threads() -> None:
    world = World()
    codex = {"session-id": "U", "user-agent": "codex_cli_rs/0.171.0"}
    root = world.say(HELLO, Said("hi"), codex, shape=Shape.RESPONSES)
    same = world.say(HELLO, Said("hi"), {**codex, "thread-id": "U"}, shape=Shape.RESPONSES)
    thread = world.say([Asked("look")], Said("a"), {**codex, "thread-id": "T"}, shape=Shape.RESPONSES)
    assert same.key == root.key
    assert thread.turn.session is not None
    assert thread.turn.session.parent == root.key != thread.key
    assert thread.reason is Reason.NEAR_PARENT


def test_a_parent_that_is_named_is_no_part_of_the_key() -> None:
    world = World()
    one = world.say(HELLO, Said("hi"), {"X-Session-Id": "C"})
    other = world.say(
        after(HELLO, Said("hi"), Asked("x")), Said("y"), {"X-Session-Id": "C", "x-parent-session-id": "P"}
    )
    assert one.key == other.key


def test_a_cache_key_that_nine_chats_share_is_not_used_any_more(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    chats: list[list[Entry]] = [[Asked(f"chat {i}")] for i in range(9)]
    went: list[list[Went]] = [[] for _ in chats]
    for turn in range(5):
        for i, chat in enumerate(chats):
            answer = Said(f"answer {i} {turn}")
            went[i].append(world.say(chat, answer, prompt_cache_key="lobe:u1:gpt-4o"))
            chat += [answer, Asked(f"next {i} {turn}")]
    late = [turns[-1] for turns in went]
    assert [w.turn.source for w in late] == ["content"] * 9
    assert [w.turn.refused for w in late] == [(("prompt_cache_key", "shared"),)] * 9
    assert len({w.key for w in late}) == 9
    assert [w.reason for w in late] == [Reason.PIN_HIT] * 9
    stayed = [len({w.backend for w in turns[1:]}) == 1 for turns in went]
    assert stayed.count(False) <= 1  # two of them were one session at first, as a title and its chat are
    assert sum("prompt_cache_key" in record.message for record in caplog.records) == 1
    assert list(world.memory.guards.told) == [("prompt_cache_key", "shared")]


def test_a_response_is_asked_of_its_maker_only() -> None:
    world = World()
    made = world.send(
        PATHS[Shape.RESPONSES],
        request_body(Shape.RESPONSES, "", HELLO),
        whole_answer(Shape.RESPONSES, Said("hi"), "resp_1"),
    )
    for i in range(6):
        named = {"x-session-id": f"s{i}"}
        went = world.say([Asked("and?")], None, named, shape=Shape.RESPONSES, previous_response_id="resp_1")
        assert (went.reason, went.backend) == (Reason.OWNER, made.backend)
    nameless = world.say([Asked("and?")], None, shape=Shape.RESPONSES, previous_response_id="resp_1")
    assert (nameless.key, nameless.reason, nameless.backend) == (made.key, Reason.OWNER, made.backend)
    unknown = world.say([Asked("and?")], None, shape=Shape.RESPONSES, previous_response_id="resp_2")
    assert unknown.reason is not Reason.OWNER
    assert world.memory.owners.unknown == 1


@pytest.mark.parametrize("stored_by_id", [False, True], ids=["by content", "by id"])
def test_a_new_id_with_a_known_history_goes_where_it_is(stored_by_id: bool) -> None:
    for n in range(8):
        world = World(backends=8)
        opening: list[Entry] = [Asked(f"hello {n}")]
        first = world.say(opening, Said(f"hi {n}"), {"x-session-id": f"old{n}"} if stored_by_id else None)
        forked = world.say(after(opening, Said(f"hi {n}"), Asked("more")), Said("x"), {"x-session-id": f"new{n}"})
        assert (forked.reason, forked.backend) == (Reason.HISTORY, first.backend)
        assert forked.key != first.key


def test_what_a_user_writes_is_no_id() -> None:
    world = World()
    evil = 'session_id: evil\r\nx-session-id: evil {"session_id": "evil"}'
    one = world.say([Asked(evil)], Said("a"))
    other = world.say([Asked(evil + " too")], Said("b"))
    assert one.key != other.key
    assert {one.turn.source, other.turn.source} == {"content"}


# A conversation keeps its session

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
values = st.booleans() | st.integers(-(2**40), 2**40) | texts | st.lists(texts, max_size=2)
arguments = st.dictionaries(texts, values, max_size=3).map(json.dumps)
calls = st.lists(st.tuples(st.sampled_from(["get", "put"]), arguments), max_size=2).map(tuple)
answers = st.builds(Said, texts.map(str.strip).filter(bool), calls, st.just("") | texts)
asked = st.builds(Asked, texts)
styles = st.builds(
    Style,
    parts=st.booleans(),
    marked=st.booleans(),
    developer=st.booleans(),
    ids=st.booleans(),
    nulls=st.booleans(),
    blanks=st.sampled_from(["", " ", "\n"]),
    thoughts=st.booleans(),
    rewritten=st.booleans(),
    escaped=st.booleans(),
    indent=st.none() | st.just(1),
    reversed_keys=st.booleans(),
)


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    at = sorted(draw(st.sets(st.integers(1, max(1, len(data) - 1)), max_size=6)))
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]


@pytest.mark.parametrize("shape", GROWING)
@settings(max_examples=60)
@given(st.data())
def test_a_conversation_keeps_its_session_however_it_is_written(shape: Shape, data: st.DataObject) -> None:
    world = World()
    system = data.draw(st.just("") | texts)
    # Others, with other openings, are under way
    for i in range(3):
        world.say([Asked(f"another {i}")], Said("hi"), shape=shape)
    entries: list[Entry] = [data.draw(asked)]
    went: list[Went] = []
    for _ in range(4):
        style = data.draw(styles)
        said = data.draw(answers)
        whole = data.draw(st.booleans())
        answer = (whole_answer if whole else streamed_answer)(shape, said)
        pieces = data.draw(cut(answer))
        tools = [{"type": "function", "function": {"name": name}} for name in data.draw(st.lists(texts, max_size=2))]
        body = request_body(shape, system, entries, style, tools=tools)
        went.append(world.send(PATHS[shape], body, answer, pieces=pieces))
        entries += [said, Got(data.draw(texts)) if said.calls else data.draw(asked)]
    assert len({w.key for w in went}) == 1
    assert len({w.backend for w in went}) == 1
    assert [w.reason for w in went[1:]] == [Reason.PIN_HIT] * 3
    assert {w.turn.source for w in went} == {"content"}


@settings(max_examples=60)
@given(st.data())
def test_a_text_that_grows_keeps_its_session(data: st.DataObject) -> None:
    world = World()
    prompt = data.draw(texts) + data.draw(st.sampled_from(["", "x" * 500, "y" * 5_000]))
    entries: list[Entry] = [Asked(prompt)]
    went = []
    for _ in range(5):
        said = Said(data.draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=900)))
        answer = (whole_answer if data.draw(st.booleans()) else streamed_answer)(Shape.COMPLETIONS, said)
        body = request_body(Shape.COMPLETIONS, "", entries, data.draw(styles))
        went.append(world.send(PATHS[Shape.COMPLETIONS], body, answer))
        entries += [said, data.draw(asked)]
    assert len({(w.key, w.backend) for w in went}) == 1


@pytest.mark.parametrize("system", ["", "s" * 20_000], ids=["short", "long system prompt"])
@pytest.mark.parametrize("shape", list(Shape))
@pytest.mark.parametrize("count", [2, 20])
def test_conversations_side_by_side_keep_their_own(shape: Shape, count: int, system: str) -> None:
    world = World()
    chats: list[list[Entry]] = [[Asked(f"question {i}. ")] for i in range(count)]
    went: list[list[Went]] = [[] for _ in chats]
    for turn in range(4):
        for i, chat in enumerate(chats):
            answer = Said(f"answer {i} {turn} " + "x" * i)
            went[i].append(world.say(chat, answer, shape=shape, system=system))
            chat += [answer, Asked(f"next {i} {turn}. ")]
    assert [len({w.key for w in turns}) for turns in went] == [1] * count
    assert len({turns[0].key for turns in went}) == count
    spread = Counter(turns[0].backend for turns in went)
    assert max(spread.values()) <= count / 3 * 1.25 + 2


@pytest.mark.parametrize("shape", list(Shape))
@pytest.mark.parametrize("count", [2, 20, 60])
def test_chats_with_equal_first_turns_part_at_the_second(shape: Shape, count: int) -> None:
    world = World()
    first: list[Entry] = [Asked("hi. ")]
    opened = [world.say(first, Said("Hello! "), shape=shape) for _ in range(count)]
    assert len({w.key for w in opened}) == count
    chats = [after(first, Said("Hello! "), Asked(f"I am {i}. ")) for i in range(count)]
    went: list[list[Went]] = [[] for _ in chats]
    for turn in range(3):
        for i, chat in enumerate(chats):
            answer = Said(f"answer {i} {turn} ")
            went[i].append(world.say(chat, answer, shape=shape))
            chat += [answer, Asked(f"next {i} {turn}. ")]
    assert [len({w.key for w in turns}) for turns in went] == [1] * count
    assert len({turns[0].key for turns in went}) == count
    assert {turns[0].key for turns in went} == {w.key for w in opened}


@given(texts, texts)
def test_other_texts_are_other_sessions(one: str, other: str) -> None:
    world = World()
    keys = set()
    for text in (one, other):
        first = world.say([Asked(text)], Said("a"))
        second = world.say([Asked(text), Said("a"), Asked("b")], Said("c"))
        keys |= {first.key, second.key}
    assert len(keys) == 2


def test_chats_whose_tools_were_called_with_other_ids_are_other_chats() -> None:
    """Told apart only by an argument that is named as a field of the API is."""
    world = World()
    first: list[Entry] = [Asked("look at my ticket")]
    calls = [Said("", (("get", json.dumps({"id": name})),)) for name in "AB"]
    opened = [world.say(first, call) for call in calls]
    second = [world.say(after(first, call, Got("ticket")), Said("x")) for call in reversed(calls)]
    assert [w.key for w in reversed(second)] == [w.key for w in opened]


# Edits, branches, beginnings that many share


@pytest.mark.parametrize("shape", GROWING)
def test_edited_regenerated_and_branched_turns_find_the_session(shape: Shape) -> None:
    world = World()
    one: list[Entry] = [Asked("a")]
    key = world.say(one, Said("A"), shape=shape).key
    two = after(one, Said("A"), Asked("b"))
    three = after(two, Said("B"), Asked("c"))
    for entries, answer in (
        (two, "B"),
        (two, "B2"),  # regenerated
        (three, "C"),
        (three, "C2"),
        (after(one, Said("A"), Asked("b, I mean")), "D"),  # edited
        (after(two, Said("B2"), Asked("c")), "E"),  # the other answer is gone on with
        (after(three, Said("C"), Asked("d")), "F"),  # and the branch that was left
        (two, "B3"),
    ):
        assert world.say(entries, Said(answer), shape=shape).key == key


EXAMPLES: list[Entry] = [Asked("2+2"), Said("4"), Asked("3+3"), Said("6")]
GREETING: list[Entry] = [Said("Hello! How can I help you today?")]


def run_chats(world: World, chats: Sequence[list[Entry]], answers: Iterable[str], turns: int = 4) -> list[list[Went]]:
    went: list[list[Went]] = [[] for _ in chats]
    said = list(answers)
    for turn in range(turns):
        for i, chat in enumerate(chats):
            answer = Said(said[i] if turn == 0 else f"answer {i} {turn}")
            went[i].append(world.say(chat, answer, system="You are the support's assistant."))
            chat += [answer, Asked(f"next {i} {turn}")]
    return went


def assert_spread(went: Sequence[Sequence[Went]], backends: int = 3) -> None:
    """Nearly all of them have sessions of their own, and no backend has many more than its share."""
    keys = Counter(turns[-1].key for turns in went)
    assert len(keys) >= len(went) - 3, f"{len(keys)} sessions for {len(went)} chats"
    spread = Counter(turns[-1].backend for turns in went)
    assert max(spread.values()) <= 1.25 * len(went) / backends + 3, spread
    assert all(len({w.key for w in turns[1:]}) == 1 for turns in went)


@pytest.mark.parametrize("beginning", [GREETING, EXAMPLES], ids=["greeting", "examples"])
def test_a_beginning_that_many_share_names_none_of_them(beginning: list[Entry]) -> None:
    chats = [after(beginning, Asked(f"question {i}")) for i in range(24)]
    assert_spread(run_chats(World(), chats, (f"answer {i}" for i in range(24))))


def test_a_question_that_many_ask_after_a_greeting_names_none_of_them() -> None:
    """A chat widget greets everybody and offers a question to click on."""
    chats = [after(GREETING, Asked("What can you do?")) for _ in range(24)]
    assert_spread(run_chats(World(), chats, (f"answer {i}" for i in range(24))))


def test_equal_first_turns_after_a_greeting_part_at_the_next() -> None:
    chats = [after(GREETING, Asked("What can you do?")) for _ in range(24)]
    assert_spread(run_chats(World(), chats, ["A lot."] * 24))


def test_single_requests_with_examples_are_spread() -> None:
    """An evaluation: each request has the same examples before its own question, and none is gone on with."""
    world = World()
    went = [world.say(after(EXAMPLES, Asked(f"{i}+{i}")), Said(f"{2 * i}")) for i in range(60)]
    spread = Counter(w.backend for w in went)
    assert max(spread.values()) <= 30, spread


# Several conversations under one id


def test_a_title_first_and_then_the_chat_are_one_session() -> None:
    world = World()
    chat = {"x-session-id": "s"}
    title = world.say([Asked("A title for: hello")], Said("t"), chat)
    first = world.say(HELLO, Said("hi"), chat)
    second = world.say(after(HELLO, Said("hi"), Asked("b")), Said("c"), chat)
    assert title.key == first.key == second.key


def test_sub_agents_under_their_parents_id_are_near_it_while_there_is_room() -> None:
    world = World()
    agent = {"x-session-affinity": "s"}
    root = world.say(HELLO, Said("hi"), agent)
    assert world.say(after(HELLO, Said("hi"), Asked("go")), Said("x"), agent).key == root.key
    leases = []
    children = []
    for i in range(12):
        turn = world.recognise(CHAT, request_body(Shape.CHAT, "", [Asked(f"task {i}")]), agent)
        world.recognizer.goes(turn)
        placed = world.place(turn)
        placed.lease.__enter__()
        leases.append(placed.lease)
        children.append((turn, placed))
    assert all(turn.session is not None and turn.session.parent == root.key for turn, _ in children)
    assert len({turn.session.key for turn, _ in children if turn.session}) == 12
    where = [placed.backend for _, placed in children]
    assert where[:4] == [root.backend] * 4
    assert max(Counter(where).values()) <= 6
    for lease in leases:
        lease.__exit__(None, None, None)


def test_a_child_that_is_gone_on_with_keeps_its_session() -> None:
    world = World()
    agent = {"x-session-affinity": "s"}
    root = world.say(HELLO, Said("hi"), agent)
    world.say(after(HELLO, Said("hi"), Asked("go")), Said("x"), agent)
    task: list[Entry] = [Asked("task")]
    child = world.say(task, Said("doing", (("get", "{}"),)), agent)
    more = world.say(after(task, Said("doing", (("get", "{}"),)), Got("r")), Said("done"), agent)
    assert child.key == more.key != root.key
    assert world.say(after(HELLO, Said("hi"), Asked("go"), Said("x"), Asked("on")), Said("y"), agent).key == root.key


def test_a_window_that_slides_keeps_the_session_of_its_id() -> None:
    world = World()
    chat = {"x-session-id": "s"}
    entries: list[Entry] = [Asked("turn 0")]
    keys = []
    for i in range(12):
        keys.append(world.say(entries[-5:], Said(f"answer {i}"), chat).key)
        entries += [Said(f"answer {i}"), Asked(f"turn {i + 1}")]
    assert len(set(keys)) == 1


def test_a_compacted_history_stays_near_its_id_and_then_keeps_one_session() -> None:
    world = World()
    chat = {"x-session-id": "s"}
    first = world.say(HELLO, Said("hi"), chat)
    world.say(after(HELLO, Said("hi"), Asked("b")), Said("c"), chat)
    short: list[Entry] = [Asked("Summary of what was said so far: hello")]
    went = [world.say(short, Said("d"), chat), world.say(after(short, Said("d"), Asked("e")), Said("f"), chat)]
    assert {w.backend for w in went} == {first.backend}
    assert went[0].key == went[1].key


def test_an_id_for_every_request_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    chats: list[list[Entry]] = [[Asked(f"chat {i}")] for i in range(4)]
    went: list[list[Went]] = [[] for _ in chats]
    number = 0
    for turn in range(8):
        for i, chat in enumerate(chats):
            number += 1
            answer = Said(f"answer {i} {turn}")
            went[i].append(world.say(chat, answer, {"x-session-id": f"request-{number}"}))
            chat += [answer, Asked(f"next {i} {turn}")]
    assert [len({w.backend for w in turns}) for turns in went] == [1] * 4
    assert [turns[-1].turn.refused for turns in went] == [(("x-session-id", "per_request"),)] * 4
    assert [len({w.key for w in turns[-3:]}) for turns in went] == [1] * 4
    assert sum("x-session-id" in record.message for record in caplog.records) == 1


def test_an_agent_may_have_many_sub_agents() -> None:
    world = World()
    agent = {"x-session-affinity": "s"}
    for i in range(20):
        task: list[Entry] = [Asked(f"task {i}")]
        world.say(task, Said("a"), agent)
        assert world.say(after(task, Said("a"), Asked("b")), Said("c"), agent).turn.refused == ()
    assert not world.memory.guards.told


# Looking changes nothing


def snapshot(world: World) -> object:
    guards = world.memory.guards
    return (world.memory.entries(), len(world.pins), repr(guards), dict(guards.told), world.memory.owners.unknown)


@pytest.mark.parametrize(
    ("shape", "headers"),
    [*((shape, {}) for shape in Shape), (Shape.CHAT, {"x-session-id": "s"}), (Shape.CHAT, {"x-session-id": "new"})],
    ids=str,
)
def test_recognising_changes_nothing(shape: Shape, headers: Mapping[str, str]) -> None:
    world = World()
    first: list[Entry] = [Asked("hello there")]
    world.say(first, Said("hi"), {"x-session-id": "s"} if headers else {}, shape=shape)
    second = request_body(shape, "", after(first, Said("hi"), Asked("more")))
    before = snapshot(world)
    one, other = (world.recognise(PATHS[shape], second, headers) for _ in range(2))
    assert one.session == other.session
    assert (one.wishes, one.refused, one.new, one.found) == (other.wishes, other.refused, other.new, other.found)
    assert snapshot(world) == before
    fresh = request_body(shape, "", [Asked("something else")])
    world.recognise(PATHS[shape], fresh)
    assert snapshot(world) == before


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
WORDS = "role content type text tool_calls function name arguments input output id session_id"
words = st.sampled_from(WORDS.split())
near_values = st.recursive(
    json_values | st.sampled_from(["assistant", "user", "tool_use", "tool_result", "function_call", "message"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=300)
@given(
    st.sampled_from(sorted(PATHS.values())),
    st.dictionaries(st.sampled_from([*FIELDS, "model"]), near_values | st.lists(near_values, max_size=3), max_size=6),
    near_values,
)
def test_nothing_raises(path: str, fields: dict[str, object], answer: object) -> None:
    world = World()
    body = json.dumps(fields).encode("utf-8", "surrogatepass")
    choice = {"message": answer, "delta": answer, "finish_reason": "stop"}
    fitting = {"choices": [choice], "content": answer, "output": answer, "status": "completed"}
    begun = {"type": "content_block_start", "content_block": answer, "index": 0}
    event = json.dumps({**begun, "response": fitting, "choices": [choice]}).encode()
    whole = world.send(path, body, json.dumps(fitting).encode())
    streamed = world.send(path, body, b"data: " + event + b'\n\ndata: {"type":"message_stop"}\n\n')
    for went in (whole, streamed):
        assert went.key is None or len(went.key) == 16


def test_without_the_content_source_there_is_no_session_without_an_id() -> None:
    world = World(sources=["x-session-id"])
    went = world.say(HELLO, Said("hi"))
    assert (went.key, went.reason, went.turn.source) == (None, Reason.NO_SESSION, None)
    assert world.memory.entries()["history"] == 0
    assert world.say(HELLO, Said("hi"), {"x-session-id": "s"}).key is not None


def test_plain_style_is_what_the_other_styles_are_compared_with() -> None:
    assert json.loads(request_body(Shape.CHAT, "s", HELLO, PLAIN))["messages"][1] == {
        "role": "user",
        "content": "hello",
    }
