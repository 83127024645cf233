"""The account of a conversation's tokens, turn by turn, over engines that keep, lose and never had what it says."""

from dataclasses import dataclass, field

import pytest

from warmroute.core.drift import Cause
from warmroute.core.model import Session
from warmroute.core.residency import Held
from warmroute.core.sketch import Kind, Stem
from warmroute.core.split import Outcome
from warmroute.core.usage import Usage
from warmroute.truth import conversations
from warmroute.truth.conversations import Conversations
from warmroute.truth.ledger import NO_PROMPT, Answered, Ledger, Prompt

REUSED, NEW, FIRST, MOVED, EVICTED, CHANGED, ROUNDING, UNKNOWN = (
    Outcome.REUSED,
    Outcome.NEW,
    Outcome.FIRST_TURN,
    Outcome.MOVED,
    Outcome.EVICTED,
    Outcome.PROMPT_CHANGED,
    Outcome.BLOCK_ROUNDING,
    Outcome.UNKNOWN,
)
S = Session(b"s" * 16, "x-session-id")
SYSTEM = b'{"role":"system","content":"%b"}'
WORD = 10
"""Bytes of a token here: a message of so many times ten bytes has as many tokens."""


def said(role: bytes, tokens: int, what: bytes = b"x") -> bytes:
    """A message whose JSON is so many tokens long."""
    head, tail = b'{"role":"' + role + b'","content":"', b'"}'
    return head + (what * (tokens * WORD))[: tokens * WORD - len(head) - len(tail)] + tail


@dataclass
class Given:
    """Parts of a prompt that was no list of messages."""

    said: list[tuple[Kind, bytes]]

    def parts(self) -> list[tuple[Kind, bytes]]:
        return self.said

    def added(self, old: Stem | None) -> tuple[None, None]:
        return None, None


@dataclass
class Chat:
    """One conversation against a ledger. Every turn says what its backend had cached."""

    ledger: Ledger
    session: Session = S
    system: bytes = said(b"system", 100)
    history: list[tuple[Kind, bytes]] = field(default_factory=list)
    now: float = 0.0

    def turn(
        self,
        cached: int | None,
        *,
        backend: str = "a",
        rank: str | None = None,
        decision: str = "pin_hit",
        pause: float = 1.0,
        answer: int = 20,
        question: int = 30,
        came_from: bytes | None = None,
        older: bool = False,
    ) -> dict[Outcome, int]:
        """Ask, be answered, and return what became of the prompt's tokens."""
        self.now += pause
        self.history.append((Kind.USER, said(b"user", question, b"q%d" % len(self.history))))
        parts = [(Kind.SYSTEM, self.system), *self.history]
        prompt = self.ledger.look(self.session, Given(parts), came_from, older=older)
        tokens = sum(len(data) for _, data in parts) // WORD
        usage = Usage(tokens, cached, answer)
        self.ledger.settle(prompt, Answered(backend, rank, decision, usage, self.now, self.now))
        self.history.append((Kind.ASSISTANT, said(b"assistant", answer, b"a%d" % len(self.history))))
        return self.last()

    def last(self) -> dict[Outcome, int]:
        known = self.ledger.conversations.get(self.session.key)
        assert known is not None
        return known.turns[-1].outcomes

    def cause(self) -> str:
        known = self.ledger.conversations.get(self.session.key)
        assert known is not None
        return known.turns[-1].cause


@pytest.fixture
def processes() -> dict[str, int]:
    return {}


@pytest.fixture
def ledger(processes: dict[str, int]) -> Ledger:
    return Ledger(
        Conversations(100),
        move_cause=lambda decision, left: f"{decision} from {left}",
        process_of=lambda name: processes.get(name, 0),
    )


@pytest.fixture
def chat(ledger: Ledger) -> Chat:
    return Chat(ledger)


def test_a_conversation_that_behaves(chat: Chat, ledger: Ledger) -> None:
    assert chat.turn(0) == {FIRST: 130}
    # 130 and 19 of the answer's 20 are there: nine blocks of 16
    assert chat.turn(144) == {REUSED: 144, NEW: 31, ROUNDING: 5}
    assert chat.turn(192) == {REUSED: 192, NEW: 31, ROUNDING: 7}
    assert ledger.tally.totals("a") == {FIRST: 130, REUSED: 336, NEW: 62, ROUNDING: 12}
    assert not ledger.tally.missed
    assert chat.cause() == ""


def test_what_another_conversation_has_left_is_reused_from_the_first_turn_on(chat: Chat) -> None:
    assert chat.turn(96) == {REUSED: 96, FIRST: 34}


def test_a_move_and_its_cause(chat: Chat, ledger: Ledger) -> None:
    chat.turn(0)
    assert chat.turn(0, backend="b", decision="pin_lost") == {NEW: 31, ROUNDING: 5, MOVED: 144}
    assert ledger.tally.missed == {("b", MOVED, "pin_lost from a"): 144}
    assert chat.cause() == "pin_lost from a"
    assert chat.turn(192, backend="b") == {REUSED: 192, NEW: 31, ROUNDING: 7}


def test_after_a_turn_elsewhere_only_that_is_missing(chat: Chat, ledger: Ledger) -> None:
    chat.turn(0)
    chat.turn(0, backend="b", decision="pin_spill")
    assert chat.turn(144) == {REUSED: 144, NEW: 31, ROUNDING: 7, MOVED: 48}
    assert ledger.tally.missed["a", MOVED, "pin_hit from b"] == 48


def test_another_engine_of_the_same_backend_is_another_cache(chat: Chat) -> None:
    chat.turn(0, rank="0")
    assert chat.turn(0, rank="1")[MOVED] == 144


def test_an_eviction_and_the_pause_before_it(chat: Chat, ledger: Ledger) -> None:
    chat.turn(0)
    chat.turn(144, pause=100)
    assert chat.turn(0, pause=700) == {NEW: 31, ROUNDING: 7, EVICTED: 192}
    assert ledger.tally.missed == {("a", EVICTED, "evicted"): 192}
    known = ledger.conversations.get(S.key)
    assert known is not None
    assert known.turns[-1].idle == 700
    curve = [(b.turns, b.expected, b.had) for b in ledger.warmth["a"].buckets if b.turns]
    assert curve == [(1, 144, 144), (1, 192, 0)]


def test_a_restart_is_told_from_an_eviction(chat: Chat, ledger: Ledger, processes: dict[str, int]) -> None:
    chat.turn(0)
    processes["a"] = 1
    assert chat.turn(0)[EVICTED] == 144
    assert ledger.tally.missed == {("a", EVICTED, "restart"): 144}
    assert "a" not in ledger.warmth
    assert chat.turn(192) == {REUSED: 192, NEW: 31, ROUNDING: 7}


def test_an_answer_that_comes_back_otherwise(chat: Chat, ledger: Ledger) -> None:
    chat.turn(0, answer=60)
    assert chat.turn(128) == {REUSED: 128, NEW: 31, ROUNDING: 13, CHANGED: 48}
    assert ledger.tally.missed == {("a", CHANGED, "answer"): 48}
    assert "a" not in ledger.warmth


def test_a_clock_in_the_system_prompt(chat: Chat, ledger: Ledger) -> None:
    for minute in range(3):
        chat.system = SYSTEM % (b"It is 12:0%d. " % minute + b"Be kind to all who ask you anything. " * 30)
        chat.turn(0)
    assert chat.last().get(CHANGED, 0) > 0.8 * 130
    assert EVICTED not in chat.last()
    assert chat.cause() == Cause.CLOCK
    ((source, _), family), *others = ledger.stability.families.items()
    assert not others
    assert (source, family.turns, dict(family.changes)) == ("x-session-id", 2, {Cause.CLOCK: 2})
    assert family.tokens[Cause.CLOCK] == sum(t for (_, o, _), t in ledger.tally.missed.items() if o is CHANGED)
    assert dict(family.parts) == {"system": 2}


def test_an_answer_is_lost_with_the_prompt_that_it_answers(chat: Chat) -> None:
    for minute in range(3):
        chat.system = SYSTEM % (b"It is 12:0%d. " % minute + b"Be kind to all who ask you anything. " * 30)
        chat.turn(0, answer=400)
    tokens = chat.last()
    assert tokens[NEW] == pytest.approx(30, abs=3)
    assert tokens[CHANGED] == pytest.approx(sum(tokens.values()) - 30, abs=3)


def test_an_edited_question_has_no_answer_to_lose(chat: Chat) -> None:
    chat.turn(0)
    chat.turn(144, answer=400)
    del chat.history[-2:]
    assert chat.turn(144, question=33) == {REUSED: 144, NEW: 33, ROUNDING: 6}


def test_trimmed_history(chat: Chat, ledger: Ledger) -> None:
    chat.turn(0)
    chat.turn(144)
    chat.turn(192)
    del chat.history[:2]
    chat.turn(96)
    assert chat.cause() == Cause.TRIMMED
    assert chat.last()[REUSED] == 96
    assert chat.last()[CHANGED] > 60


def test_a_change_lowers_what_is_expected_of_every_engine(chat: Chat) -> None:
    chat.turn(0)
    chat.turn(0, backend="b", decision="pin_spill")
    chat.system = said(b"system", 100, b"z")
    chat.turn(0, backend="b")
    assert chat.turn(0).get(EVICTED, 0) == 0  # nothing of what it says now was ever there


def test_a_new_session_that_goes_on_with_another_ones_history(chat: Chat, ledger: Ledger) -> None:
    chat.turn(0)
    chat.session = Session(b"t" * 16, "x-session-id")
    assert chat.turn(144, came_from=S.key, decision="history") == {REUSED: 144, NEW: 31, ROUNDING: 5}


def test_a_session_of_which_nothing_is_known_any_more(chat: Chat) -> None:
    assert chat.turn(32, older=True) == {REUSED: 32, UNKNOWN: 98}


def test_a_backend_that_does_not_say_what_was_cached(chat: Chat, ledger: Ledger) -> None:
    assert chat.turn(None) == {UNKNOWN: 130}
    assert chat.turn(None) == {UNKNOWN: 180}
    assert "a" not in ledger.warmth


def test_a_request_without_a_conversation_counts_too(ledger: Ledger) -> None:
    ledger.settle(NO_PROMPT, Answered("a", None, "no_session", Usage(50, 16, 1), 0, 0))
    ledger.settle(Prompt(older=True), Answered("a", None, "owner", Usage(50, 16, 1), 0, 0))
    assert ledger.tally.totals() == {REUSED: 32, FIRST: 34, UNKNOWN: 34}
    assert len(ledger.conversations) == 0


def test_a_turn_that_ended_before_it_told_its_length_is_estimated(chat: Chat, ledger: Ledger) -> None:
    chat.turn(0)
    parts = [(Kind.SYSTEM, chat.system), *chat.history, (Kind.USER, said(b"user", 30))]
    prompt = ledger.look(S, Given(parts), None, older=False)
    ledger.settle(prompt, Answered("a", None, "pin_hit", Usage(), 2, 3))
    assert ledger.tally.tokens["a", UNKNOWN] == 180
    first = ledger.look(Session(b"n" * 16, "x"), Given(parts), None, older=False)
    ledger.settle(first, Answered("a", None, "ring", Usage(), 2, 3))
    assert ledger.tally.totals().total() == 130 + 180  # of a first turn nothing tells the length


def test_what_came_from_the_tier_behind(chat: Chat, ledger: Ledger) -> None:
    ledger.tally.reloaded("a", 1000.0)  # from before the router's time
    chat.turn(0)
    ledger.tally.reloaded("a", 1000.0)
    chat.turn(144, pause=500)
    other = Chat(ledger, Session(b"o" * 16, "x"), said(b"system", 100, b"o"))
    other.turn(0)
    other.turn(144, pause=1)
    ledger.tally.reloaded("a", 1144.0)
    assert chat.last() == {Outcome.RELOADED: 144, NEW: 31, ROUNDING: 5}  # the one that paused
    assert other.last()[REUSED] == 144
    assert ledger.tally.tokens["a", Outcome.RELOADED] == 144
    assert ledger.tally.totals().total() == 2 * (130 + 180)
    ledger.tally.reloaded("a", 10.0)  # the server was restarted
    assert ledger.tally.tokens["a", Outcome.RELOADED] == 144


def test_conversations_are_bounded(ledger: Ledger) -> None:
    for number in range(150):
        Chat(ledger, Session(b"%016d" % number, "x")).turn(0)
    assert len(ledger.conversations) == 100
    assert ledger.conversations.evicted == 50


def test_the_history_by_steps_adds_up(chat: Chat, ledger: Ledger) -> None:
    chat.turn(0)
    chat.turn(144, pause=100)
    chat.turn(192, pause=100)
    steps = list(ledger.tally.steps)
    assert len(steps) == 3
    assert sum((counts for _, counts in steps), start=type(steps[0][1])()) == ledger.tally.totals()


def test_only_conversations_of_late_keep_all_their_turns(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "_MOST_WITH_TURNS", 2)
    chats = [Chat(ledger, Session(b"%016d" % number, "x")) for number in range(3)]
    for cached in (0, 144):
        for chat in chats:
            chat.turn(cached)
    kept = [len(found.turns) for chat in chats if (found := ledger.conversations.get(chat.session.key)) is not None]
    assert kept == [1, 2, 2]
    assert chats[0].turn(192) == {REUSED: 192, NEW: 31, ROUNDING: 7}


# Where engines tell what they drop


@dataclass
class Engines:
    """What the engines have told: tokens that each has dropped of a session; None where one does not tell."""

    dropped: dict[tuple[str, str | None], int | None] = field(default_factory=dict)
    held: list[Held | None] = field(default_factory=list)

    def evicted(self, session: bytes, backend: str, rank: str | None, held: Held | None) -> int | None:
        assert session == S.key
        self.held.append(held)
        return self.dropped.get((backend, rank))


@pytest.fixture
def engines(ledger: Ledger) -> Engines:
    engines = Engines()
    ledger.evicted = engines.evicted
    return engines


def test_eviction_is_known_where_the_figures_alone_would_blame_the_answer(chat: Chat, engines: Engines) -> None:
    chat.turn(0, answer=60)
    engines.dropped["a", None] = 48
    assert chat.turn(128) == {REUSED: 128, NEW: 31, ROUNDING: 13, EVICTED: 48}
    assert chat.cause() == "evicted"


def test_what_was_not_dropped_and_yet_not_found_is_unknown(chat: Chat, engines: Engines) -> None:
    chat.turn(0)
    engines.dropped["a", None] = 0
    assert chat.turn(0) == {NEW: 31, ROUNDING: 5, UNKNOWN: 144}


def test_an_engine_that_does_not_tell_is_judged_by_the_figures(chat: Chat, engines: Engines) -> None:
    chat.turn(0, rank="1")
    assert chat.turn(0, rank="1") == {NEW: 31, ROUNDING: 5, EVICTED: 144}
    assert engines.held == [None, None]


def test_a_session_that_moved_since_it_was_dropped_has_not_lost_by_moving(chat: Chat, engines: Engines) -> None:
    chat.turn(0)
    assert chat.turn(0, backend="b", decision="pin_cold") == {NEW: 31, ROUNDING: 5, EVICTED: 144}
    assert chat.cause() == "evicted"
    assert chat.turn(0)[MOVED] == 48
