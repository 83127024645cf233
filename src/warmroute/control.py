"""The commands that talk to a running router's admin listener."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import httpx


class ControlError(Exception):
    """The router could not be asked, or refused; the text says what to do."""


def call(admin: str, path: str, *, post: bool = False, content: object = None) -> dict[str, Any]:
    """GET or POST (of JSON, if there is content) below the admin address; returns the JSON. Raises ControlError."""
    url = f"{admin.rstrip('/')}{path}"
    try:
        response = httpx.request("POST" if post else "GET", url, json=content, timeout=10, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ControlError(f"no router answers at {admin} ({error}); give its address with --admin URL") from None
    try:
        body = response.json()
    except ValueError:
        raise ControlError(f"what answers at {admin} is not warmroute's admin listener; see --admin") from None
    if not response.is_success:
        raise ControlError(str(body.get("detail", body)))
    found: dict[str, Any] = body
    return found


def drain(admin: str, name: str, on: bool) -> dict[str, Any]:
    return call(admin, f"/api/backends/{quote(name, safe=':')}/{'drain' if on else 'undrain'}", post=True)


def explain(admin: str, saved: dict[str, Any]) -> dict[str, Any]:
    """Ask where a saved request would go. Raises ControlError."""
    found = call(admin, "/api/explain", post=True, content=saved)
    if "error" in found:
        raise ControlError(str(found["error"]))
    return found


def explain_text(found: dict[str, Any]) -> str:
    """Who won, who was refused and why, and where the request would go."""
    refused = [f"{r['source']} ({r['reason']})" for r in found["refused"]]
    where = found["backend"] or "nowhere"
    if found["engine"] is not None:
        where += f", engine {found['engine']}"
    rows = [
        ("request", f"{found['path']}, model {found['model'] or 'not named'}"),
        ("key source", found["source"] or "none"),
        ("refused", ", ".join(refused) or "none"),
        ("also there, not asked", ", ".join(found["not_asked"]) or "none"),
        ("session", f"{found['session']}, {'known' if found['known'] else 'new'}" if found["session"] else "none"),
        ("recognised", found["recognised"]),
        ("would go to", f"{where} ({found['decision']})"),
    ]
    return table(rows)


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
            b["reason"],
        )
        for b in state["backends"]
    ]
    return head + "\n" + table(rows)


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
