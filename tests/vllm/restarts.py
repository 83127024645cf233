"""What clients notice when real vLLM servers are killed and come back, through this router and through others.

    VLLM_DIR=FOLDER python -m tests.vllm.restarts [--through warmroute,vllm-router] [--parts turns,all,streams]
        [--seconds 120] [--down 30] [--tokens 1500] [--router-flags "..."] [--json OUT]

FOLDER is what tests/vllm/install.sh filled. Three servers with the tiny model are started, and each router in turn stands
before them. The parts:

    turns    closed-loop clients ask all the time while each server is killed and started again, one after the other, the
             next one only when the last is healthy and has been given requests again. Then the same is asked twice more
             while nothing dies: the first time tells what unbroken answers are, the second how much they vary by themselves.
    all      all three are killed at once and started again later. Clients keep trying.
    streams  the busiest server is killed a quarter into 12 long streams.

A killed server is killed with its engine, by SIGKILL. A request has failed if its status is not 200, its answer is cut, says
an error, or is not whole; nobody asks twice (but in `all`).
"""

import argparse
import asyncio
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.bench.processes import BenchError, unwind_on_sigterm
from tests.bench.routers import ROUTERS
from tests.vllm.killing import (
    STREAMS,
    Outage,
    Streams,
    Turns,
    all_at_once,
    counted,
    one_after_the_other,
    routed,
    under_streams,
)
from tests.vllm.servers import VllmServer, VllmServerError, start_servers, stop_servers

SERVERS = 3
PARTS = ("turns", "all", "streams")


@dataclass
class Outcome:
    """What one router's clients noticed; None for a part that was not asked for."""

    turns: Turns | None = None
    all: Outage | None = None
    streams: Streams | None = None


async def measured(name: str, servers: Sequence[VllmServer], scratch: Path, args: argparse.Namespace) -> Outcome:
    """All parts that were asked for, through one router. Raises BenchError and VllmServerError, alone or in a group."""
    found = Outcome()
    flags = shlex.split(args.router_flags) if name != "warmroute" else ()
    with routed(name, servers, scratch, flags) as router:
        if "turns" in args.parts:
            found.turns = await one_after_the_other(
                router, servers, seconds=args.seconds, kills=args.kills, compared=args.compared
            )
        if "streams" in args.parts:
            found.streams = await under_streams(router, servers, tokens=args.tokens)
        if "all" in args.parts:
            found.all = await all_at_once(router, servers, down=args.down)
    return found


# Telling


def turns_rows(found: Turns) -> dict[str, str]:
    failed, of_unbroken = len(found.failures), len(found.failures_unbroken)
    again = [f"{r.served_again:.1f}" if r.served_again is not None else "never" for r in found.restarts]
    return {
        "one after the other: failed requests": f"{failed} of {found.requests} in {found.seconds:.0f} s",
        "requests that ran on the killed": ", ".join(str(r.ran) for r in found.restarts),
        "s from death to health": ", ".join(f"{r.down:.0f}" for r in found.restarts),
        "s from health to the next request": ", ".join(again),
        "slowest answers": ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in found.slowest.items()),
        "texts equal to unbroken ones": f"{found.equal} of {found.compared}",
        "of those under way at a death": f"{found.equal_met} of {found.compared_met}",
        "unbroken ones, asked again": f"{found.equal_unbroken} of {found.compared_unbroken}; {of_unbroken} failed",
        "told by the router": shown(found.told),
    }


def all_rows(found: Outage) -> dict[str, str]:
    return {
        "all at once: how answers under way ended": counted(found.cut),
        "answers while all are dead": found.dead.shown(),
        "answers while they load": found.starting.shown(),
        "s of loading until the first health": f"{found.loading:.0f}",
        "s from health to the first answer": f"{found.back:.2f}",
        "s until every client was answered": f"{found.every_client_back:.2f}",
    }


def streams_rows(found: Streams) -> dict[str, str]:
    return {
        "long streams: whole": f"{found.whole} of {STREAMS}",
        "streams that ran on the killed": f"{found.ran}; {found.unended} of {STREAMS} had not ended when it was dead",
        "equal to unbroken ones": f"{found.equal}; unbroken ones, asked again: {found.equal_unbroken}",
        "streams, told by the router": shown(found.told),
    }


def shown(told: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.0f}" for name, value in told.items() if value) or "nothing"


def table(outcomes: dict[str, Outcome]) -> str:
    """A row a figure, a column a router, in Markdown."""
    columns: dict[str, dict[str, str]] = {}
    for name, found in outcomes.items():
        columns[name] = {
            **(turns_rows(found.turns) if found.turns else {}),
            **(all_rows(found.all) if found.all else {}),
            **(streams_rows(found.streams) if found.streams else {}),
        }
    rows = list(next(iter(columns.values())))
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    lines += [f"| {row} | {' | '.join(column[row] for column in columns.values())} |" for row in rows]
    return "\n".join(lines)


def failures(outcomes: dict[str, Outcome]) -> list[str]:
    """Each failed request, in words."""
    found = []
    for name, outcome in outcomes.items():
        if outcome.turns:
            found += [f"{name}: {line}" for line in outcome.turns.failures]
            found += [f"{name}, nothing killed: {line}" for line in outcome.turns.failures_unbroken]
        if outcome.streams:
            found += [f"{name}, long streams: {line}" for line in outcome.streams.failures]
    return found


# The program


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.vllm.restarts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--through", default="warmroute", help=f"with commas, of {', '.join(ROUTERS)}")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"with commas, of {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=120.0, help="turns: the least length (default 120)")
    parser.add_argument("--kills", type=int, default=SERVERS, help=f"turns: servers to kill (default {SERVERS})")
    parser.add_argument("--compared", type=int, default=200, help="turns: answers to compare, 0: none (default 200)")
    parser.add_argument("--down", type=float, default=30.0, help="all: seconds between death and start (default 30)")
    parser.add_argument("--tokens", type=int, default=1500, help="streams: tokens of each (default 1500)")
    parser.add_argument("--router-flags", default="", help="more flags for routers other than warmroute")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write everything there")
    args = parser.parse_args(words)
    args.through, args.parts = args.through.split(","), args.parts.split(",")
    for given, known in ((args.through, ROUTERS), (args.parts, PARTS)):
        for name in given:
            if name not in known:
                parser.error(f"{name!r} is none of {', '.join(known)}")
    return args


def run(args: argparse.Namespace) -> str:
    """Measure and write what was asked for; returns the report. Raises BenchError, VllmServerError, and groups of them."""
    folder = Path(os.environ.get("VLLM_DIR") or "")
    if not (folder / "venv/bin/vllm").exists() or not os.environ.get("VLLM_DIR"):
        raise BenchError("set VLLM_DIR to a folder filled by `tests/vllm/install.sh DIR`")
    outcomes: dict[str, Outcome] = {}
    when, load = datetime.now(UTC), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="warmroute-restarts-") as scratch:
        servers = [VllmServer(folder.resolve(), Path(scratch) / f"server-{n}.log") for n in range(SERVERS)]
        try:
            start_servers(servers)
            for name in args.through:
                outcomes[name] = asyncio.run(measured(name, servers, Path(scratch), args))
        finally:
            stop_servers(servers)
    command = f"python -m tests.vllm.restarts {' '.join(args.words)}".strip()
    conditions = f"`{command}`, {when:%Y-%m-%d %H:%M} UTC, {os.cpu_count()} CPUs, load before: {load:.1f}"
    if args.json:
        figures = json.dumps({"conditions": conditions, "routers": outcomes}, indent=1, default=vars)
        args.json.write_text(figures + "\n")
    return "\n".join([table(outcomes), "", conditions, *failures(outcomes)])


def main(words: Sequence[str] | None = None) -> None:
    args = parse(words)
    args.words = sys.argv[1:] if words is None else list(words)
    unwind_on_sigterm()
    wrong: list[str] = []
    try:
        print(run(args))
    except* (BenchError, VllmServerError) as errors:
        wrong += [str(error) for error in flat(errors)]
    except* KeyboardInterrupt:
        wrong.append("stopped")
    if wrong:
        sys.exit(f"restarts: {'; '.join(wrong)}")


def flat(errors: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The errors in a group, and in the groups in it."""
    found: list[BaseException] = []
    for error in errors.exceptions:
        found += flat(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


if __name__ == "__main__":
    main()
