"""A router in a process of its own, as people run it."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from .integration.scripted import free_port

COMMAND = [sys.executable, "-m", "warmroute"]


@dataclass(frozen=True)
class Serving:
    """A running `warmroute serve`: its process and its two addresses."""

    process: subprocess.Popen[str]
    data: str
    admin: str


@contextmanager
def serving(*words: str, stderr: int | None = subprocess.PIPE) -> Iterator[Serving]:
    """Start `warmroute serve` with these words on free ports; it is gone when the block ends."""
    port, admin = free_port(), free_port()
    process = subprocess.Popen(
        [*COMMAND, "serve", *words, "--port", str(port), "--admin-port", str(admin)], stderr=stderr, text=True
    )
    try:
        yield Serving(process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}")
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stderr:
            process.stderr.close()


async def until_ready(url: str, within: float = 30.0, up: int = 1) -> None:
    """Wait until the router at this admin address has so many backends up and has read the metrics of each."""
    async with asyncio.timeout(within), httpx.AsyncClient() as http:
        while True:
            try:
                backends = (await http.get(f"{url}/api/state")).json()["backends"]
                ready = [b for b in backends if b["state"] == "up" and b["models"] and b["scrape"]["age_s"] is not None]
                if len(ready) >= up:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)
