"""Server-sent events for the dashboard: what comes when, that pages share it, and that it ends."""

import asyncio
import json
from collections.abc import AsyncGenerator

import pytest

from warmroute.web.live import MOST, Live


class Asked:
    """A router whose figures count how often they were made; its time goes on while somebody waits for it."""

    def __init__(self) -> None:
        self.states = self.histories = 0
        self.version = 7
        self.stopping = False
        self.now = 0.0

    def state(self) -> dict[str, object]:
        self.states += 1
        return {"n": self.states, "text": "a\nb"}

    def history(self) -> dict[str, object]:
        self.histories += 1
        return {"n": self.histories}

    def events(self) -> dict[str, object]:
        return {"events": [self.version]}

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)

    def live(self) -> Live:
        return Live(
            self.state,
            self.history,
            self.events,
            lambda: self.version,
            lambda: self.stopping,
            lambda: self.now,
            self.sleep,
        )


@pytest.fixture
def asked() -> Asked:
    return Asked()


async def take(stream: AsyncGenerator[bytes, None], count: int) -> list[str]:
    """The names of the next events; each is one line of JSON."""
    names = []
    for _ in range(count):
        name, data, *rest = (await anext(stream)).decode().split("\n")
        assert rest == ["", ""]
        json.loads(data.removeprefix("data: "))
        names.append(name.removeprefix("event: "))
    return names


async def test_all_comes_at_first_and_then_what_is_due(asked: Asked) -> None:
    stream = asked.live().stream()
    assert (await anext(stream)) == b"retry: 2000\n\n"
    assert await take(stream, 5) == ["state", "events", "history", "state", "state"]
    asked.version += 1
    assert await take(stream, 3) == ["events", "state", "state"]
    assert await take(stream, 7) == ["state"] * 5 + ["state", "history"]
    assert asked.now == pytest.approx(10.0, abs=1.0)
    await stream.aclose()


async def test_nothing_is_made_while_nobody_looks_and_once_for_all_who_do(asked: Asked) -> None:
    live = asked.live()
    assert (asked.states, live.pages) == (0, 0)
    streams = [live.stream() for _ in range(5)]
    for stream in streams:
        await anext(stream)
        await take(stream, 3)
    assert (asked.states, asked.histories, live.pages, live.full) == (1, 1, 5, False)
    for stream in streams:
        await stream.aclose()
    assert live.pages == 0


async def test_it_ends_when_the_router_stops(asked: Asked) -> None:
    live = asked.live()
    stream = live.stream()
    await anext(stream)
    await take(stream, 3)
    asked.stopping = True
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert asked.now < 0.2
    assert live.pages == 0


async def test_there_is_a_limit(asked: Asked) -> None:
    live = asked.live()
    streams = [live.stream() for _ in range(MOST)]
    for stream in streams:
        await anext(stream)
    assert live.full
    await streams[0].aclose()
    assert not live.full
    for stream in streams:
        await stream.aclose()
