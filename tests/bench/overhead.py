"""What a router costs end to end, side by side with its peers in one run.

    python -m tests.bench.overhead [--only warmroute,nginx] [--rounds 3] [--seconds 4] [--json OUT] [--page FILE] [--quick]

The router has one CPU to itself, the stand-in backends and the load share another. CPU time is that of the router's whole
process tree. Rounds go over all routers in turn; medians are shown, with the ratio to vllm-router. Needs taskset and setpriv
(util-linux). A router that is not here is left out, and said so.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from . import report
from .processes import BenchError, Cpus, module, program, require_tools, running, until_answers
from .routers import DIRECT, REFERENCE, ROUTERS, Router
from .scenarios import QUICK, SCENARIOS, TOKENS_PER_S, Bench, Extent, body

_LISTENERS = 3
_SECTION = "overhead"

Rounds = dict[str, list[dict[str, float]]]
Found = dict[str, tuple[Router, str]]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def present(names: Sequence[str]) -> tuple[Found, list[str]]:
    """The routers that are here, with their commands, and a line for each one that is not. Raises BenchError."""
    unknown = [name for name in names if name not in ROUTERS]
    if unknown:
        raise BenchError(f"{', '.join(unknown)} is no router; known are {', '.join(ROUTERS)}")
    found: Found = {}
    missing = []
    for name in names:
        command = ROUTERS[name].find()
        if command is None:
            missing.append(f"{name} is left out: it is not installed ({ROUTERS[name].package}).")
        else:
            found[name] = (ROUTERS[name], command)
    return found, missing


def one_pass(bench: Bench, backends: Sequence[int], router: Router | None, command: str) -> dict[str, float]:
    """All scenarios at a fresh router, or at a backend itself where there is none. Raises BenchError."""
    figures: dict[str, float] = {}
    if router is None:
        for scenario in SCENARIOS:
            figures |= bench.measure(scenario, backends[0], None)
        return figures
    log = bench.scratch / f"{router.name}.log"
    start = router.start(command, backends, bench.scratch)
    with running(start.command, bench.cpus.router, log) as process:
        until_answers(start.port, body(1 << 10, stream=False), process, log)
        for scenario in SCENARIOS:
            figures |= bench.measure(scenario, start.port, process.pid)
    log.unlink()
    return figures


def all_rounds(bench: Bench, found: Found) -> tuple[Rounds, list[str]]:
    """Every router in every round, each round beginning with another one; figures, and a line for each that failed."""
    order: list[tuple[str, Router | None, str]] = [(name, *what) for name, what in found.items()]
    order.append((DIRECT, None, ""))
    rounds: Rounds = {name: [] for name, _, _ in order}
    troubles = []
    words = ("--listeners", _LISTENERS, "--tokens", bench.extent.tokens, "--gap", 1 / TOKENS_PER_S)
    log = bench.scratch / "backend.log"
    with running(module("backend", *words), bench.cpus.rest, log, pipe=True) as backend:
        assert backend.stdout is not None
        line = backend.stdout.readline()
        if not line:
            raise BenchError(f"the stand-in backend did not start: {log.read_text().strip()[-400:]}")
        ports = json.loads(line)["ports"]
        for number in range(bench.extent.rounds):
            turn = number % len(order)
            for name, router, command in order[turn:] + order[:turn]:
                say(f"round {number + 1} of {bench.extent.rounds}: {name}")
                try:
                    rounds[name].append(one_pass(bench, ports, router, command))
                except BenchError as error:
                    troubles.append(f"{name} failed in round {number + 1}: {error}")
                    say(troubles[-1])
    return rounds, troubles


def without_zeros(figures: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The figures without the counts of failed requests where nobody had any."""
    failed = {row for column in figures.values() for row in column if row.endswith(": failed")}
    quiet = {row for row in failed if not any(column.get(row) for column in figures.values())}
    return {name: {row: v for row, v in column.items() if row not in quiet} for name, column in figures.items()}


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.overhead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default=",".join(ROUTERS), help="routers by name, with commas")
    parser.add_argument("--rounds", type=int, help=f"passes over all routers (default {Extent().rounds})")
    parser.add_argument("--seconds", type=float, help=f"length of each scenario (default {Extent().seconds:g})")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write all figures there")
    parser.add_argument("--page", type=Path, help="also write the table there, between the page's markers")
    parser.add_argument("--quick", action="store_true", help="one tiny round of everything, to see that it works")
    args = parser.parse_args(words)
    for name in ("rounds", "seconds"):
        if (value := getattr(args, name)) is not None and value <= 0:
            parser.error(f"--{name} must be more than 0")
    return args


def extent_of(args: argparse.Namespace) -> Extent:
    default = QUICK if args.quick else Extent()
    return Extent(args.rounds or default.rounds, args.seconds or default.seconds, default.warm_up)


def run(args: argparse.Namespace) -> str:
    """Measure and write what was asked for; returns the report. Raises BenchError."""
    require_tools()
    extent, cpus, load, when = extent_of(args), Cpus.available(), os.getloadavg()[0], datetime.now(UTC)
    found, missing = present(args.only.split(","))
    versions = {name: router.version(command) for name, (router, command) in found.items()}
    with tempfile.TemporaryDirectory(prefix="warmroute-bench-") as scratch:
        bench = Bench(extent, cpus, Path(scratch))
        rounds, troubles = all_rounds(bench, found)
    figures = report.medians(rounds)
    if not figures:
        raise BenchError("nothing was measured")
    only = "" if args.only == ",".join(ROUTERS) else f" --only {args.only}"
    command = f"python -m tests.bench.overhead --rounds {extent.rounds} --seconds {extent.seconds:g}{only}"
    lines = report.conditions(when, command, cpus, load)
    lines.append(f"Versions: {', '.join(f'{name} {version}' for name, version in versions.items())}.")
    rounds_text = "One round" if extent.rounds == 1 else f"Medians of {extent.rounds} rounds"
    lines.append(f"{rounds_text} of {extent.seconds:g} s for each scenario; JSON load made by {bench.generator}.")
    notes = "".join(f"\n\n{line}" for line in [*missing, *troubles])
    shown = report.compared(without_zeros(figures), REFERENCE) + "\n\n" + "\n".join(lines) + notes
    if args.json:
        data = {"conditions": lines, "versions": versions, "missing": missing, "troubles": troubles}
        args.json.write_text(json.dumps({**data, "medians": figures, "rounds": rounds}, indent=1) + "\n")
    if args.page:
        report.write_section(args.page, _SECTION, shown)
    return shown


def main(words: Sequence[str] | None = None) -> None:
    args = parse(words)
    with program("overhead"):
        print(run(args))


if __name__ == "__main__":
    main()
