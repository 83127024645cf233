"""Chains of digests: equal exactly for equal histories, and nothing of the text stays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.history import SIZE, History, TextHistory, follow, head_digests, seed
from warmroute.core.messages import ASSISTANT, SYSTEM, USER, Message

START = seed("m", None)
messages = st.lists(st.builds(Message, st.sampled_from([USER, ASSISTANT, SYSTEM]), st.text(max_size=4)), max_size=6)


@given(messages, messages)
def test_digests_are_equal_as_far_as_the_histories_are(one: list[Message], other: list[Message]) -> None:
    first, second = History(START, one).all(), History(START, other).all()
    assert len(first) == len(one)
    assert all(len(digest) == SIZE for digest in first)
    for i in range(min(len(one), len(other))):
        assert (first[i] == second[i]) == (one[: i + 1] == other[: i + 1])


@given(messages, st.text(max_size=4))
def test_an_answer_gives_the_digest_of_the_next_turn(said: list[Message], answer: str) -> None:
    history = History(START, said)
    history.settle()
    message = Message(ASSISTANT, answer)
    assert history.answered(message) == History(START, [*said, message]).all()[-1]


def test_nothing_of_the_text_stays_after_settling() -> None:
    history = History(
        START, [Message(SYSTEM, "be kind"), Message(USER, "secret"), Message(ASSISTANT, "s"), Message(USER, "t")]
    )
    history.settle()
    assert "secret" not in str([getattr(history, name) for name in History.__slots__])
    assert (len(history.all()), history.answers, history.root) == (4, [2], 1)
    assert history.opening == history.digests[1]
    text = TextHistory(START, "secret" + "x" * 506 + "tail")
    text.settle()
    left = [v for n in TextHistory.__slots__ if isinstance(v := getattr(text, n), bytes)]
    assert left == [b"tail", b""]  # what the answer will be hashed on to


def test_a_history_without_a_user_has_no_opening() -> None:
    assert History(START, [Message(SYSTEM, "x")]).opening is None
    assert History(START, []).all() == []


def test_other_models_and_salts_begin_elsewhere() -> None:
    starts = [seed("m", None), seed("n", None), seed(None, None), seed("m", "salt"), seed("m", "other")]
    assert len(set(starts)) == 5
    assert seed("m", 7) == seed("m", None)
    assert follow(starts[0], Message(USER, "x")) != follow(starts[1], Message(USER, "x"))


@given(st.text(max_size=900), st.text(max_size=900), st.text(min_size=1, max_size=30))
def test_a_text_and_its_answer_are_the_beginning_of_the_next_text(prompt: str, answer: str, more: str) -> None:
    first = TextHistory(START, prompt)
    first.settle()
    digest = first.answered(Message(ASSISTANT, answer))
    following = TextHistory(START, prompt + answer + more)
    cut, length = first.known
    assert length == len((prompt + answer).encode())
    assert following.split(following.cuts.index(cut), length)
    assert following.digests[0] == digest
    assert not TextHistory(START, prompt + answer).split(0, length)
    following.join()
    assert (following.answers, len(following.digests)) == ([], 1)


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_heads_are_equal_as_far_as_the_prompts_are(common: int, rest: int) -> None:
    one = head_digests(START, "tools", [Message(USER, "c" * common + "a" * rest)])
    other = head_digests(START, "tools", [Message(USER, "c" * common + "b" * rest)])
    equal = [a == b for a, b in zip(one, other, strict=True)]
    cuts = (common + len("tools\0user\0")) // 512
    assert equal == [True] * (min(cuts, len(equal)) if rest else len(equal)) + [False] * (
        len(equal) - cuts if rest else 0
    )


def test_of_a_long_prompt_only_the_beginning_counts() -> None:
    long = head_digests(START, "", [Message(USER, "x" * 1_000_000)])
    longer = head_digests(START, "", [Message(USER, "x" * 2_000_000)])
    assert long == longer
    assert len(long) < 80


@pytest.mark.parametrize("text", ["\ud800", "\0", "é😀", ""], ids=ascii)
def test_any_text_has_a_digest(text: str) -> None:
    assert len(follow(START, Message(USER, text))) == SIZE
    assert len(TextHistory(START, text).digests[0]) == SIZE
    assert head_digests(START, text, [Message(text, text)]) == []
    assert len(seed(text, text)) == SIZE
