"""The commands by which a running router gets a backend more, or one less."""

from typing import Any
from urllib.parse import quote

from .control import Admin, call


def add(admin: Admin | str, url: str, name: str | None, weight: float | None) -> dict[str, Any]:
    """Let a router use one backend more. Raises ControlError."""
    wish = {"url": url, "name": name, "weight": weight}
    return call(admin, "/api/backends", post=True, content={k: v for k, v in wish.items() if v is not None})


def added_text(answer: dict[str, Any]) -> str:
    """What was added, and for how long."""
    until = "until it is removed or the router ends" if answer["sources"] == ["hand"] else "as before"
    return f"{answer['backend']} is {answer['state']}, and used {until}"


def remove(admin: Admin | str, name: str, now: bool) -> dict[str, Any]:
    """Let a router forget a backend once it is empty, or now. Raises ControlError."""
    return call(admin, f"/api/backends/{quote(name, safe=':')}/remove{'?now' if now else ''}", post=True)


def removed_text(answer: dict[str, Any]) -> str:
    """How far it is."""
    gone = answer["state"] == "removed"
    left = f"{answer['sessions']} sessions"
    return f"{answer['backend']} is {'gone' if gone else 'being emptied'}, {left} {'move' if gone else 'are left'}"
