"""slowhttptest with 500 connections: slow heads, slow bodies and slow readers, while somebody else is served all along."""

import asyncio
import os
import re
import shutil
import time
from dataclasses import dataclass, field

import pytest

from warmroute.app import Router

from .conftest import StartRouter, until
from .scripted import CHAT_PATH, RawClient, Scripted, Talk, answer

PROGRAM = shutil.which("slowhttptest")
CONNECTIONS = 500
LIMIT = 2.0
"""Seconds that the router gives: a head to come, a body to go on, a reader to read."""
LONGEST = 20
HEALTHY_WITHIN = 10.0
"""Seconds in which an honest request is answered, on a machine that does much else."""

STORED = "/v1/responses/resp_of_somebody"
PIECES = 48
"""Of 64 KiB each."""

ATTACKS = {
    "slow heads": ("-H", "-i", "1", "-x", "24"),
    "slow bodies": ("-B", "-i", "1", "-s", "8192", "-x", "10", "-f", "application/json"),
    "slow readers": ("-X", "-w", "512", "-y", "1024", "-n", "5", "-z", "32"),
}

pytestmark = pytest.mark.skipif(PROGRAM is None and not os.environ.get("CI"), reason="slowhttptest is not installed")


@dataclass
class Honest:
    """Somebody who asks all the time, on new connections and on a kept one; `took` are the seconds that each answer took."""

    router: Router
    took: list[float] = field(default_factory=list)
    over: bool = False

    async def run(self) -> None:
        async with await RawClient.connect(self.router.data_url) as kept:
            while not self.over:
                await self._ask(kept)
                async with await RawClient.connect(self.router.data_url) as fresh:
                    await self._ask(fresh)
                await asyncio.sleep(0.05)

    async def _ask(self, client: RawClient) -> None:
        began = time.monotonic()
        reply = await asyncio.wait_for(client.chat("s"), HEALTHY_WITHIN)
        assert reply.status == 200
        self.took.append(time.monotonic() - began)


async def attack(url: str, flags: tuple[str, ...]) -> str:
    """Run it to its end; what it says."""
    assert PROGRAM is not None, "slowhttptest is not installed, and in CI this is not skipped"
    bounds = ("-c", str(CONNECTIONS), "-r", "100", "-l", str(LONGEST), "-p", "5", "-v", "1", "-u", url)
    program = await asyncio.create_subprocess_exec(
        PROGRAM, *flags, *bounds, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        told, _ = await asyncio.wait_for(program.communicate(), LONGEST + 15)
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", told.decode("utf-8", "replace"))


async def long_for_slow_readers(talk: Talk) -> None:
    """slowhttptest reads by GET alone: a stored response, of more than the buffers of sockets hold."""
    if talk.seen.path != STORED:
        await answer(talk)
        return
    talk.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % (PIECES << 16))
    for _ in range(PIECES):
        talk.send(bytes(1 << 16))
        await talk.drain()


@pytest.mark.parametrize("kind", list(ATTACKS))
async def test_others_are_served_throughout(backends: list[Scripted], start_router: StartRouter, kind: str) -> None:
    for backend in backends:
        backend.script = long_for_slow_readers
    times = {"head_timeout": LIMIT, "body_timeout": LIMIT, "send_timeout": LIMIT, "idle_timeout": LONGEST}
    # The backends share this process: patient with them, strict with clients.
    patient = {"upstream": {"connect_timeout": 10}, "health": {"interval": 1, "timeout": 10}}
    router = await start_router(backends, limits=times, **patient)
    honest = Honest(router)
    asking = asyncio.ensure_future(honest.run())
    try:
        await until(lambda: len(honest.took) > 4)
        before = len(honest.took)
        told = await attack(router.data_url + (STORED if kind == "slow readers" else CHAT_PATH), ATTACKS[kind])
        during = honest.took[before:]
    finally:
        honest.over = True
        await asking
    states = re.findall(r"service available: +(YES|NO)", told)
    assert states, told
    assert set(states) == {"YES"}, told
    assert len(during) > 20
    assert max(during) < HEALTHY_WITHIN
    what = {"slow heads": "head", "slow bodies": "body", "slow readers": "send"}[kind]
    assert router.counters.client_timeouts[what] > CONNECTIONS / 2, router.counters.client_timeouts
    await until(lambda: len(router._door.guests) == 0, within=LONGEST + 10)
    assert router.counters.internal_errors == {}
    assert sum(len(backend.posts) for backend in backends) == len(honest.took)
