"""Which session has this history: found from its end, told apart at the next turn, and forgotten in time."""

import pytest

from warmroute.core.history import History, TextHistory, seed
from warmroute.core.messages import ASSISTANT, USER, Message
from warmroute.recognition.conversations import BRANCHES, Conversations, Found, Match

IDLE = 100.0
START = seed("m", None)


class Talk:
    """Conversations with a clock, and whole turns of them. Texts alternate: user, answer, user, ..."""

    def __init__(self, limit: int = 3000) -> None:
        self.now = 0.0
        self.known = Conversations(lambda: self.now, idle_expiry=IDLE, limit=limit)
        self.sessions = 0

    def find(self, *texts: str) -> Found | None:
        return self.known.find(chain(*texts))

    def turn(self, *texts: str, answer: str | None = None) -> bytes:
        return self.go(chain(*texts), answer)

    def go(self, history: History, answer: str | None) -> bytes:
        found = self.known.find(history)
        if found is None or found.match is Match.SHARED:
            self.sessions += 1
            session = b"%d" % self.sessions
        else:
            session = found.session
        history.settle()
        self.known.goes_on(history, found, session)
        if answer is not None:
            self.known.answered(history, Message(ASSISTANT, answer), session)
        return session


def chain(*texts: str) -> History:
    return History(START, [Message(ASSISTANT if i % 2 else USER, text) for i, text in enumerate(texts)])


def match(found: Found | None) -> Match | None:
    return None if found is None else found.match


def test_each_way_in_which_a_history_is_known() -> None:
    talk = Talk()
    first = talk.turn("a", answer="A")
    assert talk.find("a") is None
    assert talk.find("a", "A", "b") == Found(first, Match.NEXT, 1)
    assert talk.turn("a", "A", "b", answer="B") == first
    assert talk.find("a", "A", "b") == Found(first, Match.AGAIN, 1)
    assert talk.find("a", "A", "c") == Found(first, Match.BRANCH, 1)
    assert talk.find("a", "A", "b", "B", "c") == Found(first, Match.NEXT, 3)
    assert talk.find("a", "A changed", "b") == Found(first, Match.ASKED, 1)
    assert talk.find("other", "A", "b") is None


def test_the_longest_known_part_wins() -> None:
    talk = Talk()
    first = talk.turn("a", answer="A")
    talk.turn("a", "A", "b", answer="B")
    assert talk.find("a", "A", "b", "B changed", "c") == Found(first, Match.ASKED, 3)
    assert talk.find("a", "A", "b", "B", "c", "C unknown", "d") == Found(first, Match.NEXT, 3)


def test_looking_changes_nothing() -> None:
    talk = Talk()
    talk.turn("a", answer="A")
    before = len(talk.known)
    for _ in range(10):
        assert match(talk.find("a", "A", "b")) is Match.NEXT
    assert len(talk.known) == before


def test_equal_conversations_each_keep_one() -> None:
    talk = Talk()
    opened = {talk.turn("hi", answer="Hello") for _ in range(5)}
    assert len(opened) == 5
    assert {talk.turn("hi", "Hello", f"I am {i}", answer="A") for i in range(5)} == opened
    for i in range(5):
        assert match(talk.find("hi", "Hello", f"I am {i}")) is Match.AGAIN


def test_a_beginning_with_many_continuations_is_shared() -> None:
    talk = Talk()
    talk.turn("a", answer="A")
    talk.turn("a", "A", "b", answer="B")
    found = []
    for i in range(BRANCHES + 2):
        found.append(match(talk.find("a", "A", f"c{i}")))
        talk.turn("a", "A", f"c{i}", answer=f"C{i}")
    assert found == [Match.BRANCH] * BRANCHES + [Match.SHARED] * 2
    assert match(talk.find("a", "A", "c4", "C4", "d")) is Match.NEXT
    assert talk.sessions == 3


def test_a_question_that_many_ask_names_none() -> None:
    talk = Talk()
    for i in range(BRANCHES):
        talk.turn("hi", answer=f"A{i}")
    assert match(talk.find("hi", "changed", "b")) is Match.ASKED
    talk.turn("hi", answer="A last")
    assert talk.find("hi", "changed", "b") is None


def test_what_nobody_uses_is_forgotten() -> None:
    talk = Talk()
    talk.turn("a", answer="A")
    talk.now += IDLE - 1
    assert talk.find("a", "A", "b") is not None
    talk.now += IDLE + 2
    assert talk.find("a", "A", "b") is None
    assert len(talk.known) == 0
    assert talk.known.evicted == 0


def test_a_conversation_that_goes_on_is_not_forgotten() -> None:
    talk = Talk()
    texts = ["a"]
    session = talk.turn(*texts, answer="A0")
    for i in range(30):
        talk.now += IDLE - 1
        texts += [f"A{i}", f"b{i}"]
        assert talk.turn(*texts, answer=f"A{i + 1}") == session


def test_room_is_bounded_and_what_is_lost_is_counted() -> None:
    talk = Talk(limit=30)
    for i in range(100):
        talk.turn(f"a{i}", answer=f"A{i}")
        assert len(talk.known) <= 30
    assert talk.known.evicted > 100
    assert talk.find("a0", "A0", "b") is None
    assert match(talk.find("a99", "A99", "b")) is Match.NEXT
    assert "entries" in repr(talk.known)


def test_an_answer_that_is_given_back_alone_goes_on() -> None:
    """A client may ask for the rest of an answer: the history ends with it."""
    talk = Talk()
    first = talk.turn("a", answer="A")
    assert talk.find("a", "A") == Found(first, Match.NEXT, 1)
    assert talk.turn("a", "A", answer="A more") == first
    assert match(talk.find("a", "A", "b")) is Match.NEXT


@pytest.mark.parametrize("count", [1, 8, 9, 40])
def test_texts_with_the_same_beginning_are_told_apart(count: int) -> None:
    talk = Talk()
    texts = [f"text {i} " for i in range(count)]
    first = [talk.go(TextHistory(START, text), "A" * (i + 1)) for i, text in enumerate(texts)]
    grown = [text + "A" * (i + 1) + " and" for i, text in enumerate(texts)]
    assert [talk.go(TextHistory(START, text), None) for text in grown] == first


@pytest.mark.parametrize("count", [1, 8, 9, 40])
def test_texts_of_the_same_length_are_told_apart(count: int) -> None:
    talk = Talk()
    texts = [f"text {i:03} " for i in range(count)]
    first = [talk.go(TextHistory(START, text), "A") for text in texts]
    assert len(set(first)) == count
    assert [talk.go(TextHistory(START, text + "A and"), None) for text in texts] == first
