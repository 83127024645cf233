"""A running router over scripted backends, with intervals short enough for tests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from warmroute.app import Router
from warmroute.config import Config

from .scripted import Scripted

FAST: dict[str, Any] = {
    "listen": {"port": 0, "admin_port": 0},
    "health": {"interval": 0.2, "unsettled_interval": 0.1, "timeout": 0.5},
    "metrics": {"scrape_interval": 0.2, "scrape_timeout": 0.5},
    "upstream": {"connect_timeout": 0.5},
    "log": {"format": "off"},
}

StartRouter = Callable[..., Awaitable[Router]]


async def until(true: Callable[[], bool], within: float = 15.0) -> None:
    """Wait for a state; fails loudly when it does not come."""
    async with asyncio.timeout(within):
        while not true():
            await asyncio.sleep(0.01)


def up(router: Router) -> int:
    return sum(bool(b.health.up) for b in router.registry.backends.values())


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def backends(stack: AsyncExitStack) -> list[Scripted]:
    return [await stack.enter_async_context(Scripted()) for _ in range(3)]


@pytest.fixture
async def start_router(stack: AsyncExitStack) -> StartRouter:
    async def start(backends: list[Scripted], wait: bool = True, **sections: Any) -> Router:
        config = Config.model_validate({**FAST, **sections, "backends": [b.url for b in backends]})
        router = await stack.enter_async_context(Router(config))
        if wait:
            await until(
                lambda: up(router) == len(backends) and all(b.models for b in router.registry.backends.values())
            )
        return router

    return start


@pytest.fixture
async def router(backends: list[Scripted], start_router: StartRouter) -> Router:
    return await start_router(backends)
