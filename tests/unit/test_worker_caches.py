"""A worker's copy of what is known of the backends' caches: the same as the supervisor's after each thing that it is told."""

import asyncio
import pickle
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.residency import Held
from warmroute.fleet.heard import HeardResidents
from warmroute.fleet.kv_wire import batch
from warmroute.fleet.residents import Sync
from warmroute.workers.caches import CacheTeller, CacheView, ToldResidents

from .test_residents import KEY, SESSION, removed, stored

SESSIONS = [bytes([number]) * 16 for number in range(3)]


class Told:
    """A supervisor that hears, and a worker that is told."""

    def __init__(self) -> None:
        self.heard = HeardResidents(KEY, 1000)
        self.said: list[Any] = []
        self.teller = CacheTeller(self.heard, lambda *message: self.said.append(message))
        self.copy = ToldResidents(self.heard.key, self._called)

    def _called(self, what: str, session: bytes, name: str) -> None:
        assert what == "called"
        self.heard.also_called(session, name)

    def follow(self) -> list[CacheView]:
        """Let the worker take over what has changed; returns what it was told."""
        changes: list[CacheView] = pickle.loads(pickle.dumps(self.teller.changes()))
        self.copy.take(changes)
        return changes

    def event(self, backend: str, engine: str, *events: dict[str, Any]) -> None:
        self.heard.caches[backend][engine].take(batch(msgspec.msgpack.encode([1.5, events, 0])))

    def live(self, backend: str = "a", engine: str = "0") -> None:
        self.heard.open(backend, engine).sync = Sync.LIVE


@pytest.fixture
def told() -> Told:
    return Told()


steps = st.lists(
    st.tuples(
        st.sampled_from(["open", "live", "gap", "close", "store", "remove", "cleared", "forget", "tier", "follow"]),
        st.sampled_from("ab"),
        st.sampled_from("01"),
        st.sampled_from(SESSIONS),
        st.integers(1, 12),
    ),
    max_size=60,
)


@given(steps)
def test_whatever_happens_a_worker_knows_what_the_supervisor_knows(
    steps: list[tuple[str, str, str, bytes, int]],
) -> None:
    told = Told()
    heard = told.heard
    for what, backend, engine, session, block in steps:
        cache = heard.caches.get(backend, {}).get(engine)
        if what == "open":
            heard.open(backend, engine)
        elif what == "close":
            heard.close(backend)
        elif what == "follow":
            told.follow()
        elif cache is None:
            continue
        elif what in ("live", "gap"):
            cache.sync = Sync(what)
        elif what == "store":
            told.event(backend, engine, stored(heard.label(session), block, block + 1))
        elif what == "remove":
            told.event(backend, engine, removed(block, block + 1))
        elif what == "tier":
            told.event(backend, engine, stored(None, 1, medium="CPU"))
        else:
            getattr(cache.residency, what)()
    told.follow()
    assert told.follow() == [], "nothing is told twice"
    fresh = ToldResidents(heard.key, told._called)
    fresh.take(told.teller.everything())
    for copy in (told.copy, fresh):
        assert {name: set(engines) for name, engines in copy.caches.items()} == {
            name: set(engines) for name, engines in heard.caches.items()
        }
        for session in SESSIONS:
            assert sorted(copy.warm(session)) == sorted(heard.warm(session))
            for backend in "ab":
                assert copy.sync(backend) is heard.sync(backend)
                for rank in ("0", "1", None):
                    assert copy.held(session, backend, rank) == heard.held(session, backend, rank)
                    assert copy.cold(session, backend, rank) == heard.cold(session, backend, rank)


def test_only_what_has_changed_is_told(told: Told) -> None:
    told.live()
    for number, session in enumerate(SESSIONS):
        told.event("a", "0", stored(told.heard.label(session), number + 1))
    (view,) = told.follow()
    assert (view.anew, len(view.rows)) == (True, 3 * 41)
    told.event("a", "0", removed(2))
    (view,) = told.follow()
    assert (view.anew, len(view.rows)) == (False, 41)
    assert told.copy.held(SESSIONS[1], "a", "0") == Held(16, 0, 16, True)


def test_large_numbers_arrive_as_they_are(told: Told) -> None:
    told.live()
    told.event("a", "0", stored(told.heard.label(SESSION), 1, 2, block_size=1 << 20))
    told.heard.caches["a"]["0"].residency._sessions[told.heard.label(SESSION)].evicted = 1 << 40
    told.follow()
    assert told.copy.held(SESSION, "a", "0") == Held(2 << 20, 2 << 20, 1 << 40, True)


def test_sessions_that_no_router_named_are_not_told(told: Told) -> None:
    told.live()
    told.event("a", "0", *(stored(name, number) for number, name in enumerate(["z" * 32, "ab " * 10 + "ab", "é" * 32])))
    assert told.heard.caches["a"]["0"].residency.sessions == 3
    (view,) = told.follow()
    assert view.rows == b""


def test_a_name_that_a_client_gave_is_known_before_the_event(told: Told) -> None:
    told.live()
    told.copy.also_called(SESSION, "chat-1")
    told.event("a", "0", stored("chat-1", 1))
    told.follow()
    assert told.copy.held(SESSION, "a", "0") == Held(16, 16, 0, True)


async def test_a_change_is_told_soon_and_by_itself(told: Told) -> None:
    task = asyncio.ensure_future(told.teller.run())
    told.live()
    async with asyncio.timeout(5):
        while not told.said:
            await asyncio.sleep(0.001)
    (((what, changes),)) = told.said
    assert (what, [view.sync for view in changes]) == ("caches", ["live"])
    told.said.clear()
    told.heard.close("a")
    async with asyncio.timeout(5):
        while not told.said:
            await asyncio.sleep(0.001)
    assert [view.sync for view in told.said[0][1]] == ["off"]
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
