"""A running router over backends that can do anything, and what it logs."""

import io
import signal
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from warmroute.app import Router
from warmroute.config import Config

from ..integration import conftest as integration
from ..integration.conftest import stack, until
from ..integration.scripted import Scripted
from ..integration.valkey import Valkey
from .backend import FaultyBackend

__all__ = ["stack"]

FAST: dict[str, Any] = {
    **integration.FAST,
    "limits": {"shutdown": 1.0},
    "health": {**integration.FAST["health"], "timeout": 1.0},
    "upstream": {"connect_timeout": 2.0},
}
"""Quick where a test waits for it, patient where a busy machine may stop for a while."""

LONGEST = 60
"""Seconds after which a test that waits for something has failed."""

LONG = 3.0
"""A limit that holds on an idle machine is taken so many times where others use the machine too."""


class StartRouter(Protocol):
    """Starts a router that is stopped when the test ends.

    `listed` is how the configuration lists the backends, by their URLs if it is left out. `sections` are the others of the
    configuration; what they leave out is as short as tests need it.
    """

    async def __call__(
        self,
        backends: Sequence[Scripted],
        wait: bool = True,
        listed: Sequence[dict[str, object]] | None = None,
        **sections: Any,
    ) -> Router: ...


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """No fault may hang the suite."""

    def late(*_: object) -> None:
        raise TimeoutError(f"the test took longer than {LONGEST} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def leave(router: Router) -> None:
    """Stop both listeners at once and wait for nobody; what stopping is like is tested elsewhere."""
    router.hurry()
    for server in router._servers:
        server.should_exit = True


@pytest.fixture
async def backends(stack: AsyncExitStack) -> list[FaultyBackend]:
    return [await stack.enter_async_context(FaultyBackend()) for _ in range(3)]


@pytest.fixture
def access_log() -> io.StringIO:
    """What the routers of this test write to their access logs, if `log` is switched on."""
    return io.StringIO()


@pytest.fixture
async def start_router(stack: AsyncExitStack, access_log: io.StringIO) -> StartRouter:
    async def start(
        backends: Sequence[Scripted],
        wait: bool = True,
        listed: Sequence[dict[str, object]] | None = None,
        **sections: Any,
    ) -> Router:
        merged = {
            name: {**FAST.get(name, {}), **value} if isinstance(value, dict) else value
            for name, value in sections.items()
        }
        config = Config.model_validate({"backends": listed or [b.url for b in backends], **FAST, **merged})
        router = await stack.enter_async_context(Router(config, access_log))
        stack.callback(leave, router)
        if wait:
            known = router.registry.backends.values()
            await until(lambda: all(b.health.up and b.models for b in known))
        return router

    return start


@pytest.fixture
async def router(backends: list[FaultyBackend], start_router: StartRouter) -> Router:
    return await start_router(backends)


@pytest.fixture
async def valkey(stack: AsyncExitStack, tmp_path: Path) -> Valkey:
    return await stack.enter_async_context(Valkey(tmp_path))
