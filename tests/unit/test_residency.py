"""What is known of a cache by its events, held against a cache that really stores and drops."""

from collections import OrderedDict
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.residency import Held, Residency

SIZE = 16
Path = tuple[int, ...]
"""A prompt as a list of blocks' contents. A block's name stands for it and all before it, as vLLM's does."""


def name(path: Path) -> int:
    """A name of its own for every beginning of a prompt over the letters 0 to 8."""
    return int("1" + "".join(map(str, path)))


def names(path: Path, start: int = 0) -> list[int]:
    return [name(path[: end + 1]) for end in range(start, len(path))]


def store(residency: Residency, label: str | None, path: Path, start: int = 0) -> None:
    residency.stored(label, names(path, start), name(path[:start]) if start else None, SIZE)


class Cache:
    """A prefix cache like vLLM's: least recently used blocks go first, of a request its last ones."""

    def __init__(self, blocks: int, tells: Residency) -> None:
        self.blocks = blocks
        self.tells = tells
        self.held: OrderedDict[int, None] = OrderedDict()

    def known(self, path: Path) -> int:
        return next((i for i, block in enumerate(names(path)) if block not in self.held), len(path))

    def request(self, label: str | None, path: Path) -> None:
        if len(path) > self.blocks:
            return
        start = self.known(path)
        for block in names(path)[:start]:  # in use from here on
            self.held.move_to_end(block)
        for block in names(path, start):
            if len(self.held) == self.blocks:
                dropped, _ = self.held.popitem(last=False)
                self.tells.removed([dropped])
            self.held[block] = None
        if start < len(path):
            store(self.tells, label, path, start)
        for block in reversed(names(path)):
            self.held.move_to_end(block)

    def clear(self) -> None:
        self.held.clear()
        self.tells.cleared()


letters = st.integers(0, 3)
paths = st.lists(letters, min_size=1, max_size=6).map(tuple)


def of(residency: Residency, label: str) -> Held:
    held = residency.held(label)
    assert held is not None
    return held


@given(st.integers(6, 14), st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), paths)), max_size=40))
def test_it_knows_what_the_cache_holds_of_every_conversation(blocks: int, turns: list[tuple[int, Path | None]]) -> None:
    """Four conversations, none of which begins like another; None empties the cache."""
    residency = Residency(1000)
    cache = Cache(blocks, residency)
    last: dict[str, Path] = {}
    for who, path in turns:
        if path is None:
            cache.clear()
        else:
            label, own = f"s{who}", (who + 4, *path)
            if len(own) <= blocks:
                stores = cache.known(own) < len(own)
                cache.request(label, own)
                if stores:
                    last[label] = own
        assert residency.blocks == len(cache.held)
        for label, own in last.items():
            held = of(residency, label)
            assert held.whole
            assert (held.tokens, held.live) == (SIZE * len(own), SIZE * cache.known(own))


@given(st.integers(6, 14), st.lists(st.tuples(st.integers(0, 3), paths), max_size=40))
def test_conversations_that_share_a_beginning_have_at_least_what_is_told(
    blocks: int, turns: list[tuple[int, Path]]
) -> None:
    residency = Residency(1000)
    cache = Cache(blocks, residency)
    last: dict[str, Path] = {}
    for who, path in turns:
        if cache.known(path) < len(path):
            last[f"s{who}"] = path
        cache.request(f"s{who}", path)
        for label, own in last.items():
            assert of(residency, label).live <= SIZE * cache.known(own)


events = st.one_of(
    st.tuples(st.just("stored"), st.sampled_from(["a", "b", "c", None]), paths, st.integers(0, 5)),
    st.tuples(st.just("removed"), st.just(None), paths, st.just(0)),
    st.tuples(st.sampled_from(["cleared", "forget"]), st.just(None), st.just(()), st.just(0)),
)


@given(st.integers(1, 12), st.lists(events, max_size=60))
def test_any_events_in_any_order_keep_it_sound(most: int, told: list[tuple[str, str | None, Path, int]]) -> None:
    """Blocks that were never stored are dropped, prompts begin in the middle, and inner blocks go before outer ones."""
    residency = Residency(most, sessions=2)
    residency.changed = set()
    copy: dict[str, Held | None] = {}
    before: dict[str, Held] = {}
    for what, label, path, start in told:
        if what == "stored":
            store(residency, label, path, min(start, len(path) - 1))
        elif what == "removed":
            residency.removed([name(path)])
        elif what == "cleared":
            residency.cleared()
            assert residency.blocks == 0
        else:
            residency.forget()
        copy.update((label, residency.held(label)) for label in residency.changed)
        residency.changed.clear()
        assert copy == {label: residency.held(label) for label in copy}, "whoever asks what has changed knows all"
        assert {label for label, held in copy.items() if held is not None} == set(residency.labels())
        assert residency.blocks <= max(most, 7)  # a request larger than the bound is known alone
        assert residency.sessions <= 2
        for who in ("a", "b", "c"):
            held = residency.held(who)
            if held is None:
                before.pop(who, None)
                continue
            assert 0 <= held.live <= held.tokens
            if what == "cleared":
                assert (held.live, held.whole) == (0, True)
            if who in before and what != "stored":
                lost = before[who].live - held.live
                assert lost >= 0
                assert held.evicted - before[who].evicted == lost
            before[who] = held


def test_a_conversation_that_was_never_seen_is_not_known() -> None:
    residency = Residency(10)
    store(residency, None, (1, 2))
    assert residency.held("a") is None
    assert residency.blocks == 2


def test_what_others_have_in_common_counts_for_each() -> None:
    residency = Residency(100)
    store(residency, "a", (1, 2, 3))
    store(residency, "b", (1, 2, 4, 5), start=2)
    residency.removed([name((1, 2, 3))])
    assert of(residency, "a") == Held(48, 32, 16, True)
    assert of(residency, "b") == Held(64, 64, 0, True)


def test_a_beginning_from_before_is_unknown_and_never_called_cold() -> None:
    residency = Residency(100)
    store(residency, "a", (1, 2, 3, 4), start=2)
    assert of(residency, "a") == Held(32, 32, 0, False)
    residency.removed(reversed(names((1, 2, 3, 4))))
    assert of(residency, "a") == Held(32, 0, 32, False)
    assert not of(residency, "a").cold
    residency.cleared()
    assert of(residency, "a").cold


def test_it_is_cold_when_less_than_a_tenth_is_left() -> None:
    path = (*range(9), 0, 1)
    residency = Residency(100)
    store(residency, "a", path)
    residency.removed(reversed(names(path, 2)))
    assert not of(residency, "a").cold
    residency.removed([name(path[:2])])
    assert of(residency, "a").cold
    store(residency, "a", path, start=1)
    assert not of(residency, "a").cold
    assert of(residency, "a").evicted == 160


def test_a_changed_prompt_is_what_counts_from_then_on() -> None:
    residency = Residency(100)
    store(residency, "a", (1, 2, 3, 4))
    store(residency, "a", (1, 5), start=1)
    residency.removed(reversed(names((1, 2, 3, 4), 1)))
    assert of(residency, "a") == Held(32, 32, 0, True)


def test_with_too_many_blocks_all_is_forgotten_and_with_too_many_sessions_the_oldest() -> None:
    residency = Residency(4, sessions=2)
    for label, first in zip("abc", count(1)):
        store(residency, label, (first,))
    assert residency.held("a") is None
    assert residency.sessions == 2
    store(residency, "c", (7, 8))
    assert residency.held("b") is None
    assert of(residency, "c") == Held(32, 32, 0, True)
    assert residency.overflows == 1


def test_an_inner_block_that_went_first_is_passed_over() -> None:
    """As when another request's copy of it was dropped."""
    residency = Residency(100)
    store(residency, "a", (1, 2, 3, 4))
    residency.removed([name((1, 2)), name((1, 2, 3))])
    assert of(residency, "a") == Held(64, 64, 0, True)
    residency.removed([name((1, 2, 3, 4))])
    assert of(residency, "a") == Held(64, 16, 48, True)


def test_the_session_that_stored_nothing_for_longest_is_forgotten_first() -> None:
    residency = Residency(100, sessions=2)
    for label, path in (("a", (1,)), ("b", (2,)), ("a", (1, 3)), ("c", (4,))):
        store(residency, label, path)
    assert residency.held("b") is None
    assert of(residency, "a").live == 32
