"""Ids that are none: shared ones and those of single requests, each told once, and tried again in time."""

import pytest

from warmroute.core.identity import AGENT_SOURCES
from warmroute.core.model import Session
from warmroute.recognition.guards import Guards
from warmroute.recognition.threads import Threads

EXPIRY = 100.0
DAY = 24 * 3600.0


def session(name: str = "s", source: str = "x-session-id") -> Session:
    return Session(name.encode().ljust(16, b"."), source)


class World:
    """Guards with a clock, and uses of ids."""

    def __init__(self, backends: int = 2) -> None:
        self.now = 1000.0
        self.threads = Threads(lambda: self.now, expiry=EXPIRY, limit=1000)
        self.guards = Guards(lambda: self.now, self.threads, backends=backends, expiry=EXPIRY, limit=1000)

    def use(self, who: Session, conversations: int = 1, *, adopted: bool = False, known: bool = False) -> None:
        self.guards.used(who, conversations, adopted=adopted, known=known)

    def chats(self, who: Session, count: int) -> None:
        for i in range(count):
            for begun in (False, True):
                self.use(who, self.threads.seen(who.key, b"%08d opening" % i, begun=begun), known=True)


def test_an_id_with_many_conversations_is_shared_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.chats(session(), 7)
    assert world.guards.unusable(session()) is None
    world.chats(session(), 9)
    world.chats(session("t"), 9)
    assert world.guards.unusable(session()) == world.guards.unusable(session("t")) == "shared"
    assert world.guards.unusable(session("u")) is None
    assert len(caplog.records) == 1
    assert list(world.guards.told) == [("x-session-id", "shared")]
    world.now += 2 * DAY
    assert world.guards.unusable(session()) is None


def test_an_id_with_a_small_part_of_the_requests_harms_nobody() -> None:
    world = World()
    for i in range(200):
        world.threads.seen(b"%016d" % i, b"x" * 16, begun=False)
        if i == 20:
            world.chats(session(), 7)
    world.chats(session(), 12)
    assert world.guards.unusable(session()) is None


@pytest.mark.parametrize("source", sorted(AGENT_SOURCES))
def test_an_agents_id_may_have_many_conversations(source: str) -> None:
    world = World()
    world.chats(session(source=source), 40)
    assert world.guards.unusable(session(source=source)) is None
    assert not world.guards.told


def test_a_source_that_names_requests_is_skipped_for_a_while_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    for i in range(7):
        world.use(session(f"{i}"), adopted=True)
    assert world.guards.unusable(session("x")) is None
    world.use(session("7"), adopted=True)
    assert world.guards.unusable(session("x")) == "per_request"
    assert world.guards.unusable(session("x", "x-chat-id")) is None
    world.now += EXPIRY - 1
    assert world.guards.unusable(session("x")) == "per_request"
    world.now += 1
    assert world.guards.unusable(session("x")) is None
    for i in range(8):
        world.use(session(f"again {i}"), adopted=True)
    assert world.guards.unusable(session("x")) == "per_request"
    assert len(caplog.records) == 1


def test_values_that_come_back_save_their_source() -> None:
    world = World()
    for i in range(200):
        world.use(session(f"{i}"), adopted=True)
        world.use(session(f"{i}"), known=True)
    assert world.guards.unusable(session("x")) is None


def test_new_values_without_a_history_are_only_new_chats() -> None:
    world = World()
    for i in range(200):
        world.use(session(f"{i}"))
    assert world.guards.unusable(session("x")) is None
    assert repr(world.guards) == "<Guards 0 shared ids, per request: []>"


def test_a_long_good_past_does_not_hide_a_change_for_ever() -> None:
    world = World()
    for _ in range(100_000):
        world.use(session(), known=True)
    for i in range(20_000):
        world.use(session(f"{i}"), adopted=True)
        if world.guards.unusable(session("x")):
            break
    assert world.guards.unusable(session("x")) == "per_request"
