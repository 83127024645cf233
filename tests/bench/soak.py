"""Whether a router gives back all it takes: a long bounded load of chats with clients that leave and backends that fail.

    python -m tests.bench.soak [--minutes 10] [--rate 60] [--json OUT] [--page FILE]

Before the load, all through it and after it: memory and file descriptors of the router's process, its asyncio tasks, requests
in flight and in the queue. A fifth of the clients leaves, a hundredth of the backends' exchanges fails. Exit code 1 if memory
goes on growing, if something is not given back, or if a client saw what no injected fault explains. Needs taskset and setpriv
(util-linux) and /proc.
"""

import argparse
import asyncio
import json
import os
import random
import re
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import uvloop

from . import report
from .askers import Clients, Habits, Tally
from .processes import BenchError, Cpus, free_port, module, program, require_tools, running, until_answers
from .scenarios import body

_BACKENDS = 3
_LEAVE, _FAULTS = 0.2, 0.01
_CLIENTS = 48
_IN_FLIGHT = 12
"""Requests that a backend may have: so few that some must wait in the queue, and are left there too."""
_QUEUE_TIMEOUT_S = 5.0
"""Less than a client's patience: a request that is forgotten in the queue is refused, which no fault explains."""
_CONFIG = f"""queue: {{in_flight: {_IN_FLIGHT}, timeout: {_QUEUE_TIMEOUT_S:g}}}
affinity: {{idle_expiry: 50s, unproven_expiry: 50s}}
truth: {{max_conversations: 500}}
"""
"""What is remembered of conversations is forgotten within the warm-up: what grows after that is lost."""
_WARM_UP_S = 120.0
_LEAST_JUDGED_S = 300.0
"""Seconds after warm-up that a judgement of the memory's slope needs: in less, one burst of requests outweighs the limit."""
_SLOPE = 1.0
_BACK_S = 30.0
_MIB = 1 << 20
_SECTION = "soak"


@dataclass(frozen=True, slots=True)
class Sample:
    """The router at one moment; `at` in seconds from the beginning of the load, `rss` in bytes."""

    at: float
    rss: int
    descriptors: int
    tasks: int
    in_flight: int
    waiting: int
    sessions: int
    remembered: int


class Check(NamedTuple):
    """One thing that must hold. `held` is None where the run could not tell."""

    what: str
    limit: str
    found: str
    held: bool | None


@dataclass(frozen=True, slots=True)
class Watch:
    """Reads a router's process and its admin listener."""

    pid: int
    admin: int

    def sample(self, at: float) -> Sample:
        """The router now. Raises BenchError if it is gone."""
        try:
            page = self.fetch("/metrics")
            status = Path(f"/proc/{self.pid}/status").read_text()
            descriptors = len(os.listdir(f"/proc/{self.pid}/fd"))
        except OSError as error:
            raise BenchError(f"the router cannot be looked at: {error}") from None
        resident = re.search(r"^VmRSS:\s+(\d+) kB", status, re.M)
        return Sample(
            at=round(at, 1),
            rss=int(resident[1]) * 1024 if resident else 0,
            descriptors=descriptors,
            tasks=int(total(page, "warmroute_tasks")),
            in_flight=int(total(page, "warmroute_requests_in_flight")),
            waiting=int(total(page, "warmroute_requests_waiting")),
            sessions=int(total(page, "warmroute_sessions")),
            remembered=int(total(page, "warmroute_recognition_entries")),
        )

    def fetch(self, path: str) -> str:
        return fetch(self.admin, path)


def fetch(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
        text: str = response.read().decode()
        return text


def total(page: str, name: str) -> float:
    """The sum of a metric over its labels. Raises BenchError if it is not there."""
    values = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", page, re.M)
    if not values:
        raise BenchError(f"the router shows no {name}")
    return sum(map(float, values))


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The steepness of the straight line nearest to these points (least squares)."""
    count = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def growth(samples: Sequence[Sample], seconds: float) -> Check:
    """How fast the memory grows once it is warm; not judged where too little time is left for it."""
    settled = [(s.at / 60, s.rss / _MIB) for s in samples if s.at >= _WARM_UP_S]
    limit = f"< {_SLOPE:g} MiB/min"
    if seconds < _WARM_UP_S + _LEAST_JUDGED_S or len(settled) < 3:
        return Check("memory after warm-up", limit, "not judged: the run was too short", None)
    found = slope(settled)
    return Check("memory after warm-up", limit, f"{found:+.3f} MiB/min", found < _SLOPE)


def given_back(before: Sequence[Sample], after: Sample) -> list[Check]:
    """Whether what the load took was given back. Idle loops come and go, so the most seen before the load is the limit."""
    checks = []
    for name in ("descriptors", "tasks", "in_flight", "waiting"):
        most, found = max(getattr(s, name) for s in before), getattr(after, name)
        checks.append(Check(f"{name.replace('_', ' ')} after the load", f"<= {most}", str(found), found <= most))
    return checks


def is_back(before: Sequence[Sample], now: Sample) -> bool:
    return all(check.held for check in given_back(before, now))


@dataclass(slots=True)
class Run:
    """One soak: what was seen, and what must hold of it."""

    seconds: float
    before: list[Sample]
    samples: list[Sample]
    after: Sample
    tally: Tally
    faults: dict[str, list[str]]
    left_running: int
    internal_errors: float

    def checks(self) -> list[Check]:
        unexplained = self.tally.unexplained(self.faults)
        return [
            growth(self.samples, self.seconds),
            *given_back(self.before, self.after),
            Check("requests that still run at a backend", "0", str(self.left_running), self.left_running == 0),
            Check("faults of the router itself", "0", f"{self.internal_errors:g}", self.internal_errors == 0),
            Check("failures that no fault explains", "0", str(len(unexplained)), not unexplained),
            Check("whole answers", "> 0", f"{self.tally.seen['whole']:,}", self.tally.seen["whole"] > 0),
        ]


async def soak(clients: Clients, watch: Watch, seconds: float) -> tuple[list[Sample], list[Sample], Sample]:
    """Samples before, during and after the load, the last one when all is given back or should be."""
    before = []
    for _ in range(8):
        before.append(await asyncio.to_thread(watch.sample, 0.0))
        await asyncio.sleep(0.3)
    started, samples = time.monotonic(), []
    pause = min(5.0, seconds / 10)
    async with asyncio.TaskGroup() as group:
        load = group.create_task(clients.run(_CLIENTS, seconds))
        while not load.done():
            await asyncio.wait({load}, timeout=pause)
            samples.append(await asyncio.to_thread(watch.sample, time.monotonic() - started))
            say(samples[-1], clients.tally)
    ended = time.monotonic()
    while True:
        after = await asyncio.to_thread(watch.sample, time.monotonic() - started)
        if is_back(before, after) or time.monotonic() - ended > _BACK_S:
            return before, samples, after
        await asyncio.sleep(0.5)


def say(sample: Sample, tally: Tally) -> None:
    print(
        f"{sample.at:6.1f} s  {sample.rss / _MIB:7.1f} MiB  {sample.descriptors:4} descriptors  {sample.tasks:4} tasks"
        f"  {sample.in_flight:3} in flight  {sample.waiting:3} waiting  {sample.sessions:5} sessions"
        f"  {tally.requests:7,} requests",
        file=sys.stderr,
        flush=True,
    )


def measure(args: argparse.Namespace, scratch: Path, cpus: Cpus) -> Run:
    """Start everything, soak, and collect what was seen. Raises BenchError."""
    seconds = args.minutes * 60
    with ExitStack() as stack:
        backends = []
        for number in range(_BACKENDS):
            command = module("faulty", "--faults", _FAULTS, "--seed", args.seed + number)
            log = scratch / f"backend-{number}.log"
            process = stack.enter_context(running(command, cpus.rest, log, pipe=True))
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise BenchError(f"a backend did not start: {log.read_text().strip()[-400:]}")
            backends.append(json.loads(line)["port"])
        port, admin = free_port(), free_port()
        config, log = scratch / "router.yaml", scratch / "router.log"
        config.write_text(_CONFIG)
        words = ["serve", *(f"http://127.0.0.1:{b}" for b in backends), "--config", str(config)]
        words += ["--port", str(port), "--admin-port", str(admin)]
        router = stack.enter_context(running([sys.executable, "-m", "warmroute", *words], cpus.router, log))
        until_answers(port, body(1 << 10, stream=False), router, log)
        clients = Clients(port, Habits(args.rate, _LEAVE), random.Random(args.seed))
        watch = Watch(router.pid, admin)
        before, samples, after = uvloop.run(soak(clients, watch, seconds))
        told = [json.loads(fetch(backend, "/faults")) for backend in backends]
        faults: dict[str, list[str]] = {}
        for one in told:
            for request, kinds in one["faults"].items():
                faults.setdefault(request, []).extend(kinds)
        errors = sum(
            map(float, re.findall(r"^warmroute_internal_errors_total\S* (\S+)$", watch.fetch("/metrics"), re.M))
        )
    return Run(seconds, before, samples, after, clients.tally, faults, sum(t["running"] for t in told), errors)


def tables(run: Run) -> str:
    """The checks, the router over time, and what clients saw, as Markdown."""
    checks = report.table(
        ["", "must be", "found", ""],
        [[c.what, c.limit, c.found, {True: "held", False: "MISSED", None: "-"}[c.held]] for c in run.checks()],
    )
    step = max(1, len(run.samples) // 10)
    shown = [("before", max(run.before, key=lambda s: s.rss))]
    shown += [(f"{s.at:.0f} s", s) for s in run.samples[step - 1 :: step]]
    shown += [("after", run.after)]
    names = ("descriptors", "tasks", "in_flight", "waiting", "sessions", "remembered")
    over_time = report.table(
        ["", "MiB", *(name.replace("_", " ") for name in names)],
        [[when, f"{s.rss / _MIB:.1f}", *(str(getattr(s, name)) for name in names)] for when, s in shown],
    )
    kinds = Counter(kind for met in run.faults.values() for kind in met)
    met = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())) or "none"
    seen = ", ".join(f"{what} {count:,}" for what, count in run.tally.seen.most_common())
    return f"{checks}\n\n{over_time}\n\nClients saw: {seen}. Faults of backends: {met}."


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="length of the load (default 10)")
    parser.add_argument("--rate", type=float, default=60.0, help="requests a second, of all clients (default 60)")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is drawn at random (default 1)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write all samples and checks there")
    parser.add_argument("--page", type=Path, help="also write the tables there, between the page's markers")
    args = parser.parse_args(words)
    for name in ("minutes", "rate"):
        if getattr(args, name) <= 0:
            parser.error(f"--{name} must be more than 0")
    return args


def as_json(run: Run, lines: Sequence[str]) -> Mapping[str, object]:
    return {
        "conditions": lines,
        "checks": [check._asdict() for check in run.checks()],
        "seen": dict(run.tally.seen),
        "unexplained": run.tally.unexplained(run.faults),
        "faults": run.faults,
        "before": [asdict(s) for s in run.before],
        "samples": [asdict(s) for s in run.samples],
        "after": asdict(run.after),
    }


def run(args: argparse.Namespace) -> bool:
    """Soak, print and write what was asked for; returns whether all checks held. Raises BenchError."""
    require_tools()
    cpus, load, when = Cpus.available(), os.getloadavg()[0], datetime.now(UTC)
    with tempfile.TemporaryDirectory(prefix="warmroute-soak-") as scratch:
        found = measure(args, Path(scratch), cpus)
    command = f"python -m tests.bench.soak --minutes {args.minutes:g} --rate {args.rate:g} --seed {args.seed}"
    lines = report.conditions(when, command, cpus, load)
    shown = tables(found) + "\n\n" + "\n".join(lines)
    print(shown)
    for line in found.tally.unexplained(found.faults):
        print(f"not explained: {line}", file=sys.stderr)
    if args.json:
        args.json.write_text(json.dumps(as_json(found, lines), indent=1) + "\n")
    if args.page:
        report.write_section(args.page, _SECTION, shown)
    return all(check.held is not False for check in found.checks())


def main(words: Sequence[str] | None = None) -> None:
    args = parse(words)
    with program("soak"):
        sys.exit(0 if run(args) else 1)


if __name__ == "__main__":
    main()
