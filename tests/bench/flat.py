"""Whether a request costs the same whatever the router knows and has: many sessions, many backends, many requests behind it.

    python -m tests.bench.flat [--sessions 1000000] [--backends 64] [--minutes 60] [--rounds 5] [--seconds 4] [--json OUT]
        [--page FILE]

Routers run side by side and are asked in turn, each round all of them, so that what the machine does to one it does to all:
one with three backends and few sessions, one that has first served a request of each of so many sessions, one with so many
backends and, with `--minutes`, one that has first been under load for so long. The same conversations go on at each of them,
and new ones come; the ratio is that of a request's CPU time to the first router's. What a router takes while it has nothing
to do (checks, metrics of its backends) is told apart and not counted there. Each has a CPU to itself while it is asked, on
which the others only look after their backends.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from . import report
from .loadgen import OWN
from .processes import (
    BenchError,
    Cpus,
    cpu_seconds,
    module,
    output_of,
    program,
    require_tools,
    running,
    until_answers,
)
from .routers import ROUTERS
from .scenarios import body

_SECTION = "flat"
_GRACE_S = 60.0
_CONNECTIONS = 64
_FEW_BACKENDS = 3
_FEW_SESSIONS = 1000
_SLOWEST_PER_S = 500
"""Requests/s that the filling is given time for."""
_BURST_S, _PAUSE_S = 0.5, 4.0
"""Load that only ages a router comes in bursts, of old conversations and of new ones, with pauses between two pairs."""
FEW, KNOWN, WIDE, OLD = "few of both", "many sessions", "many backends", "long under load"


@dataclass(frozen=True, slots=True)
class Subject:
    """A router that runs, and where."""

    name: str
    port: int
    process: int


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.flat", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=1_000_000, help="sessions that one router has served")
    parser.add_argument("--backends", type=int, default=64, help="backends that one router has")
    parser.add_argument("--minutes", type=float, default=0.0, help="that one more router has been under load before")
    parser.add_argument("--rounds", type=int, default=5, help="passes over all routers")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each measurement")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write all figures there")
    parser.add_argument("--page", type=Path, help="also write the table there, between the page's markers")
    parser.add_argument("--quick", action="store_true", help="one tiny round, to see that it works")
    args = parser.parse_args(words)
    if args.quick:
        args.sessions, args.backends, args.minutes, args.rounds, args.seconds = 3000, 8, 0.05, 1, 0.4
    return args


class Load:
    """What is sent, from one CPU."""

    def __init__(self, cpu: int, scratch: Path) -> None:
        self._cpu = cpu
        self._chat, self._short = scratch / "chat.json", scratch / "short.json"
        for file, size in ((self._chat, 8 << 10), (self._short, 300)):
            file.write_bytes(body(size, stream=False).replace(b"You are", OWN + b" You are", 1))
        self._new = 0

    def fill(self, subject: Subject, sessions: int) -> None:
        """One short request of each of so many sessions. Raises BenchError if one fails."""
        seconds = sessions / _SLOWEST_PER_S + 10
        self._ask(subject, self._short, seconds, sessions, "--requests", sessions)

    def age(self, subject: Subject, minutes: float) -> float:
        """Put load on it, again and again for so long; returns the number of requests. Raises BenchError if one fails."""
        deadline, done = time.monotonic() + minutes * 60, 0.0
        while time.monotonic() < deadline:
            done += self._ask(subject, self._chat, _BURST_S, _FEW_SESSIONS)
            done += self._ask(subject, self._chat, _BURST_S, sys.maxsize, "--prefix", self._never())
            time.sleep(max(0.0, min(_PAUSE_S, deadline - time.monotonic())))
        return done

    def _never(self) -> str:
        """What ids of sessions begin with that never were."""
        self._new += 1
        return f"new{self._new}-"

    def measure(self, subject: Subject, seconds: float, idle: float, sessions: int, *, new: bool = False) -> float:
        """CPU microseconds of a request beyond what is used in any case (`idle`, in CPU seconds a second).

        Of so many sessions in turn or, with `new`, of sessions that never were.
        """
        words: tuple[object, ...] = ()
        if new:
            words, sessions = ("--prefix", self._never()), sys.maxsize
        before, began = cpu_seconds(subject.process), time.monotonic()
        done = self._ask(subject, self._chat, seconds, sessions, *words)
        used = cpu_seconds(subject.process) - before - idle * (time.monotonic() - began)
        return used * 1e6 / done

    def _ask(self, subject: Subject, file: Path, seconds: float, sessions: int, *words: object) -> float:
        asked = ("--body", file, "--connections", _CONNECTIONS, "--seconds", seconds, "--sessions", sessions, *words)
        seen = json.loads(output_of(module("loadgen", "json", subject.port, *asked), self._cpu, seconds + _GRACE_S))
        if seen["failed"] or not seen["requests"]:
            raise BenchError(f"{subject.name}: {seen['failed']:g} of {seen['requests']:g} requests failed")
        requests: float = seen["requests"]
        return requests


def idle(subject: Subject, seconds: float) -> float:
    """The share of a CPU that a router takes with nothing to do."""
    before, began = cpu_seconds(subject.process), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(subject.process) - before) / (time.monotonic() - began)


def one_round(load: Load, subjects: Sequence[Subject], args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Figures by router. Raises BenchError."""
    found: dict[str, dict[str, float]] = {}
    for subject in subjects:
        resting = idle(subject, args.seconds)
        found[subject.name] = figures = {
            "a conversation goes on: CPU us/request": load.measure(subject, args.seconds, resting, _FEW_SESSIONS),
            "a new conversation: CPU us/request": load.measure(subject, args.seconds, resting, 1, new=True),
            "nothing to do: % of a CPU": resting * 100,
        }
        if subject.name == KNOWN:
            figures["any of all that are known: CPU us/request"] = load.measure(
                subject, args.seconds, resting, args.sessions
            )
    return found


def run(args: argparse.Namespace) -> str:
    """Measure and write what was asked for; returns the report. Raises BenchError."""
    require_tools()
    cpus, before, when = Cpus.available(), os.getloadavg()[0], datetime.now(UTC)
    backends = {FEW: _FEW_BACKENDS, KNOWN: _FEW_BACKENDS, WIDE: args.backends}
    if args.minutes:
        backends[OLD] = _FEW_BACKENDS
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in backends}
    with tempfile.TemporaryDirectory(prefix="warmroute-bench-") as folder, ExitStack() as stack:
        scratch = Path(folder)
        words = ("--listeners", max(backends.values()))
        servers = stack.enter_context(running(module("backend", *words), cpus.rest, scratch / "backend.log", pipe=True))
        assert servers.stdout is not None
        ports = json.loads(servers.stdout.readline())["ports"]
        subjects = []
        for name, count in backends.items():
            start = ROUTERS["warmroute"].start(sys.executable, ports[:count], scratch)
            log = scratch / f"{name}.log"
            process = stack.enter_context(running(start.command, cpus.router, log))
            until_answers(start.port, body(1 << 10, stream=False), process, log)
            subjects.append(Subject(name, start.port, process.pid))
        load = Load(cpus.rest, scratch)
        for subject in subjects:
            sessions = args.sessions if subject.name == KNOWN else _FEW_SESSIONS
            print(f"{subject.name}: {sessions:,} sessions", file=sys.stderr, flush=True)
            load.fill(subject, sessions)
        aged = 0.0
        if args.minutes:
            print(f"{OLD}: {args.minutes:g} minutes", file=sys.stderr, flush=True)
            aged = load.age(subjects[-1], args.minutes)
        for number in range(args.rounds):
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
            turn = number % len(subjects)
            for name, figures in one_round(load, [*subjects[turn:], *subjects[:turn]], args).items():
                rounds[name].append(figures)
    figures_now = report.medians(rounds)
    command = (
        f"python -m tests.bench.flat --sessions {args.sessions} --backends {args.backends} --minutes {args.minutes:g}"
        f" --rounds {args.rounds} --seconds {args.seconds:g}"
    )
    lines = report.conditions(when, command, cpus, before)
    if args.minutes:
        lines.append(f"{OLD}: {aged:,.0f} requests in {args.minutes:g} minutes, of old conversations and of new ones.")
    shown = "\n\n".join([report.compared(figures_now, FEW), "\n".join(lines)])
    if args.json:
        args.json.write_text(json.dumps(figures_now, indent=1) + "\n")
    if args.page:
        report.write_section(args.page, _SECTION, shown)
    return shown


def main(words: Sequence[str] | None = None) -> None:
    args = parse(words)
    with program("flat"):
        print(run(args))


if __name__ == "__main__":
    main()
