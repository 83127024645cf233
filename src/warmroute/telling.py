"""What `warmroute status` and `warmroute sessions` print of what a router knows."""

from collections.abc import Sequence
from typing import Any


def status_text(state: dict[str, Any]) -> str:
    """The fleet in one line and a line for each backend."""
    fleet = state["fleet"]
    rates = " ".join(f"{percent(value)} ({window})" for window, value in fleet["hit_ratio"].items())
    head = (
        f"{fleet['backends_up']} of {fleet['backends']} backends up, hit rate {rates},"
        f" {fleet['sessions']} sessions, {fleet['in_flight']} in flight, {fleet['moves']} moves"
    )
    rows = [("backend", "state", "sessions", "in flight", "waiting", "hit rate 5m", "models", "reason")]
    rows += [
        (
            b["name"],
            b["state"],
            str(b["sessions"]),
            str(b["in_flight"]),
            "-" if b["waiting"] is None else str(b["waiting"]),
            percent(b["hit_ratio"]["5m"]),
            ",".join(b["models"]) or "-",
            b["reason"] or _draining(b["drain"]),
        )
        for b in state["backends"]
    ]
    return "\n".join([head, table(rows), *(_advice(one) for one in state.get("advice", ()))])


def _advice(one: dict[str, Any]) -> str:
    """A piece of advice in one line; which settings of clients it means is on the dashboard."""
    evidence = f" ({one['evidence']})" if one["evidence"] else ""
    return f"{one['level']}: {one['text']}{evidence}"


def _draining(drain: dict[str, Any] | None) -> str:
    if drain is None:
        return ""
    left = drain["seconds_left"]
    return f"{drain['sessions_left']} sessions left" + ("" if left is None else f", the rest moves in {left:.0f} s")


def sessions_text(found: dict[str, Any]) -> str:
    rows = [("session", "source", "backend", "engine", "turns", "idle")]
    rows += [
        (s["session"], s["source"], s["backend"], s["engine"] or "-", str(s["turns"]), f"{s['idle_s']:.0f} s")
        for s in found["sessions"]
    ]
    return f"{found['total']} sessions, the {len(found['sessions'])} used last:\n{table(rows)}"


def percent(ratio: float | None) -> str:
    return "no data" if ratio is None else f"{ratio:.1%}"


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns as wide as their widest cell."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
