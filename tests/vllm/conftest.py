"""Fixtures that give a test real vLLM servers."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.vllm.servers import VllmServer, start_servers, stop_servers


class StartServers(Protocol):
    """`vllm_servers(count, *flags)`: that many servers, started side by side and ready."""

    def __call__(self, count: int, *flags: str) -> list[VllmServer]: ...


@pytest.fixture(scope="session")
def vllm_dir() -> Path:
    """The folder that install.sh filled, from the variable VLLM_DIR."""
    value = os.environ.get("VLLM_DIR")
    if not value:
        pytest.fail("set VLLM_DIR to a folder filled by `tests/vllm/install.sh DIR`, or run `make test-vllm`", False)
    folder = Path(value).resolve()
    for needed in ("venv/bin/vllm", "model/model.safetensors"):
        if not (folder / needed).exists():
            pytest.fail(f"VLLM_DIR={value} has no {needed}; run `tests/vllm/install.sh {value}`", False)
    return folder


@pytest.fixture(scope="module")
def vllm_servers(vllm_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServers]:
    """Starts servers for the tests of one module and stops them after its last test.

    Three run side by side on two cores. A test that needs other flags than its neighbours stops its own servers.
    """
    started: list[VllmServer] = []
    logs = tmp_path_factory.mktemp("vllm")
    numbers = itertools.count(1)

    def start(count: int, *flags: str) -> list[VllmServer]:
        servers = [VllmServer(vllm_dir, logs / f"server-{next(numbers)}.log", flags) for _ in range(count)]
        started.extend(servers)
        start_servers(servers)
        return servers

    yield start
    stop_servers(started)
