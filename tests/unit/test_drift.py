"""Where a prompt leaves the one before it, and why."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.cures import ANYWHERE, CURES, SENTENCES, cures
from warmroute.core.drift import BY_PEOPLE, Cause, Drift, drift
from warmroute.core.identity import SOURCES
from warmroute.core.messages import Shape
from warmroute.core.sketch import PIECE, Kind, Sketch, sketch
from warmroute.proxy.parts import parts_of
from warmroute.proxy.request import FieldReader

from ..chats import CHANGES, changed

Part = tuple[Kind, bytes]
READER = FieldReader(["messages", "system", "tools"])

long_bytes = st.tuples(st.binary(min_size=1, max_size=40), st.integers(1, 200)).map(lambda pair: pair[0] * pair[1])
messages = st.tuples(st.sampled_from([Kind.USER, Kind.ASSISTANT, Kind.OTHER]), long_bytes.map(lambda data: b"{" + data))
prompts = st.tuples(
    st.lists(st.tuples(st.just(Kind.TOOL), long_bytes), max_size=3),
    st.lists(st.tuples(st.just(Kind.SYSTEM), long_bytes), max_size=2),
    st.lists(messages, max_size=8),
).map(lambda lists: [*lists[0], *lists[1], *lists[2]])


def common(old: list[Part], new: list[Part]) -> int:
    """Bytes at the beginning of two prompts that are the same, part by part."""
    same = 0
    for (kind, a), (other, b) in zip(old, new, strict=False):
        if (kind, a) == (other, b):
            same += len(a)
            continue
        if kind == other:
            same += next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        break
    return same


def masked(parts: list[Part]) -> Sketch:
    made = sketch(parts)
    made.mask(parts)
    return made


def between(old: list[Part], new: list[Part]) -> Drift:
    return drift(masked(old), masked(new))


def parts(body: dict[str, Any]) -> list[Part]:
    shape = Shape.MESSAGES if "system" in body else Shape.CHAT
    fields = READER.read(json.dumps(body).encode())
    return parts_of(shape, lambda name: READER.raw(fields, name))


# For all prompts


@given(prompts, st.lists(messages, max_size=4))
def test_a_prompt_that_grows_has_no_cause(old: list[Part], more: list[Part]) -> None:
    told = drift(sketch(old), sketch(old + more))
    assert told == Drift(None, "", sum(len(data) for _, data in old), 0, 0)


@given(prompts, prompts)
def test_what_is_the_same_is_known_to_a_piece(old: list[Part], new: list[Part]) -> None:
    one, other = sketch(old), sketch(new)
    told = drift(one, other)
    true = common(old, new)
    if one.text and other.text:
        assert told.same <= true
    else:
        assert told.same <= true < told.same + PIECE or told.same == true
    assert 0 <= told.lost <= other.size - told.same
    assert told.at <= told.same


@given(prompts.filter(bool), st.data())
def test_the_first_change_ends_what_is_the_same(old: list[Part], data: st.DataObject) -> None:
    part = data.draw(st.integers(0, len(old) - 1))
    at = data.draw(st.integers(0, len(old[part][1]) - 1))
    kind, text = old[part]
    other = text[:at] + bytes((text[at] ^ 1,)) + text[at + 1 :]
    new = [*old[:part], (kind, other), *old[part + 1 :], (Kind.ASSISTANT, b"{a"), (Kind.USER, b"{u")]
    told = drift(sketch(old), sketch(new))
    before = sum(len(data) for _, data in old[:part])
    assert told.cause is not None
    assert told.same == before + at - at % PIECE
    assert told.at == at - at % PIECE
    if kind in (Kind.TOOL, Kind.SYSTEM):
        assert told.part == ("tools" if kind is Kind.TOOL else "system")


# What clients do


@pytest.mark.parametrize("name", CHANGES)
def test_each_way_to_change_a_prompt_has_its_cause(name: str) -> None:
    expected = CHANGES[name][1]
    found: set[str] = set()
    before: Sketch | None = None
    tools: set[int] = set()
    for body in changed(name, 3):
        now = masked(parts(body))
        if before is not None:
            told = drift(before, now, tools)
            tools.add(before.tools)
            if told.cause is not None and told.cause not in BY_PEOPLE:
                found.add(told.cause)
        before = now
    assert found <= expected
    assert bool(found) == bool(expected)


SYSTEM = (Kind.SYSTEM, b'{"role":"system","content":"Be brief.\\nToday is Monday.\\nNever lie."}')
TOOLS = [(Kind.TOOL, b'{"name":"%d"}' % i) for i in range(3)]
CHAT = [(kind, b'{"content":"%d %s"}' % (i, b"word " * 20)) for i, kind in enumerate([Kind.USER, Kind.ASSISTANT] * 4)]
OLD = [*TOOLS, SYSTEM, *CHAT[:7]]
NEXT = [CHAT[7], (Kind.USER, b'{"content":"and now?"}')]


def without(part: int, count: int = 1) -> list[Part]:
    return [*OLD[:part], *OLD[part + count :], *NEXT]


def instead(part: int, data: bytes, kind: Kind | None = None) -> list[Part]:
    return [*OLD[:part], (OLD[part][0] if kind is None else kind, data), *OLD[part + 1 :], *NEXT]


@pytest.mark.parametrize(
    ("new", "cause", "part"),
    [
        (OLD, None, ""),
        ([*OLD, *NEXT], None, ""),
        ([TOOLS[1], TOOLS[0], *OLD[2:], *NEXT], Cause.TOOLS_ORDER, "tools"),
        (without(1), Cause.TOOLS, "tools"),
        (instead(2, b'{"name":"9"}'), Cause.TOOLS, "tools"),
        ([*TOOLS, (Kind.TOOL, b"{}"), *OLD[3:], *NEXT], Cause.TOOLS, "tools"),
        (without(0, 3), Cause.TOOLS, "tools"),
        (instead(3, SYSTEM[1].replace(b"Monday", b"Tuesday")), Cause.CLOCK, "system"),
        (instead(3, SYSTEM[1].replace(b"Be ", b"Be  ")), Cause.WHITESPACE, "system"),
        (instead(3, SYSTEM[1].replace(b"Be brief.", b"brief. Be")), Cause.KEY_ORDER, "system"),
        (instead(3, SYSTEM[1].replace(b"Never", b"Always smile.\\nNever")), Cause.SYSTEM_GROWN, "system"),
        (instead(3, SYSTEM[1].replace(b"Never", b"Always")), Cause.SYSTEM, "system"),
        ([*OLD[:4], (Kind.SYSTEM, b'"more"'), *OLD[4:], *NEXT], Cause.SYSTEM_GROWN, "system"),
        (without(3), Cause.SYSTEM, "system"),
        (without(4, 2), Cause.TRIMMED, "message 1"),
        (without(6, 2), Cause.TRIMMED, "message 3"),
        (without(7), Cause.REMINDER_MOVED, "message 4"),
        ([*OLD[:7], OLD[8], OLD[7], *OLD[9:], *NEXT], Cause.REMINDER_MOVED, "message 4"),
        ([*OLD[:4], (Kind.USER, b'{"summary"}'), *OLD[8:], *NEXT], Cause.SUMMARISED, "message 1"),
        (
            [*OLD[:4], (Kind.USER, b'{"sum"}'), (Kind.ASSISTANT, b'{"ok"}'), *OLD[8:], *NEXT],
            Cause.SUMMARISED,
            "message 1",
        ),
        (instead(10, b'{"asked"}'), Cause.LAST_USER, "message 7"),
        (instead(6, b'{"older"}'), Cause.REWRITTEN, "message 3"),
        (instead(5, b'{"an answer"}'), Cause.ANSWER, "message 2"),
        ([*OLD[:10], (Kind.USER, b'{"edited"}')], Cause.EDITED, "message 7"),
        ([*OLD[:6], (Kind.USER, b'{"edited"}')], Cause.EDITED, "message 3"),
        ([*OLD[:9], (Kind.ASSISTANT, b'{"again"}'), (Kind.USER, b'{"other"}')], Cause.EDITED, "message 6"),
        (OLD[:8], Cause.SHORTER, "message 5"),
        (OLD[:2], Cause.SHORTER, "tools"),
        ([], Cause.SHORTER, "tools"),
        ([*OLD, (Kind.SYSTEM, b"{late}"), *NEXT], Cause.LATE_SYSTEM, "message 8"),
    ],
)
def test_each_change_by_itself(new: list[Part], cause: Cause | None, part: str) -> None:
    told = between(OLD, new)
    assert (told.cause, told.part) == (cause, part)


def test_tools_that_come_back_flap() -> None:
    fewer, seen = without(1), {sketch(OLD).tools}
    assert drift(masked(fewer), masked([*OLD, *NEXT]), seen).cause is Cause.TOOLS_FLAPPED
    assert drift(masked(fewer), masked([*OLD, *NEXT]), {sketch(fewer).tools}).cause is Cause.TOOLS


def test_without_masks_a_change_of_the_system_prompt_is_one_of_any_kind() -> None:
    new = instead(3, SYSTEM[1].replace(b"Monday", b"Tuesday"))
    assert drift(sketch(OLD), masked(new)).cause is Cause.SYSTEM


def size(prompt: list[Part]) -> int:
    return sum(len(data) for _, data in prompt)


def test_what_is_lost_is_what_could_have_been_reused() -> None:
    clock = between(OLD, instead(3, SYSTEM[1].replace(b"Monday", b"Sunday")))
    assert clock.same == size(TOOLS)
    assert clock.lost == size(OLD) - clock.same
    trimmed = between(OLD, without(4, 2))
    assert trimmed.same == size(OLD[:4])
    assert trimmed.lost == size(OLD[6:])
    last = between(OLD, instead(10, b'{"short"}'))
    assert last.lost == len(b'{"short"}')
    edited = between(OLD, [*OLD[:10], (Kind.USER, b'{"edited, and much longer"}')])
    assert edited.lost == 0
    assert between(OLD, OLD[:8]).lost == 0
    reordered = between(OLD, [TOOLS[1], TOOLS[0], *OLD[2:], *NEXT])
    assert reordered.lost == size(OLD)


def billing(digits: bytes) -> Part:
    return (Kind.SYSTEM, b'{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1; cch=%s;"}' % digits)


def test_billing_is_told_only_if_nothing_else_differs() -> None:
    old, new = [billing(b"1a2b3"), *OLD[3:]], [billing(b"99999"), *OLD[3:], *NEXT]
    told = between(old, new)
    assert told == Drift(Cause.CLAUDE_BILLING, "system", 0, size(old), 0)
    other = between(old, [new[0], (Kind.SYSTEM, SYSTEM[1].replace(b"Monday", b"Friday")), *new[2:]])
    assert other.cause is Cause.CLOCK
    assert other.same == len(billing(b"1a2b3")[1])


def test_billing_before_other_text_of_one_message() -> None:
    def system(digits: str, day: str) -> Part:
        text = f"x-anthropic-billing-header: cch={digits};\\nYou help. {day}.\\n" + "Rule. " * 900
        return (Kind.SYSTEM, b'{"role":"system","content":"%s"}' % text.encode())

    old = [system("00000", "Monday"), *CHAT[:1]]
    assert between(old, [system("11111", "Monday"), *CHAT[:3]]).cause is Cause.CLAUDE_BILLING
    assert between(old, [system("11111", "Tuesday"), *CHAT[:3]]).cause is Cause.CLOCK
    assert between(old, [system("00000", "Tuesday"), *CHAT[:3]]).cause is Cause.CLOCK


# Texts


def words(count: int, first: bytes = b"Once upon a time") -> list[Part]:
    return [(Kind.USER, b'"' + first + b" word" * count)]


def test_a_text_may_grow() -> None:
    told = between(words(1000), words(1400))
    assert told.cause is None
    assert told.same == 2 * PIECE
    assert between(words(3), words(5)).cause is None


def test_a_text_that_changes() -> None:
    assert between(words(1000, b"At 10:15\\n"), words(1400, b"At 9:20\\n")).cause is Cause.CLOCK
    assert between(words(1000), words(1400, b"Twice")).cause is Cause.EDITED
    assert between(words(820), words(500)).part == "prompt"


# Sentences and settings


def test_every_cause_has_a_sentence_and_a_cure() -> None:
    assert set(SENTENCES) == set(Cause) == set(ANYWHERE)
    assert all(sentence.endswith(".") for sentence in SENTENCES.values())


def test_cures_are_found_by_the_source_of_the_id() -> None:
    assert [cure.client for cure in cures(Cause.CLOCK, "x-openwebui-chat-id")] == ["Open WebUI"]
    assert cures(Cause.TRIMMED, "claude-code") == ()
    unnamed = {cure.client for cure in cures(Cause.CLOCK, "content")}
    assert {"Open WebUI", "AnythingLLM", "NextChat"} <= unnamed
    assert not {"goose", "Claude Code", "opencode"} & unnamed
    assert {source for cure in CURES for source in cure.sources} <= set(SOURCES)
