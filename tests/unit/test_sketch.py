"""What is kept of a prompt, and what kinds of change its masks tell apart."""

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.sketch import PIECE, Kind, Sketch, sketch
from warmroute.core.volatile import Change, Lines, bag, lines_of, without_clocks, without_identifiers

SHORT = [(Kind.USER if i % 2 == 0 else Kind.ASSISTANT, b'{"content":"message %d"}' % i) for i in range(40)]


def real_size(kept: Sketch) -> int:
    """What the objects of a sketch without masks take."""
    return sum(map(sys.getsizeof, (kept, kept.digests, kept.lengths, kept.kinds, kept.size)))


def test_nothing_of_the_text_is_kept() -> None:
    kept = sketch([(Kind.SYSTEM, b"secret at 10:15"), (Kind.USER, b"secret" * 900)])
    kept.mask([(Kind.SYSTEM, b"secret at 10:15"), (Kind.USER, b"secret" * 900)])
    fields = [kept.digests.tobytes(), kept.lengths.tobytes(), kept.kinds, repr(kept).encode()]
    assert not any(b"secret" in field for field in fields)


def test_forty_short_messages_take_less_than_a_kilobyte() -> None:
    kept = sketch(SHORT)
    assert real_size(kept) < 1000
    assert kept.nbytes == pytest.approx(real_size(kept), rel=0.15)
    assert len(kept.digests.tobytes()) + len(kept.lengths.tobytes()) + len(kept.kinds) <= 500


def test_size_is_that_of_all_parts() -> None:
    parts = [(Kind.SYSTEM, b"x" * 5000), (Kind.USER, b"y" * 100)]
    kept = sketch(parts)
    assert kept.size == 5100
    assert list(kept.lengths) == [PIECE, PIECE, 904, 100]
    assert [kept.continues(i) for i in range(5)] == [False, True, True, False, False]


@given(st.lists(st.tuples(st.sampled_from(Kind), st.integers(0, 3 * PIECE)), max_size=6))
def test_the_layout_has_a_row_for_each_part(shape: list[tuple[Kind, int]]) -> None:
    kept = sketch([(kind, b"x" * size) for kind, size in shape])
    layout = kept.layout()
    assert list(zip(map(Kind, layout.kinds), layout.lengths, strict=True)) == shape
    assert layout.head == next((i for i, (kind, _) in enumerate(shape) if kind > Kind.SYSTEM), len(shape))
    assert kept.size == sum(size for _, size in shape)


def test_equal_parts_have_equal_digests_and_others_others() -> None:
    texts = [b"a" * 5000, b"a" * 4999 + b"b", b"b" + b"a" * 4999, b"a" * 5000]
    digests = sketch([(Kind.USER, text) for text in texts]).layout().digests
    assert digests[0] == digests[3]
    assert len(set(digests)) == 3


def test_tools_have_one_digest() -> None:
    tools = [(Kind.TOOL, b"t" * 3000), (Kind.TOOL, b"u")]
    assert sketch([*tools, *SHORT]).tools == sketch(tools).tools != 0
    assert sketch([tools[1], tools[0]]).tools != sketch(tools).tools
    assert sketch(SHORT).tools == 0


def test_no_parts() -> None:
    kept = sketch(iter([]))
    assert (kept.size, kept.tools, kept.text, kept.layout().head) == (0, 0, False, 0)


def test_masks_are_shared_by_what_is_known() -> None:
    parts = [(Kind.SYSTEM, b"a long prompt"), (Kind.USER, b"hi")]
    known: dict[int, Lines | int] = {}
    one, two = sketch(parts), sketch(parts)
    one.mask(parts, known)
    two.mask(parts, known)
    assert one.masks is not None
    assert two.masks is not None
    assert one.masks.lines[0] is two.masks.lines[0]
    assert one.nbytes > sketch(parts).nbytes


# Clocks and ids

CLOCKS = [
    "2026-09-12T10:15:00.123Z",
    "2026-09-12 10:15",
    "2026-09-12T10:15:00+02:00",
    "9/12/2026, 10:15:07 AM",
    "12.09.2026",
    "10:15 pm",
    "7 AM",
    "Monday",
    "Monday, September 14, 2026",
    "14 September 2026",
    "14th of Sep 2026",
    "Sep 14th, 2026 10:15",
    "September 2026",
    "1789200000",
    "1789200000123",
    "5 minutes ago",
    "UTC+2",
    "2026年9月12日",
]
IDENTIFIERS = [
    "123e4567-e89b-12d3-a456-426614174000",
    "req_56448162f3",
    "session-a1b2c3",
    "deadbeef01",
    "1234567",
    "cch=1a2b3",
    "AbCdEf123456GhIjKl",
]
NEITHER = [
    "May I ask",
    "section 3.2 of 12",
    "the second day",
    "10 apples",
    "sun and moon",
    "version 2",
    "Marching 5 miles",
]


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_clock_is_seen(clock: str) -> None:
    assert without_clocks(f"It is {clock} now".encode()).replace(b"\0t", b"").split() in (
        [b"It", b"is", b"now"],
        [b"It", b"is", b",", b"now"],
    )


@pytest.mark.parametrize("identifier", IDENTIFIERS)
def test_an_id_is_seen(identifier: str) -> None:
    assert without_identifiers(f"The id {identifier}, as said".encode()) == b"The id \0i, as said"


@pytest.mark.parametrize("text", NEITHER)
def test_other_text_is_neither(text: str) -> None:
    assert without_identifiers(without_clocks(text.encode())) == text.encode()


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ("Now: 9:59\\nBe kind.", "Now: 10:01\\nBe kind.", Change.CLOCK),
        ("Rule. " * 60 + "It is 9:59. " + "Rule. " * 60, "Rule. " * 60 + "It is 10:00. " + "Rule. " * 60, Change.CLOCK),
        ("id abcdef12\\nx", "id 99887766\\nx", Change.IDENTIFIER),
        ("id abcdef12 at 10:15", "id 99887766 at 10:16", Change.IDENTIFIER),
        ("used 7 %", "used 12 %", Change.COUNTER),
        ("a  b\\n\\nc ", "a b\\r\\nc", Change.SPACES),
        ("a\\tb", "a b", Change.SPACES),
        ('{\\"a\\": 1, \\"b\\": 2}', '{\\"b\\": 2, \\"a\\": 1}', Change.ORDER),
        ("one\\ntwo", "two\\none", Change.ORDER),
        ("one\\ntwo", "one\\nand\\ntwo\\nthree", Change.GROWN),
        ("one\\ntwo", "one\\nthree", Change.OTHER),
        ("one\\ntwo", "one", Change.OTHER),
        ("at 10:15\\none", "at 10:16\\ntwo", Change.CLOCK),
        ("one\\nat 10:15", "two\\nat 10:16", Change.OTHER),
    ],
)
@pytest.mark.parametrize("form", ['"%s"', '{"role": "system", "content": "%s"}', '{"type":"text","text":"%s"}'])
def test_the_kind_of_a_change(old: str, new: str, change: Change, form: str) -> None:
    assert Lines((form % old).encode()).change(Lines((form % new).encode())) is change


@given(st.binary(max_size=300))
def test_any_bytes_have_lines(data: bytes) -> None:
    assert Lines(data).change(Lines(data)) is Change.SPACES
    assert bag(data) >= 0


@given(st.text(alphabet="ab .!\\n", max_size=600))
def test_lines_leave_no_word_out(text: str) -> None:
    data = text.encode()
    assert b" ".join(lines_of(data)).split() == data.replace(b"\\n", b" ").split()


@pytest.mark.parametrize(
    "text",
    [
        b"-" * 250_000 + b"1",
        b"-_" * 125_000 + b"1a",
        b"a1-" * 80_000,
        b"f" * 250_000 + b"1g",
        b"x" * 99 + b"1",
        b"1:" * 99_999,
    ],
)
def test_hostile_text_takes_no_longer_than_other_text(text: bytes) -> None:
    """Were any search quadratic, this would take minutes."""
    assert isinstance(Lines(text).change(Lines(text + b".")), Change)
    assert isinstance(Lines((text * 2500)[:250_000], 250_000), Lines)


def test_much_is_looked_at_in_reasonable_pieces() -> None:
    words: Any = b"Monday 10:15 " * 40_000
    assert len(list(lines_of(words))) == 1
    assert Lines(words).nbytes < 10_000


def test_a_change_behind_what_is_looked_at_is_of_any_kind() -> None:
    text = b"rule\\n" * 20
    assert Lines(text + b"one", 80).change(Lines(text + b"two", 80)) is Change.OTHER
    assert Lines(b"at 9:15\\n" + text, 80).change(Lines(b"at 9:16\\n" + text, 80)) is Change.CLOCK
