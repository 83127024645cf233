"""The bounded map: what is held, how long, what is counted, and what it costs."""

import tracemalloc
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.turns import Asked, Entry, Said, World
from warmroute.recognition.recent import Recent


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def test_an_entry_lives_for_once_to_twice_the_expiry_after_it_was_last_put() -> None:
    for offset in range(0, 100, 7):
        clock = Clock()
        recent: Recent[int] = Recent(clock, expiry=100, limit=10)
        recent.put(b"first", 0)
        clock.now += offset
        recent.put(b"a", 1)
        clock.now += 99.9
        assert recent.get(b"a") == 1
        clock.now += 100.2
        assert recent.get(b"a") is None
        assert len(recent) == 0


def test_putting_again_keeps_and_looking_does_not() -> None:
    clock = Clock()
    recent: Recent[int] = Recent(clock, expiry=100, limit=10)
    recent.put(b"kept", 1)
    recent.put(b"seen", 1)
    recent.put(b"renewed", 1)
    for _ in range(10):
        clock.now += 60
        recent.get(b"seen")
        recent.put(b"kept", 1)
        assert recent.renew(b"renewed") == 1
    assert (recent.get(b"kept"), recent.get(b"renewed"), recent.get(b"seen")) == (1, 1, None)
    clock.now += 200
    assert recent.renew(b"renewed") is None
    assert recent.evicted == 0


def test_after_a_long_pause_nothing_is_left() -> None:
    clock = Clock()
    recent: Recent[int] = Recent(clock, expiry=1, limit=10)
    recent.put(b"a", 1)
    clock.now += 1e9
    assert recent.get(b"a") is None
    recent.put(b"b", 2)
    clock.now += 0.9
    assert recent.get(b"b") == 2


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 10])
def test_no_more_are_held_than_the_limit_and_the_rest_is_counted(limit: int) -> None:
    recent: Recent[int] = Recent(Clock(), expiry=100, limit=limit)
    for i in range(50):
        recent.put(b"%d" % i, i)
        assert len(recent) <= limit
        assert recent.get(b"%d" % i) == i
        assert len(recent) + recent.evicted == i + 1


@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from([0.0, 0.0, 1.0, 40.0, 130.0])), max_size=60))
def test_any_use_agrees_with_what_is_promised(steps: list[tuple[int, float]]) -> None:
    clock = Clock()
    recent: Recent[int] = Recent(clock, expiry=100, limit=1000)
    put: dict[int, float] = {}
    for key, wait in steps:
        clock.now += wait
        recent.put(b"%d" % key, key)
        put[key] = clock.now
        for other, at in put.items():
            age = clock.now - at
            found = recent.get(b"%d" % other)
            assert found in (None, other)
            if age < 100:
                assert found == other
            if age >= 200:
                assert found is None
    assert recent.evicted == 0


@given(st.lists(st.integers(0, 12), max_size=80), st.integers(2, 9))
def test_what_is_evicted_is_what_is_gone(keys: list[int], limit: int) -> None:
    recent: Recent[int] = Recent(Clock(), expiry=100, limit=limit)
    lost = 0
    held: set[int] = set()
    for key in keys:
        recent.put(b"%d" % key, key)
        held.add(key)
        gone = {other for other in held if recent.get(b"%d" % other) is None}
        held -= gone
        lost += len(gone)
        assert len(recent) == len(held)
    assert recent.evicted == lost


def test_it_says_what_it_holds() -> None:
    recent: Recent[int] = Recent(Clock(), expiry=100, limit=2)
    recent.put(b"a", 1)
    assert repr(recent) == "<Recent 1 entries, 0 evicted>"


def test_a_conversation_of_twenty_turns_costs_less_than_12_kb() -> None:
    world = World()

    def converse(number: int) -> None:
        entries: list[Entry] = [Asked(f"question {number} " + "x" * 300)]
        for turn in range(20):
            answer = Said(f"answer {number} {turn}")
            world.say(entries, answer)
            entries += [answer, Asked(f"next {number} {turn}")]

    converse(0)
    before = sum(world.memory.entries().values())
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        for number in range(1, 41):
            converse(number)
        size = (tracemalloc.get_traced_memory()[0] - start) / 40
    finally:
        tracemalloc.stop()
    entries = (sum(world.memory.entries().values()) - before) / 40
    print(f"{size:.0f} bytes and {entries:.1f} entries a conversation of 20 turns")
    assert entries >= 20
    assert size < 12_000
