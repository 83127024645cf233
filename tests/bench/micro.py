"""What the router's parts cost by themselves, in CPU time.

    python -m tests.bench.micro [--only decide,ring] [--json OUT] [--page FILE] [--quick]

Each figure is the best of some batches in one process on one CPU. There is no network, no event loop and no peer here;
what all of it costs together, and beside other routers, `tests.bench.overhead` measures.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import warmroute

from . import cases_core, cases_recognition, cases_state, cases_truth, report
from .processes import BenchError, program
from .timing import QUICK, Row, Scale

_SECTION = "micro"

GROUPS: Mapping[str, Callable[[Scale], Iterator[Row]]] = {
    "decide": cases_core.decide_rows,
    "ring": cases_core.ring_rows,
    "recognise": cases_recognition.recognition_rows,
    "answer": cases_recognition.answer_rows,
    "account": cases_truth.account_rows,
    "prompts": cases_truth.prompt_rows,
    "remembered": cases_recognition.memory_rows,
    "relay": cases_core.relay_rows,
    "usage": cases_core.usage_rows,
    "pins": cases_state.pin_rows,
    "metrics": cases_state.metrics_rows,
    "record": cases_state.record_rows,
}


def measured(names: Sequence[str], scale: Scale) -> list[Row]:
    """The rows of these groups. Raises BenchError for a name that is none."""
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        raise BenchError(f"{', '.join(unknown)} is no group; known are {', '.join(GROUPS)}")
    rows: list[Row] = []
    for name in names:
        print(f"measuring {name}", file=sys.stderr, flush=True)
        rows += GROUPS[name](scale)
    return rows


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.micro", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(GROUPS), help="groups by name, with commas")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write all figures there")
    parser.add_argument("--page", type=Path, help="also write the table there, between the page's markers")
    parser.add_argument("--quick", action="store_true", help="tiny batches and tables, to see that it works")
    return parser.parse_args(words)


def run(args: argparse.Namespace) -> str:
    """Measure and write what was asked for; returns the report. Raises BenchError."""
    load, when = os.getloadavg()[0], datetime.now(UTC)
    rows = measured(args.only.split(","), QUICK if args.quick else Scale())
    command = "python -m tests.bench.micro" + (" --quick" if args.quick else "")
    lines = [*report.conditions(when, command, None, load), f"Version: warmroute {warmroute.__version__}."]
    cells = [[row.what, f"{report.number(row.value)} {row.unit}" if row.unit else f"{row.value:.3f}"] for row in rows]
    shown = report.table(["", "cost"], cells) + "\n\n" + "\n".join(lines)
    if args.json:
        args.json.write_text(json.dumps({"conditions": lines, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    if args.page:
        report.write_section(args.page, _SECTION, shown)
    return shown


def main(words: Sequence[str] | None = None) -> None:
    args = parse(words)
    with program("micro"):
        print(run(args))


if __name__ == "__main__":
    main()
