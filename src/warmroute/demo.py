"""`warmroute demo`: simulated servers, the router and a chat workload in one process, and what round robin would do."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, TextIO

from rich.console import Console
from rich.table import Table

from warmroute.app import Router
from warmroute.config import Config
from warmroute.sim.backend import SimBackend, SimOptions
from warmroute.sim.prefix_cache import CacheCounters
from warmroute.sim.shadow import RoundRobinShadow
from warmroute.sim.tokens import IM_END_ID, Tokenizer
from warmroute.sim.workload import Habits, Turn, Workload

# Cache for each user: what a live conversation takes, with a little to spare. A server that sees only its share of the
# users can keep their conversations; one that sees all users, as round robin has it, cannot.
_BLOCKS_PER_USER: Final = 70
_LEAST_BLOCKS: Final = 300

DEMO_HABITS: Final = Habits(think_s=(0.2, 1.6), turns=(6, 16), answer_tokens=(16, 60), long=0.5)


class ShadowListener:
    """Tells the round robin shadow of each request of a workload, as the token ids that the servers see."""

    def __init__(self, shadow: RoundRobinShadow) -> None:
        self._shadow = shadow
        self._tokenizer = Tokenizer()

    def started(self, turn: Turn) -> None:
        """See `Listener.started`."""
        self._shadow.started(turn, self._tokenizer.encode_chat(turn.messages))

    def ended(self, turn: Turn) -> None:
        """See `Listener.ended`."""
        ids = self._tokenizer.encode(turn.answer)
        self._shadow.ended(turn, [*ids, IM_END_ID] if turn.stopped else ids)

    def __repr__(self) -> str:
        return f"ShadowListener({self._shadow!r})"


async def run(
    duration: float | None,
    *,
    users: int = 24,
    backends: int = 3,
    out: TextIO | None = None,
    seed: int = 1,
    report_every: float = 5.0,
) -> int:
    """Run for `duration` seconds, or until cancelled with None; the exit code: 1 when requests failed, else 0.

    Writes the addresses, a line every `report_every` seconds, and a table at the end, also when it is cancelled.
    """
    console = Console(file=out or sys.stdout, highlight=False)
    options = demo_options(users, backends)
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(SimBackend(options)) for _ in range(backends)]
        router = await stack.enter_async_context(Router(_config(servers)))
        console.print(f"dashboard: {router.admin_url}/   model API: {router.data_url}", soft_wrap=True)
        console.print(f"{users} simulated users on {backends} simulated vLLM servers; Ctrl-C ends it", soft_wrap=True)
        shadow = RoundRobinShadow(backends, options.num_blocks, options.block_size)
        workload = Workload(
            router.data_url,
            users=users,
            model=options.model,
            seed=seed,
            habits=DEMO_HABITS,
            listener=ShadowListener(shadow),
        )
        demo = _Demo(console, router, servers, shadow, workload)
        try:
            await demo.talk(duration, report_every)
        finally:
            demo.print_table(f"{users} users, {backends} servers")
    return 1 if workload.stats().errors else 0


def demo_options(users: int, backends: int) -> SimOptions:
    """The servers of a demo with so many users: caches that are tight, as on busy servers."""
    return SimOptions(
        model="demo",
        num_blocks=max(_LEAST_BLOCKS, _BLOCKS_PER_USER * users // backends),
        max_model_len=4096,
        prefill_tokens_per_s=5000.0,
        tokens_per_s=40.0,
        stream_interval=4,
    )


def _config(servers: Sequence[SimBackend]) -> Config:
    return Config.model_validate(
        {
            "backends": [server.url for server in servers],
            "listen": {"port": 0, "admin_port": 0},
            "log": {"format": "off"},
        }
    )


@dataclass(frozen=True, slots=True)
class _Demo:
    """The running parts, and what is printed of them."""

    console: Console
    router: Router
    servers: Sequence[SimBackend]
    shadow: RoundRobinShadow
    workload: Workload

    async def talk(self, duration: float | None, report_every: float) -> None:
        async with asyncio.TaskGroup() as group:
            reports = group.create_task(self._report(report_every))
            await self.workload.run(duration)
            reports.cancel()

    async def _report(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            fleet: Any = self.router.state()["fleet"]
            rates = f"hit rate {self._affinity().hit_rate:.2f} (round robin {self.shadow.counters.hit_rate:.2f})"
            counts = [f"{name} {fleet[name]}" for name in ("requests", "sessions", "moves")]
            self._say("   ".join([rates, *counts, *self._errors()]))

    def print_table(self, title: str) -> None:
        stats = self.workload.stats()
        table = Table(title=f"{stats.requests} requests, {title}", title_justify="left")
        table.add_column("")
        for heading in ("hit rate", "prompt tokens computed", "first token (median)"):
            table.add_column(heading, justify="right")
        wait = "-" if stats.ttft_p50 is None else f"{stats.ttft_p50 * 1000:.0f} ms"
        for name, found, shown in (("warmroute", self._affinity(), wait), ("round robin", self.shadow.counters, "-")):
            missed = found.queries - found.hits
            table.add_row(name, f"{found.hit_rate:.2f}", f"{missed:,} of {found.queries:,}", shown)
        self.console.print(table)
        self._say("Round robin: the same requests at the same times, dealt in turn to caches of the same size.")
        for line in self._errors():
            self._say(line)

    def _affinity(self) -> CacheCounters:
        """What the caches of the servers under the router did, by their own counters."""
        found = [engine.cache.counters for server in self.servers for engine in server.engines]
        return CacheCounters(queries=sum(c.queries for c in found), hits=sum(c.hits for c in found))

    def _errors(self) -> list[str]:
        stats = self.workload.stats()
        return [f"failed {stats.errors}, the last one: {stats.last_error}"] if stats.errors else []

    def _say(self, line: str) -> None:
        self.console.print(line, soft_wrap=True, markup=False)
