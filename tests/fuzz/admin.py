"""The admin API: any path, query, headers and body, through the application itself."""

import asyncio
import json
import re
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import unquote

from .parts import parts
from .pieces import Case, Dice

_PATHS = [
    b"/api/backends",
    b"/api/backends/127.0.0.1:9/remove",
    b"/api/explain",
    b"/api/explain",
    b"/api/backends/127.0.0.1:9/drain",
    b"/api/backends/127.0.0.1:9/undrain",
    b"/api/backends/x/drain",
    b"/api/reload",
    b"/api/state",
    b"/api/history",
    b"/api/sessions",
    b"/api/events",
    b"/api/sessions/0123456789abcdef/turns",
    b"/metrics",
    b"/",
    b"/static/app.js",
    b"/static/../web/admin.py",
    b"/static/%2e%2e/admin.py",
    b"/livez",
    b"/openapi.json",
    b"/api/broadcast/sleep",
    b"/api/broadcast/../x",
]
_QUERIES = [
    b"",
    b"limit=5",
    b"limit=-1",
    b"limit=9e9",
    b"search=%ff",
    b"search=a",
    b"deadline=1",
    b"deadline=nan",
    b"deadline=1e999",
    b"backend=nobody",
    b"&&=",
    b"limit=" + b"9" * 5000,
    b"%00=%00",
]
_EXPLAIN: list[object] = [
    {
        "path": "/v1/chat/completions",
        "headers": [["x-session-id", "s"]],
        "body": "eyJtb2RlbCI6Im0iLCJtZXNzYWdlcyI6W3sicm9sZSI6InVzZXIiLCJjb250ZW50IjoiYSJ9XX0=",
    },
    {"method": "GET", "path": "/v1/realtime?model=m"},
    {
        "path": "/v1/audio/transcriptions",
        "headers": [["content-type", "multipart/form-data; boundary=x"]],
        "body": "LS14",
    },
    {"deadline": 5},
    {"url": "http://127.0.0.1:11", "name": "a", "weight": 2},
    {"url": "https://[::1]:11/x"},
    {"deadline": None},
    {"path": "\ud800", "headers": [["\ud800", "\udfff"]]},
    {"path": "/v1/responses/\u0000"},
]
_WHOLE = [json.dumps(value).encode() for value in _EXPLAIN]
_WORDS = [
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b'"',
    b'"path":',
    b'"headers":',
    b'"body":',
    b'"deadline":',
    b'"method":',
    b"null",
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b'"\\ud800"',
    b'"\\u0000"',
    b"\xff",
    b"[" * 3000,
    b'{"a":' * 2000,
    b'"====="',
    b'"!"',
    b'"/v1/models"',
    b'"GET"',
    b'"\\u00df"',
]
_HEADERS = [
    b"content-type",
    b"host",
    b"origin",
    b"content-length",
    b"transfer-encoding",
    b"range",
    b"if-none-match",
    b"if-modified-since",
    b"accept-encoding",
    b"authorization",
]
_VALUES = [
    b"application/json",
    b"text/plain",
    b"127.0.0.1",
    b"evil.example",
    b"http://evil.example",
    b"null",
    b"bytes=0-1,5-",
    b"bytes=-" + b"9" * 400,
    b"5",
    b"[::1",
    b"a:b:c",
    b"\xff",
    b"*",
]

_METHODS = [b"POST", b"POST", b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"PATCH"]
_SPOILT = [b"/", b"%2f", b"..", b"%00", b"%ff", b"{", b"}"]
_NO_TARGET = re.compile(rb"[^!-~]|[?#]")


def build(dice: Dice) -> Case:
    """Method, path, query, body, and then name and value of each header. Path and query have what the parser lets pass."""
    path = dice.spoiled(_PATHS, _SPOILT) if dice.below(2) else dice.pick(_PATHS)
    query = dice.spoiled(_QUERIES, _QUERIES) if dice.below(2) else dice.pick(_QUERIES)
    headers = [(dice.pick(_HEADERS), dice.word(_VALUES)) for _ in range(dice.below(4))]
    line = (dice.pick(_METHODS), b"/" + _NO_TARGET.sub(b"", path.lstrip(b"/")), _NO_TARGET.sub(b"", query))
    return (*line, dice.text(_WHOLE, _WORDS), *(part for pair in headers for part in pair))


class Target:
    """Asks the application, of which no answer may be its own fault."""

    name = "admin"
    share = 0.06

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._app = parts(self._loop).made.admin_app

    def close(self) -> None:
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    build = staticmethod(build)

    def check(self, case: Case) -> None:
        status, body = self._loop.run_until_complete(self._asked(case))
        assert 200 <= status < 600
        # Every error says what is wrong, and 502 is of a broadcast to backends that are not there.
        assert status < 500 or status in (502, 503), (status, body)
        if status >= 400 and case[0] != b"HEAD" and status != 502 and case[1].startswith(b"/api/"):
            assert isinstance(json.loads(body)["detail"], str), (status, body)

    async def _asked(self, case: Case) -> tuple[int, bytes]:
        method, path, query, body, *flat = case
        sent, answer = [body[: len(body) // 2], body[len(body) // 2 :]], bytearray()
        status = 0
        given = [(name, value) for name, value in zip(flat[::2], flat[1::2], strict=True)]
        if not any(name == b"host" for name, _ in given):
            given.append((b"host", b"127.0.0.1:8081"))

        async def receive() -> MutableMapping[str, Any]:
            if not sent:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": sent.pop(0), "more_body": bool(sent)}

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                answer.extend(message.get("body", b""))

        scope: MutableMapping[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method.decode(),
            "scheme": "http",
            "path": _unquoted(path),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": given,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8081),
            "state": {},
        }
        await self._app(scope, receive, send)
        return status, bytes(answer)


def _unquoted(path: bytes) -> str:
    """As uvicorn does: percent-decoded as UTF-8, which may go wrong."""
    return unquote(path.decode("ascii", "replace"))
