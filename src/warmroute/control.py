"""The commands that talk to a running router's admin listener."""

import json
import re
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import click
import httpx
from pydantic import TypeAdapter, ValidationError

from .config.certificates import command_context, command_cure
from .config.values import Seconds
from .telling import table

_SECONDS: TypeAdapter[float] = TypeAdapter(Seconds)


class ControlError(Exception):
    """The router could not be asked, or refused; the text says what to do."""


class Admin(NamedTuple):
    """A router's admin listener: its address, and the token that it wants, if it wants one."""

    url: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"<Admin {self.url}{' with a token' if self.token else ''}>"


def admin_options(command: Any) -> Any:
    """Give a command the options that say which router it talks to, as its parameter `admin`, and whether it prints JSON."""

    @wraps(command)
    def with_admin(*, admin: str, token: str | None, **others: Any) -> Any:
        return command(admin=Admin(admin, token), **others)

    asked = click.option("--json", "as_json", is_flag=True, help="Print JSON alone.")(with_admin)
    asked = click.option(
        "--token",
        envvar="WARMROUTE_ADMIN_TOKEN",
        callback=_printable,
        metavar="TOKEN",
        help="Its token; better in WARMROUTE_ADMIN_TOKEN.",
    )(asked)
    return click.option(
        "--admin",
        default="http://127.0.0.1:8081",
        show_default=True,
        envvar="WARMROUTE_ADMIN",
        show_envvar=True,
        metavar="URL",
        help="The router's admin address.",
    )(asked)


def _printable(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and (not value.isascii() or not value.isprintable() or " " in value):
        raise click.BadParameter("a token is printable ASCII without spaces", ctx, param)
    return value


_BROADCAST_OVER = 30.0
"""Seconds beyond a broadcast's deadline in which the router reads model lists and answers."""

_TOLD_LENGTH = 100
"""Characters of a backend's answer that a table shows."""


def call(admin: Admin | str, path: str, *, post: bool = False, content: object = None) -> dict[str, Any]:
    """GET or POST (of JSON, if there is content) below the admin address; returns the JSON. Raises ControlError."""
    headers = {} if content is None else {"content-type": "application/json"}
    body = None if content is None else json.dumps(content).encode()
    return _ask(admin, path, post=post, body=body, headers=headers)


def _ask(
    admin: Admin | str,
    path: str,
    *,
    post: bool,
    body: bytes | None,
    headers: Mapping[str, str],
    timeout: float = 10,
    also: Collection[int] = (),
) -> dict[str, Any]:
    """The JSON of an answer whose status is 2xx, or one of `also`. Raises ControlError."""
    admin, token = admin if isinstance(admin, Admin) else (admin, None)
    if "://" not in admin:
        admin = f"http://{admin}"
    if token is not None:
        headers = {**headers, "authorization": f"Bearer {token}"}
    url = f"{admin.rstrip('/')}{path}"
    method = "POST" if post else "GET"
    try:
        response = httpx.request(
            method, url, content=body, headers=headers, timeout=timeout, trust_env=False, verify=command_context(url)
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ControlError(
            f"no router answers at {admin} ({_words(error)}); give its address with --admin URL"
        ) from None
    try:
        found = response.json()
    except ValueError:
        found = None
    good = response.is_success or response.status_code in also
    if not isinstance(found, dict) or not (good or "detail" in found):
        raise ControlError(
            f"what answers at {admin} is not warmroute's admin listener (by default on port 8081); give its address with"
            " --admin URL"
        )
    if response.status_code == 401:
        said = "wants a token: give it in WARMROUTE_ADMIN_TOKEN" if token is None else "does not know this token"
        raise ControlError(f"the router at {admin} {said} (its listen.admin_token)")
    if not good:
        raise ControlError(str(found["detail"]))
    told: dict[str, Any] = found
    return told


def _words(error: Exception) -> str:
    """What a failed request tells, without the number of the system's error."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return f"its certificate is not believed: {command_cure(error)}"
    return re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__


def seconds(text: str) -> float:
    """A duration as the configuration writes it. Raises ValueError, which says how."""
    try:
        return _SECONDS.validate_python(text)
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


def drain(admin: Admin | str, name: str, on: bool, deadline: float | None = None) -> dict[str, Any]:
    """Empty a backend within so many seconds (None: as configured), or use it again. Raises ControlError."""
    wish = {"deadline": deadline} if on and deadline is not None else None
    path = f"/api/backends/{quote(name, safe=':')}/{'drain' if on else 'undrain'}"
    return call(admin, path, post=True, content=wish)


def wait_until_empty(admin: Admin | str, name: str, say: Callable[[str], None], pause: float = 0.5) -> dict[str, Any]:
    """Wait until a draining backend has no session and no request, and say how many are left as that changes.

    Asks every `pause` seconds. Raises ControlError, also if somebody ends the draining or removes the backend.
    """
    told = ""
    while True:
        found = call(admin, "/api/state")["backends"]
        backend = next((b for b in found if b["name"] == name), None)
        if backend is None:
            raise ControlError(f"{name} was removed while it was drained")
        if backend["drain"] is None:
            raise ControlError(f"the draining of {name} was ended by somebody else")
        sessions, requests = backend["drain"]["sessions_left"], backend["in_flight"]
        if not sessions and not requests:
            return {"backend": name, "state": backend["state"], "sessions": sessions}
        text = f"{sessions} sessions and {requests} requests left"
        if text != told:
            say(text)
            told = text
        time.sleep(pause)


def reload_text(changes: dict[str, Any]) -> str:
    """What a reload did to the backends."""
    told = [f"{word.replace('_', ' ')}: {', '.join(names)}" for word, names in changes.items() if names]
    return "\n".join(["the configuration was reloaded", *(told or ["the same backends"])])


def json_body(text: str) -> bytes:
    """JSON as it is written here, or in the file behind an @ (@-: standard input). Raises ValueError, which says why not."""
    try:
        if text == "@-":
            data = sys.stdin.buffer.read()
        elif text.startswith("@"):
            data = Path(text[1:]).read_bytes()
        else:
            data = text.encode()
        json.loads(data)
    except OSError as error:
        raise ValueError(f"{text[1:]}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is no JSON: {error}") from None
    return data


def broadcast(
    admin: Admin | str, path: str, backends: Sequence[str], body: bytes | None, deadline: float, key: str | None
) -> dict[str, Any]:
    """POST JSON to a path of vLLM on every backend, or on those named; returns what each one said. Raises ControlError.

    `path` may have a query. `deadline` is seconds for each answer, `key` the servers' API key.
    """
    path, _, query = path.removeprefix("/").partition("?")
    wish = urlencode([*(("backend", name) for name in backends), ("deadline", deadline)])
    headers = {} if body is None else {"content-type": "application/json"}
    if key:
        headers["x-backend-authorization"] = f"Bearer {key}"
    found = _ask(
        admin,
        f"/api/broadcast/{quote(path)}?{query}{'&' if query else ''}{wish}",
        post=True,
        body=body,
        headers=headers,
        timeout=deadline + _BROADCAST_OVER,
        also=(502,),
    )
    if "backends" not in found:
        raise ControlError(str(found.get("detail", found)))
    return found


def broadcast_text(found: dict[str, Any]) -> str:
    """What each backend said, and whether all of them did it."""
    told = found["backends"]
    rows = [("backend", "done", "status", "said")]
    rows += [
        (name, "yes" if one["ok"] else "NO", str(one["status"] or "-"), _said(one["error"] or one["body"]))
        for name, one in told.items()
    ]
    unread = [
        f"the models of {name} could not be read afterwards: {one['models_error']}"
        for name, one in told.items()
        if one["models_error"]
    ]
    done = sum(one["ok"] for one in told.values())
    return "\n".join([table(rows), *unread, f"{found['path']}: done by {done} of {len(told)} backends"])


def _said(body: Any) -> str:
    """An answer in one line: the message of an error, a text as it is, JSON as JSON."""
    error = body.get("error", body.get("detail")) if isinstance(body, dict) else None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        body = error["message"]
    elif isinstance(error, str):
        body = error
    text = body if isinstance(body, str) else "" if body is None else json.dumps(body)
    line = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return line if len(line) <= _TOLD_LENGTH else line[: _TOLD_LENGTH - 3] + "..."


def explain(admin: Admin | str, saved: dict[str, Any]) -> dict[str, Any]:
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
        *(("in the cache of", _warm(one)) for one in found.get("warm") or ()),
    ]
    return table(rows)


def _warm(one: dict[str, Any]) -> str:
    """How much of a session an engine still has."""
    before = "" if one["whole"] else ", and what was there before the router listened"
    return f"{one['backend']}, engine {one['engine']}: {one['live_tokens']} of {one['tokens']} tokens{before}"
