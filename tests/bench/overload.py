"""How much of the work is still of use when more is asked than the servers can do.

    python -m tests.bench.overload [--only limits,unlimited,vllm-router] [--loads 0.5,1,1.5,2,3] [--seconds 15] [--slo 2]
                                   [--json OUT] [--page FILE] [--quick]

Stand-in servers with a known capacity (a batch of so many requests, a queue without an end behind it); chats arrive at random
at a multiple of that capacity, whether or not those before them were answered, which is what a crowd does. An answer is of use
if its first content came within --slo seconds, and all of it came. Clients wait --patience seconds for the first content. What
is shown is what was of use in a second, and how long a refusal took. Needs taskset and setpriv (util-linux).
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import quantiles

import uvloop

from . import report
from .askers import Connection, Got
from .backend import MODEL
from .batching import Pace
from .processes import BenchError, Cpus, free_port, module, program, require_tools, running, until_answers
from .routers import REFERENCE, ROUTERS, Start

_SERVERS = 3
_TOKENS = (10, 30)
"""Shortest and longest answer; all lengths between are as likely."""
_SESSIONS = 300
_QUEUE_TIMEOUT_S = 1.0
_AT_ONCE_S = 0.1
_SECTION = "overload"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a router is told: requests that a backend may have, and how many wait how many seconds for a place."""

    in_flight: int
    length: int
    timeout: float
    when_full: str = "wait"

    def yaml(self) -> str:
        queue = f"queue: {{in_flight: {self.in_flight}, length: {self.length}, timeout: {self.timeout:g}}}\n"
        return queue + f"affinity: {{when_full: {self.when_full}}}\n"


DEFAULTS = Limits(1024, 256, 10.0)
ROUTES: dict[str, Limits | None] = {
    "limits": Limits(Pace().max_num_seqs, 2 * Pace().max_num_seqs, _QUEUE_TIMEOUT_S),
    "limits, spill": Limits(Pace().max_num_seqs, 2 * Pace().max_num_seqs, _QUEUE_TIMEOUT_S, "spill"),
    "limits x2": Limits(2 * Pace().max_num_seqs, 2 * Pace().max_num_seqs, _QUEUE_TIMEOUT_S),
    "limits x4": Limits(4 * Pace().max_num_seqs, 2 * Pace().max_num_seqs, _QUEUE_TIMEOUT_S),
    "defaults": DEFAULTS,
    "unlimited": replace(DEFAULTS, in_flight=1_000_000),
    REFERENCE: None,
}
"""The router with limits of several sizes, and the one that others are compared with."""

_SHOWN = ("limits", "limits, spill", "limits x2", "defaults", REFERENCE)


@dataclass(frozen=True, slots=True)
class Extent:
    """One load's seconds, and those at its beginning that do not count; what is of use, and how long clients wait."""

    seconds: float = 15.0
    skipped: float = 3.0
    slo: float = 2.0
    patience: float = 10.0


QUICK = Extent(seconds=1.5, skipped=0.3, patience=3.0)


@dataclass(frozen=True, slots=True)
class Served:
    """One arrival: when it ended, its status (0: none came), seconds until the first content and until the end, and how
    it ended. `at` is in seconds from the beginning of the load."""

    at: float
    status: int
    first: float | None
    whole: float
    end: str

    def of_use(self, slo: float) -> bool:
        return self.status == 200 and self.end == "whole" and self.first is not None and self.first <= slo


class Crowd:
    """Clients that come at random, at a rate that knows nothing of how they are served."""

    def __init__(self, port: int, extent: Extent, rng: random.Random) -> None:
        self._port = port
        self._extent = extent
        self._rng = rng
        self._idle: list[Connection] = []
        self.served: list[Served] = []

    def __repr__(self) -> str:
        return f"<Crowd {len(self.served)} served, {len(self._idle)} idle connections>"

    async def come(self, rate: float) -> None:
        """So many clients a second; returns once the last one is served or has gone."""
        loop, extent = asyncio.get_running_loop(), self._extent
        self._started = due = loop.time()
        async with asyncio.TaskGroup() as group:
            while (due := due + self._rng.expovariate(rate)) < self._started + extent.seconds:
                await asyncio.sleep(due - loop.time())
                group.create_task(self._one())
        for connection in self._idle:
            await connection.close()
        self._idle.clear()

    async def _one(self) -> None:
        loop = asyncio.get_running_loop()
        request = self._request()
        began, first = loop.time(), None
        try:
            connection = await self._connection()
        except OSError:
            end = Got(0, b"", "not reached")
        else:
            end = await self._patiently(connection, connection.ask(request, None))
            first = connection.first_at - began if connection.first_at is not None else None
            if connection.usable:
                self._idle.append(connection)
            else:
                await connection.close()
        now = loop.time()
        self.served.append(Served(now - self._started, end.status, first, now - began, end.end))

    async def _patiently(self, connection: Connection, got: "asyncio.Future[Got]") -> Got:
        await asyncio.wait({got}, timeout=self._extent.patience)
        if not got.done() and connection.first_at is None:
            connection.leave("late")
        return await got

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            await connection.close()
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, "127.0.0.1", self._port)
        return connection

    def _request(self) -> bytes:
        rng = self._rng
        session = rng.randrange(_SESSIONS)
        messages = [{"role": "user", "content": f"{session}: where is the cache warm?"}]
        asked = {"model": MODEL, "messages": messages, "max_tokens": rng.randint(*_TOKENS), "stream": True}
        data = json.dumps(asked).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\ncontent-type: application/json\r\n"
            f"x-session-id: s{session}\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data


def figures(every: Sequence[Served], offered: float, extent: Extent) -> dict[str, float]:
    """What ended in the seconds that count. Times are milliseconds, absent where nothing was seen."""
    served = [s for s in every if extent.skipped <= s.at < extent.seconds]
    seconds, slo = extent.seconds - extent.skipped, extent.slo
    firsts = [s.first for s in served if s.status == 200 and s.first is not None]
    refused = [s.whole for s in served if s.status in (429, 503)]
    useful = sum(s.of_use(slo) for s in served)
    found = {
        "offered/s": offered,
        "of use/s": useful / seconds,
        "answered too late/s": sum(s.status == 200 and s.end == "whole" and not s.of_use(slo) for s in served)
        / seconds,
        "gave up/s": sum(s.end == "late" for s in served) / seconds,
        "refused/s": len(refused) / seconds,
        "failed": float(sum(s.end in ("cut", "not reached") or s.status not in (0, 200, 429, 503) for s in served)),
    }
    # What waited in the queue for as long as it may; all else was refused when it came.
    waited = [t for t in refused if t >= _QUEUE_TIMEOUT_S * 0.9]
    at_once = [t for t in refused if t < _QUEUE_TIMEOUT_S * 0.9]
    found["refused after waiting/s"] = len(waited) / seconds
    for name, times in (("first content", firsts), ("refused at once", at_once), ("refused after waiting", waited)):
        if len(times) > 1:
            percent = quantiles(times, n=100, method="inclusive")
            found |= {f"{name} p50 ms": percent[49] * 1e3, f"{name} p99 ms": percent[98] * 1e3}
    return found


Found = dict[str, dict[float, dict[str, float]]]


@dataclass(frozen=True, slots=True)
class Bench:
    """Puts loads on a router before servers of a known capacity, in answers a second of all together."""

    extent: Extent
    loads: Sequence[float]
    cpus: Cpus
    scratch: Path
    capacity: float
    seed: int

    def measure(self, name: str, limits: Limits | None) -> dict[float, dict[str, float]]:
        """All loads at one router, freshly started with its servers for each. Raises BenchError."""
        found = {}
        for load in self.loads:
            with running(module("batching", "--listeners", _SERVERS), self.cpus.rest, self.log, pipe=True) as servers:
                assert servers.stdout is not None
                line = servers.stdout.readline()
                if not line:
                    raise BenchError(f"the servers did not start: {self.log.read_text().strip()[-400:]}")
                start = self._start(json.loads(line)["ports"], limits)
                with running(start.command, self.cpus.router, self.log) as router:
                    until_answers(start.port, _TRIAL, router, self.log)
                    crowd = Crowd(start.port, self.extent, random.Random(self.seed))
                    uvloop.run(crowd.come(load * self.capacity))
            found[load] = figures(crowd.served, load * self.capacity, self.extent)
            say(
                f"{name} at {load:g}x: {found[load]['of use/s']:.1f} of use/s, {found[load]['refused/s']:.1f} refused/s"
            )
        return found

    @property
    def log(self) -> Path:
        return self.scratch / "log"

    def _start(self, servers: Sequence[int], limits: Limits | None) -> Start:
        if limits is None:
            command = ROUTERS[REFERENCE].find()
            if command is None:
                raise BenchError(f"{REFERENCE} is not installed ({ROUTERS[REFERENCE].package})")
            return ROUTERS[REFERENCE].start(command, servers, self.scratch)
        port, config = free_port(), self.scratch / "router.yaml"
        config.write_text(limits.yaml())
        words = ["serve", *(f"http://127.0.0.1:{server}" for server in servers), "--config", str(config)]
        words += ["--port", str(port), "--admin-port", str(free_port())]
        return Start([sys.executable, "-m", "warmroute", *words], port)


_TRIAL = json.dumps({"model": MODEL, "messages": [], "max_tokens": 1}).encode()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def missed(found: Found) -> list[str]:
    """A line for each promise that the router with limits did not keep; those of a load that was not run are not looked at."""
    lines = []
    for name in [n for n in found if n.startswith("limits") and " x" not in n]:
        loads = found[name]
        peak = max(row["of use/s"] for row in loads.values())
        if 2.0 in loads and loads[2.0]["of use/s"] < 0.9 * peak:
            lines.append(f"{name}: at 2x {loads[2.0]['of use/s']:.1f} of use/s, less than 90 % of {peak:.1f}")
        slowest = max((row.get("refused at once p99 ms", 0.0) for row in loads.values()), default=0.0)
        if slowest >= _AT_ONCE_S * 1e3:
            lines.append(f"{name}: a refusal took {slowest:.0f} ms")
    return lines


def tables(found: Found) -> str:
    """Of use by load for each router, then what became of the rest, as Markdown."""
    loads = list(dict.fromkeys(load for rows in found.values() for load in rows))
    heads = ["of use/s", *(f"{load:g}x" for load in loads), "2x / peak"]
    rows = []
    for name, by_load in found.items():
        peak = max(row["of use/s"] for row in by_load.values())
        share = f"{by_load[2.0]['of use/s'] / peak:.0%}" if 2.0 in by_load and peak else "-"
        rows.append([name, *(f"{by_load[load]['of use/s']:.1f}" for load in loads), share])
    names = (
        "first content p50 ms", "first content p99 ms", "answered too late/s", "gave up/s", "refused/s",
        "refused at once p50 ms", "refused at once p99 ms", "refused after waiting/s", "failed",
    )  # fmt: skip
    detail = [
        [f"{name}, {load:g}x", *(report.number(by_load[load][n]) if n in by_load[load] else "-" for n in names)]
        for name, by_load in found.items()
        for load in loads
        if load >= 1
    ]
    return report.table(heads, rows) + "\n\n" + report.table(["", *names], detail)


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.overload", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help=f"of these, with semicolons: {'; '.join(ROUTES)} (default: {'; '.join(_SHOWN)})")
    parser.add_argument("--loads", default="0.5,1,1.5,2,3", help="multiples of the capacity, with commas")
    default = Extent()
    parser.add_argument("--seconds", type=float, help=f"length of each load (default {default.seconds:g})")
    parser.add_argument("--slo", type=float, help=f"seconds until first content (default {default.slo:g})")
    parser.add_argument(
        "--patience", type=float, help=f"seconds until a client gives up (default {default.patience:g})"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write all figures there")
    parser.add_argument("--page", type=Path, help="also write the tables there, between the page's markers")
    parser.add_argument("--quick", action="store_true", help="two tiny loads, to see that it works")
    args = parser.parse_args(words)
    try:
        args.loads = [2.0] if args.quick else [float(load) for load in args.loads.split(",")]
    except ValueError:
        parser.error("--loads takes numbers with commas between them, such as 0.5,1,2")
    if any(load <= 0 for load in args.loads):
        parser.error("--loads must be more than 0")
    for name in ("seconds", "slo", "patience"):
        if (value := getattr(args, name)) is not None and value <= 0:
            parser.error(f"--{name} must be more than 0")
    return args


def wanted(args: argparse.Namespace) -> tuple[dict[str, Limits | None], list[str]]:
    """The routers to measure, and a line for each one that is not here. Raises BenchError for an unknown name."""
    names = [name.strip() for name in args.only.split(";")] if args.only else list(_SHOWN)
    unknown = [name for name in names if name not in ROUTES]
    if unknown:
        raise BenchError(f"{'; '.join(unknown)} is not known; known are {'; '.join(ROUTES)}")
    gone = [n for n in names if ROUTES[n] is None and ROUTERS[n].find() is None]
    missing = [f"{name} is left out: it is not installed ({ROUTERS[name].package})." for name in gone]
    return {name: ROUTES[name] for name in names if name not in gone}, missing


def run(args: argparse.Namespace) -> bool:
    """Measure, print and write what was asked for; returns whether all promises were kept. Raises BenchError."""
    require_tools()
    cpus, load, when = Cpus.available(), os.getloadavg()[0], datetime.now(UTC)
    routes, missing = wanted(args)
    given = {n: v for n in ("seconds", "slo", "patience") if (v := getattr(args, n)) is not None}
    extent = replace(QUICK if args.quick else Extent(), **given)
    if extent.skipped >= extent.seconds:
        raise BenchError(f"--seconds must be more than {extent.skipped:g}, which do not count")
    capacity = _SERVERS * Pace().capacity(sum(_TOKENS) / 2)
    with tempfile.TemporaryDirectory(prefix="warmroute-overload-") as scratch:
        bench = Bench(extent, args.loads, cpus, Path(scratch), capacity, args.seed)
        found = {name: bench.measure(name, limits) for name, limits in routes.items()}
    only = f' --only "{args.only}"' if args.only else ""
    command = (
        f"python -m tests.bench.overload --seconds {extent.seconds:g} --slo {extent.slo:g}{only} --seed {args.seed}"
    )
    lines = report.conditions(when, command, cpus, load)
    lines.append(f"Capacity {capacity:.1f} answers/s: {_SERVERS} servers with batches of {Pace().max_num_seqs}.")
    misses = [] if args.quick else missed(found)
    shown = tables(found) + "\n\n" + "\n".join([*lines, *missing])
    print(shown)
    for line in misses:
        say(f"missed: {line}")
    if args.json:
        settings: Mapping[str, object] = {n: asdict(limits) for n, limits in routes.items() if limits is not None}
        told = {"conditions": lines, "extent": asdict(extent), "limits": settings, "missed": misses}
        args.json.write_text(
            json.dumps({**told, "missing": missing, "capacity": capacity, "found": found}, indent=1) + "\n"
        )
    if args.page:
        report.write_section(args.page, _SECTION, shown)
    return not misses


def main(words: Sequence[str] | None = None) -> None:
    args = parse(words)
    with program("overload"):
        sys.exit(0 if run(args) else 1)


if __name__ == "__main__":
    main()
