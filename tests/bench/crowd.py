"""Thousands of streams that are open and say little: what another one waits for its first byte, beside no router at all.

    python -m tests.bench.crowd [--only warmroute] [--streams 5000] [--seconds 20] [--gap 5] [--json OUT] [--page FILE]

Streams begin evenly over the first half of the time and have a token every `gap` seconds, so that all are open together. The
router has one CPU to itself, the stand-in backends and the load share another.
"""

import argparse
import json
import os
import resource
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from . import report
from .overhead import present, say
from .processes import Cpus, cpu_seconds, module, output_of, program, require_tools, running, until_answers
from .routers import DIRECT, REFERENCE
from .scenarios import body

_SECTION = "crowd"
_GRACE_S = 60.0
_OF_A_SERVER = 800
"""Streams of one server; vLLM runs no more than 1,024 at once by default, and the router sends it no more."""


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.crowd", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=f"warmroute,{REFERENCE}", help="routers by name, with commas")
    parser.add_argument("--streams", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each stream lasts, about")
    parser.add_argument("--gap", type=float, default=5.0, help="seconds between tokens of a stream")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write all figures there")
    parser.add_argument("--page", type=Path, help="also write the table there, between the page's markers")
    parser.add_argument("--quick", action="store_true", help="a hundred streams for a second, to see that it works")
    args = parser.parse_args(words)
    if args.quick:
        args.streams, args.seconds, args.gap = 100, 1.0, 0.2
    return args


def one(args: argparse.Namespace, cpus: Cpus, scratch: Path, port: int, router: int | None) -> dict[str, float]:
    """The crowd at one port; figures by their name in the table. Raises BenchError."""
    file = scratch / "body.json"
    file.write_bytes(body(8 << 10, stream=True))
    tokens = max(2, round(args.seconds / args.gap))
    words = (
        "--connections",
        args.streams,
        "--seconds",
        args.seconds / 2 + 0.05,
        "--tokens",
        tokens,
        "--ramp",
        args.seconds / 2,
    )
    before = cpu_seconds(router) if router else 0.0
    command = module("loadgen", "stream", port, "--body", file, *words)
    seen = json.loads(output_of(command, cpus.rest, 2 * args.seconds + _GRACE_S))
    found = {"streams": seen["requests"], "failed": seen["failed"]}
    found |= {f"first byte {q} ms": seen[f"first_{q}_ms"] for q in ("p50", "p99") if f"first_{q}_ms" in seen}
    if router is not None:
        found["CPU s"] = cpu_seconds(router) - before
        found["MiB"] = _resident(router)
    return found


def _resident(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def run(args: argparse.Namespace) -> str:
    """Measure and write what was asked for; returns the report. Raises BenchError."""
    require_tools()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    cpus, load, when = Cpus.available(), os.getloadavg()[0], datetime.now(UTC)
    found, missing = present(args.only.split(","))
    figures: dict[str, dict[str, float]] = {}
    words = (
        "--listeners",
        3 + args.streams // _OF_A_SERVER,
        "--tokens",
        max(2, round(args.seconds / args.gap)),
        "--gap",
        args.gap,
    )
    with tempfile.TemporaryDirectory(prefix="warmroute-bench-") as folder:
        scratch = Path(folder)
        with running(module("backend", *words), cpus.rest, scratch / "backend.log", pipe=True) as backend:
            assert backend.stdout is not None
            ports = json.loads(backend.stdout.readline())["ports"]
            for name, (router, command) in found.items():
                say(f"crowd: {name}")
                start = router.start(command, ports, scratch)
                with running(start.command, cpus.router, scratch / f"{name}.log") as process:
                    until_answers(start.port, body(1 << 10, stream=False), process, scratch / f"{name}.log")
                    figures[name] = one(args, cpus, scratch, start.port, process.pid)
            say("crowd: direct")
            figures[DIRECT] = one(args, cpus, scratch, ports[0], None)
    command_line = f"python -m tests.bench.crowd --streams {args.streams} --seconds {args.seconds:g} --gap {args.gap:g}"
    lines = report.conditions(when, command_line, cpus, load)
    shown = "\n\n".join([report.compared(figures, REFERENCE), "\n".join(lines), *missing])
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    if args.page:
        report.write_section(args.page, _SECTION, shown)
    return shown


def main(words: Sequence[str] | None = None) -> None:
    args = parse(words)
    with program("crowd"):
        print(run(args))


if __name__ == "__main__":
    main()
