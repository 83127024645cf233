"""Fixtures that give a test real agents, and a router process in front of three backends."""

import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from tests.clients.agents import AGENTS, Agent, Installed
from tests.clients.answers import SHELL, answering
from tests.clients.routed import Log
from tests.integration.scripted import Scripted
from tests.serving import serving, until_ready
from tests.vllm.conftest import vllm_dir, vllm_servers

__all__ = ["vllm_dir", "vllm_servers"]

METRICS = Path(__file__).parents[1] / "golden" / "metrics-vllm-0.32.0.txt"

Install = Callable[[Agent, str, str], Installed]


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the agents' programs, below the one that the variable AGENTS_DIR names."""
    value = os.environ.get("AGENTS_DIR")
    if not value:
        pytest.fail(
            "set AGENTS_DIR to a folder filled by `tests/clients/install.sh DIR`, or run `make test-clients`", False
        )
    folder = Path(value).resolve() / "node_modules" / ".bin"
    for agent in AGENTS:
        if not (folder / agent.program).exists():
            pytest.fail(f"AGENTS_DIR={value} has no {agent.program}; run `tests/clients/install.sh {value}`", False)
    return folder


@pytest.fixture
def install(programs: Path, tmp_path: Path) -> Iterator[Install]:
    """`install(agent, url, model)`: the agent in a home of its own, new with every call, and set up for that server.

    The homes go with the test: one of opencode has 17 MB.
    """
    homes: list[Path] = []

    def installed(agent: Agent, url: str, model: str) -> Installed:
        homes.append(tmp_path / f"{agent.name}-{len(homes) + 1}")
        return Installed(agent, programs, homes[-1], url, model)

    yield installed
    for home in homes:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """What a test has started; all of it ends with the test."""
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def http(stack: AsyncExitStack) -> httpx.AsyncClient:
    return await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=100))


@pytest.fixture
async def backends(stack: AsyncExitStack) -> list[Scripted]:
    """Three servers of the model `m`, which say the same sentence to everybody in each protocol."""
    metrics = METRICS.read_text()
    return [await stack.enter_async_context(Scripted(script=answering(SHELL), metrics=metrics)) for _ in range(3)]


@pytest.fixture
async def log(stack: AsyncExitStack, backends: list[Scripted]) -> Log:
    """What a running router in front of the three backends tells of its requests."""
    router = stack.enter_context(serving(*(backend.url for backend in backends), "--log-format", "off"))
    await until_ready(router.admin, within=60.0, up=len(backends))
    return Log(router)
