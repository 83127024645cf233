"""Several conversations under one id: which one is the id's own, which are children, and when there are too many."""

from hashlib import blake2b

import pytest

from warmroute.recognition.threads import Threads

KEY = b"k" * 16


def opening(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=16).digest()


class Ids:
    """Threads with a clock, and requests as they come."""

    def __init__(self, limit: int = 100) -> None:
        self.now = 0.0
        self.threads = Threads(lambda: self.now, expiry=10, limit=limit)
        self.went_on = 0

    def request(self, name: str, *, begun: bool = False, key: bytes = KEY) -> bytes | None:
        child = self.threads.child(key, opening(name), begun=begun)
        assert child == self.threads.child(key, opening(name), begun=begun)  # looking changes nothing
        self.went_on = self.threads.seen(key, opening(name), begun=begun)
        return child


def test_the_first_that_is_gone_on_with_is_the_ids_own() -> None:
    ids = Ids()
    assert ids.request("title") is None
    assert ids.request("chat") is None
    assert ids.request("chat", begun=True) is None
    assert ids.request("chat") is None  # regenerated
    child = ids.request("agent")
    assert child is not None
    assert ids.request("agent", begun=True) == child
    assert ids.request("chat", begun=True) is None
    assert ids.request("other agent") not in (None, child)


def test_before_one_is_gone_on_with_only_two_may_be_its_own() -> None:
    ids = Ids()
    assert [ids.request(name) is None for name in ("a", "b", "c", "d", "a", "c")] == [
        True,
        True,
        False,
        False,
        True,
        False,
    ]


def test_a_history_whose_opening_is_unknown_is_the_ids_own() -> None:
    ids = Ids()
    ids.request("chat")
    ids.request("chat", begun=True)
    assert ids.request("window that slid", begun=True) is None
    assert ids.threads.child(KEY, None, begun=False) is None


def test_another_id_has_threads_of_its_own() -> None:
    ids = Ids()
    ids.request("chat")
    ids.request("chat", begun=True)
    assert ids.request("agent", key=b"o" * 16) is None
    assert len(ids.threads) == 2


def test_children_are_bounded_and_ids_forgotten() -> None:
    ids = Ids(limit=4)
    ids.request("chat")
    ids.request("chat", begun=True)
    children = [ids.request(f"agent {i}") for i in range(200)]
    assert len(set(children)) == 200
    assert ids.request("agent 199", begun=True) == children[199]
    for i in range(20):
        ids.request("a", key=b"%016d" % i)
    assert len(ids.threads) <= 4
    ids.now = 20
    assert ids.request("agent") is None
    assert len(ids.threads) == 1


def test_conversations_count_once_each_when_they_are_gone_on_with() -> None:
    ids = Ids()
    for i in range(8):
        ids.request(f"chat {i}")
        assert ids.went_on == i
        ids.request(f"chat {i}", begun=True)
        ids.request(f"chat {i}", begun=True)
    assert ids.went_on == 8


@pytest.mark.parametrize(("others", "busy"), [(0, True), (16, True), (17, False)])
def test_an_id_with_a_great_part_of_the_requests_is_busy(others: int, busy: bool) -> None:
    """Eight conversations with two requests each: sixteen of all, half of them at least."""
    ids = Ids()
    for i in range(8):
        ids.request(f"chat {i}")
        ids.request(f"chat {i}", begun=True)
    for i in range(others):
        ids.request("x", key=b"%016d" % i)
    assert ids.threads.busy(KEY, 0.5) is busy
    assert not ids.threads.busy(b"other".ljust(16), 0.0)


def test_conversations_that_are_not_gone_on_with_do_not_count() -> None:
    ids = Ids()
    for i in range(40):
        ids.request(f"title {i}")
    assert ids.went_on == 0
