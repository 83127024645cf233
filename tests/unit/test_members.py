"""What operators do by hand, beside what the sources name; and a source that fails keeps what it named."""

import asyncio
import logging

import pytest

from warmroute.core.model import BackendSpec
from warmroute.discovery.members import MemberError, Members
from warmroute.discovery.source import Source

A, B, C = (BackendSpec(name, f"http://{name}:8000") for name in "abc")


@pytest.fixture
def members() -> Members:
    """Configured are a and b."""
    found = Members()
    found.wanted = found.name_all((A, B), None)
    return found


def look(members: Members, *configured: BackendSpec) -> list[str]:
    members.wanted = members.name_all(configured, None)
    return [spec.name for spec in members.wanted.specs]


def test_who_is_added_stays_whatever_is_configured(members: Members) -> None:
    assert members.add(C, (), named=False) == "c"
    assert look(members, A, B) == ["a", "b", "c"]
    assert look(members, A) == ["a", "c"]
    assert members.wanted.sources == {"a": ("config",), "c": ("hand",)}


def test_who_is_there_already_is_not_added(members: Members) -> None:
    with pytest.raises(MemberError, match="http://A:8000 is there already: it is a, from config"):
        members.add(BackendSpec("x", "http://A:8000"), (), named=True)
    with pytest.raises(MemberError, match="another backend is named 'a'"):
        members.add(BackendSpec("a", "http://c:8000"), (), named=True)
    members.add(C, (), named=False)
    with pytest.raises(MemberError, match="it is c, from hand"):  # before the first one is in force
        members.add(C, (), named=False)


def test_who_is_going_comes_back_under_its_name(members: Members) -> None:
    going = [BackendSpec("gpu", C.url)]
    assert members.add(C, going, named=False) == "gpu"
    assert look(members, A) == ["a", "gpu"]
    members.remove("gpu")
    assert members.add(C, going, named=True) == "c"


def test_who_is_removed_stays_away_until_it_is_added_again(members: Members) -> None:
    members.remove("a")
    assert look(members, A, B) == ["b"]
    assert list(members.hidden.values()) == ["a"]
    assert members.add(BackendSpec("else", A.url), (), named=True) == "a"
    assert look(members, A, B) == ["a", "b"]
    assert (members.by_hand, members.hidden) == ({}, {})


def test_a_removal_is_forgotten_once_nobody_names_the_address(members: Members) -> None:
    members.remove("a")
    assert look(members, A, B) == ["b"]
    assert look(members, B) == ["b"]
    assert look(members, A, B) == ["a", "b"]


def test_who_was_added_by_hand_alone_is_just_forgotten(members: Members) -> None:
    members.add(C, (), named=False)
    members.remove("c")
    assert look(members, A, B) == ["a", "b"]
    assert members.hidden == {}


def test_the_last_one_is_not_removed_even_by_two_at_once(members: Members) -> None:
    members.remove("a")
    with pytest.raises(MemberError, match="b is the last backend"):
        members.remove("b")


def test_who_is_not_there_is_not_removed(members: Members) -> None:
    with pytest.raises(MemberError, match="no backend is named 'x'; there are a, b") as raised:
        members.remove("x")
    assert raised.value.unknown


def test_the_common_key_is_for_those_without_one() -> None:
    members = Members()
    own = BackendSpec("own", "http://own:1", key="mine")
    members.add(A, (), named=False)
    assert [s.key for s in members.name_all((own,), "common").specs] == ["mine", "common"]


def test_a_source_that_fails_keeps_what_it_named_and_says_why_once(caplog: pytest.LogCaptureFixture) -> None:
    now, changed = [5.0], asyncio.Event()
    source = Source("file", lambda: now[0], changed.set)
    assert (source.up, source.asked.is_set()) == (False, False)
    with caplog.at_level(logging.INFO, "warmroute.discovery"):
        source.failed("no such file")
        assert (source.up, source.asked.is_set(), changed.is_set()) == (False, True, False)
        source.found([A, B])
        assert (source.up, source.at, source.specs, changed.is_set()) == (True, 5.0, (A, B), True)
        changed.clear()
        source.found([A, B])
        assert not changed.is_set()
        for why in ("broken", "broken", "broken otherwise"):
            source.failed(why)
        assert (source.up, source.specs, source.failures, changed.is_set()) == (False, (A, B), 4, False)
        source.found([A])
    assert [record.message.partition(":")[2] for record in caplog.records if record.levelno == logging.WARNING] == [
        " no such file; the 0 backends of before stay",
        " broken; the 2 backends of before stay",
        " broken otherwise; the 2 backends of before stay",
    ]
    assert (source.specs, changed.is_set()) == ((A,), True)
