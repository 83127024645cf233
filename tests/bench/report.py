"""Figures as Markdown, with what they were measured on; and their place on a page of the documents."""

import os
import platform
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import median

from .processes import BenchError, Cpus

Figures = Mapping[str, Mapping[str, float]]
"""Column -> row -> value."""


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, its first column text and the others numbers."""
    lines = [heads, ["---", *("---:" for _ in heads[1:])], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float) -> str:
    """Three significant digits, or all that stand before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def compared(figures: Figures, reference: str) -> str:
    """A table with a column for each router; in parentheses the ratio to the reference router's value."""
    names = list(dict.fromkeys(row for column in figures.values() for row in column))
    base = figures.get(reference, {})
    rows = []
    for row in names:
        cells = [row]
        for column, values in figures.items():
            cell = number(values[row]) if row in values else "-"
            if row in values and column != reference and base.get(row):
                cell += f" ({values[row] / base[row]:.2f}x)"
            cells.append(cell)
        rows.append(cells)
    return table(["", *figures], rows)


def medians(rounds: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Column -> rounds of figures becomes column -> medians; a column without a round is left out."""
    found = {}
    for column, measured in rounds.items():
        names = dict.fromkeys(name for figures in measured for name in figures)
        if names:
            found[column] = {n: median(figures[n] for figures in measured if n in figures) for n in names}
    return found


def cpu_model() -> str:
    """The processor by its own name."""
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        match = None
    return match[1] if match else platform.machine() or "unknown processor"


def conditions(when: datetime, command: str, cpus: Cpus | None, load: float) -> list[str]:
    """What a reader must know to judge the figures, a line each. `load` is the machine's load average before the run."""
    usable = len(os.sched_getaffinity(0))
    lines = [
        f"Measured {when:%Y-%m-%d} on {cpu_model()}, {os.cpu_count()} CPUs ({usable} usable), load average {load:.2f}"
        f" before the run, Linux {platform.release()}, Python {platform.python_version()}.",
        f"Command: `{command}`",
    ]
    if cpus is not None and cpus.shared:
        lines.append("There was one CPU only: the router shared it with load and backends, so latencies are too long.")
    return lines


def write_section(page: Path, name: str, text: str) -> None:
    """Put a text between the page's markers of this name; the rest of the page stays. Raises BenchError."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    try:
        before, found, rest = page.read_text().partition(begin)
    except OSError as error:
        raise BenchError(f"{page}: {error.strerror}") from None
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise BenchError(f"{page} has no place for the table: write {begin} and {end} where it belongs")
    page.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}")
