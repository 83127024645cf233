"""The queue for full backends: first come, first served, and nobody is forgotten."""

import asyncio
from collections.abc import Callable

import pytest

from warmroute.proxy.queue import Queue


class Client:
    """A client that waits, and may leave."""

    def __init__(self) -> None:
        self.leave: Callable[[], None] = lambda: None

    def on_gone(self, callback: Callable[[], None]) -> None:
        self.leave = callback


async def settled() -> None:
    """Let everything run that can run now."""
    for _ in range(5):
        await asyncio.sleep(0)


class Town:
    """Requests that wait for places at one backend; `served` has their names in the order in which they got one."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.served: list[str] = []
        self.refused: list[str] = []
        self.places = 0
        self.tasks: list[asyncio.Task[None]] = []

    def comes(self, name: str) -> None:
        self.tasks.append(asyncio.ensure_future(self._wait(name)))

    def free(self, places: int) -> None:
        self.places += places
        for _ in range(places):
            self.queue.freed("a")

    async def _wait(self, name: str) -> None:
        deadline, again = self.queue.deadline(), False
        while True:
            if not await self.queue.wait("a", Client(), deadline, again=again):  # type: ignore[arg-type]
                self.refused.append(name)
                return
            if self.places:
                self.places -= 1
                self.served.append(name)
                return
            again = True


@pytest.fixture
async def town() -> Town:
    return Town(Queue(length=10, timeout=5.0))


async def test_who_came_first_is_served_first(town: Town) -> None:
    for name in "abc":
        town.comes(name)
    await settled()
    town.free(2)
    await settled()
    assert (town.served, town.queue.waiting) == (["a", "b"], 1)
    town.free(1)
    await settled()
    assert (town.served, town.queue.waiting, town.queue._waiting) == (["a", "b", "c"], 0, {})


async def test_who_was_woken_in_vain_keeps_the_place_and_is_not_forgotten(town: Town) -> None:
    """Two are woken at once for what is only one place: the one that finds it taken waits on, before all others."""
    for name in "abc":
        town.comes(name)
    await settled()
    town.free(2)
    town.places = 1
    await settled()
    assert (town.served, town.queue.waiting) == (["a"], 2)
    town.free(1)
    await settled()
    assert town.served == ["a", "b"]
    town.free(1)
    await settled()
    assert (town.served, town.queue.waiting) == (["a", "b", "c"], 0)


async def test_a_line_that_empties_takes_no_other_line_with_it() -> None:
    """One waits again in a new line in the same moment in which the last one leaves the old line."""
    queue = Queue(length=9, timeout=5.0)

    async def twice() -> bool:
        deadline = queue.deadline()
        assert await queue.wait("a", Client(), deadline)  # type: ignore[arg-type]
        return await queue.wait("a", Client(), deadline, again=True)  # type: ignore[arg-type]

    first = asyncio.ensure_future(twice())
    second = asyncio.ensure_future(queue.wait("a", Client(), queue.deadline()))  # type: ignore[arg-type]
    await settled()
    queue.freed("a")
    queue.freed("a")
    assert await second
    await settled()
    queue.freed("a")
    async with asyncio.timeout(1):
        assert await first
    assert queue._waiting == {}


async def test_more_than_its_length_do_not_wait(town: Town) -> None:
    for number in range(12):
        town.comes(str(number))
    await settled()
    assert (town.refused, town.queue.waiting, town.queue.refused) == (["10", "11"], 10, 2)
    town.free(10)
    await settled()
    assert len(town.served) == 10


async def test_waiting_ends_with_its_time() -> None:
    town = Town(Queue(length=1, timeout=0.02))
    town.comes("a")
    await asyncio.wait(town.tasks)
    assert (town.refused, town.queue.waiting, town.queue._waiting) == (["a"], 0, {})


async def test_a_client_that_leaves_waits_no_longer() -> None:
    queue, client = Queue(length=1, timeout=5.0), Client()
    waiting = asyncio.ensure_future(queue.wait("a", client, queue.deadline()))  # type: ignore[arg-type]
    await settled()
    client.leave()
    assert await waiting
    assert (queue.waiting, queue._waiting) == (0, {})
