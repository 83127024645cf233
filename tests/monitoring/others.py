"""Two routers that have what the demo has not: tenants, discovery, faults, KV events, sleep, a drain; several processes."""

import asyncio
import json
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from warmroute.sim.backend import SimBackend, SimOptions

from ..integration.kv_publisher import Publisher, stored, tells_of
from ..integration.scripted import Scripted, Talk
from ..serving import Serving, serving, until_ready

ASLEEP = """# TYPE vllm:engine_sleep_state gauge
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 0
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="weights_offloaded"} 1
"""
SIMULATED = SimOptions(model="demo", num_blocks=90, host_blocks=2000, prefill_tokens_per_s=50_000, tokens_per_s=400)
"""A cache too small for two conversations, so that blocks come back from host memory."""
BUSY, BOUNDED = "team-busy", "team-bounded"
CONFIG = {
    "listen": {"keys": [{"key": BUSY, "tenant": BUSY}, {"key": BOUNDED, "tenant": BOUNDED}]},
    "tenants": {BOUNDED: {"rate": 0.5}},
    "limits": {"idle_timeout": "500ms"},
    "kv_events": {"enabled": True},
    "metrics": {"scrape_interval": "1s"},
    "log": {"format": "off"},
}
PROCESSES = 2
FAULTY = "faulty"
"""The model of servers that fail."""
_AGAIN = 0.25
"""Seconds between two turns of everybody."""


class Faults:
    """Two exchanges in a row fail in two ways: a broken connection, which is tried again elsewhere, and a status of 500."""

    def __init__(self) -> None:
        self._resets = True

    async def __call__(self, talk: Talk) -> None:
        self._resets = not self._resets
        if self._resets:
            talk.reset()
        else:
            talk.json({"error": {"message": "out of memory"}}, "500 Internal Server Error")


@dataclass(frozen=True)
class Others:
    """The admin addresses of both, one with all kinds of servers, one with several processes; and what servers are called."""

    kinds: str
    processes: str
    asleep: str
    drained: str
    publishes: str


@contextmanager
def others(folder: Path) -> Iterator[Others]:
    """Both run, and are talked with, until the block ends: in a thread, since tests wait without asyncio."""
    ready: Future[Others] = Future()
    stop = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_run(folder, ready, stop)))
    thread.start()
    try:
        yield ready.result(60)
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()


async def _run(folder: Path, ready: Future[Others], stop: threading.Event) -> None:
    try:
        async with AsyncExitStack() as stack:
            await _serve(stack, folder, ready, stop)
    except BaseException as error:
        if ready.done():
            raise
        ready.set_exception(error)


async def _serve(stack: AsyncExitStack, folder: Path, ready: Future[Others], stop: threading.Event) -> None:
    used, drained = [await stack.enter_async_context(SimBackend(SIMULATED)) for _ in range(2)]
    publisher = await stack.enter_async_context(Publisher())
    publishes = await stack.enter_async_context(tells_of(publisher))
    asleep = await stack.enter_async_context(Scripted(metrics=ASLEEP))
    faulty = [await stack.enter_async_context(Scripted(Faults(), [FAULTY])) for _ in range(2)]
    listed, config = folder / "backends.json", folder / "others.yaml"
    listed.write_text(json.dumps([used.url, drained.url, *(server.url for server in (publishes, asleep, *faulty))]))
    config.write_text(yaml.safe_dump(CONFIG | {"discovery": {"file": {"path": str(listed)}}}))
    quiet = subprocess.DEVNULL
    kinds = stack.enter_context(serving("--config", str(config), stderr=quiet))
    several = stack.enter_context(serving(used.url, drained.url, "--workers", str(PROCESSES), stderr=quiet))
    await until_ready(kinds.admin, up=5)
    await until_ready(several.admin, up=2)
    http = await stack.enter_async_context(httpx.AsyncClient(timeout=30, trust_env=False))
    name = drained.url.removeprefix("http://")
    (await http.post(f"{kinds.admin}/api/backends/{name}/drain", json={"deadline": 600})).raise_for_status()
    ready.set_result(Others(kinds.admin, several.admin, asleep.name, name, publishes.name))
    async with asyncio.TaskGroup() as group:
        talking = group.create_task(_talk(http, kinds, several, publisher))
        while not stop.is_set():
            await asyncio.sleep(0.1)
        talking.cancel()


async def _talk(http: httpx.AsyncClient, kinds: Serving, several: Serving, publisher: Publisher) -> None:
    """Turns of conversations at both for ever, more of one tenant than it may ask, and events of a cache that fills."""
    chats: list[list[dict[str, str]]] = [[], []]
    turn = 0
    while True:
        turn += 1
        said = chats[turn % 2]
        if len(said) == 10:
            said.clear()
        said.append({"role": "user", "content": f"Turn {turn}: " + "tell me more of what you said before. " * 20})
        body = {"model": "demo", "messages": said, "max_tokens": 8}
        answer = await http.post(f"{kinds.data}/v1/chat/completions", json=body, headers={"x-api-key": BUSY})
        said.append(answer.raise_for_status().json()["choices"][0]["message"])
        await http.post(f"{kinds.data}/v1/chat/completions", json=body, headers={"x-api-key": BOUNDED})
        async with httpx.AsyncClient(trust_env=False) as other:  # a connection of its own: whichever process gets it
            (await other.post(f"{several.data}/v1/chat/completions", json=body)).raise_for_status()
        await http.post(f"{kinds.data}/v1/chat/completions", json=body | {"model": FAULTY}, headers={"x-api-key": BUSY})
        await publisher.publish(stored(None, turn, parent=turn - 1 or None))
        await asyncio.sleep(
            _AGAIN if turn % 8 else 1.0
        )  # now and then longer than `kinds` waits for a client's next request
