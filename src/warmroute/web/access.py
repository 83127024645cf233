"""Who may use the admin pages: this machine alone, or whoever shows the token, as a program (Bearer) or by signing in."""

import hmac
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse

from .guard import refusal

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "warmroute_admin"
SIGNED_IN_FOR = 12 * 3600
"""Seconds after which a browser has to show the token again."""
_FORM_LIMIT = 4096
_HEALTH = ("/livez", "/readyz", "/health")
_LOGIN = (Path(__file__).parent / "static" / "login.html").read_text(encoding="utf-8")
_WRONG = "<!-- wrong -->"
HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
        " frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


class Access:
    """Lets requests through to an application, and answers the others. `wall` gives the time of day in seconds.

    Without a token there is no check of who asks, and so only a Host of this machine is answered: no page can reach the
    listener by letting its own name point there. Health is told to everybody.
    """

    def __init__(self, token: str | None, open_metrics: bool, wall: Callable[[], float]) -> None:
        self._token = token.encode() if token is not None else None
        self._open_metrics = open_metrics
        self._wall = wall

    def __repr__(self) -> str:
        return f"<Access {'with a token' if self._token is not None else 'without a token'}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send, inner: App) -> None:
        """Answer one HTTP request, or let `inner` do it."""

        async def hardened(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                more = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in own]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        request = Request(scope, receive)
        answer = await self._answer(request)
        await (inner if answer is None else answer)(scope, receive, hardened)

    async def _answer(self, request: Request) -> Response | None:
        """The answer to a request that goes no further."""
        path, method, headers = request.scope["path"], request.method, request.headers
        if path in _HEALTH:
            return None
        why = refusal(method, headers.getlist("host"), headers.get("origin"), guarded=self._token is not None)
        if why is not None:
            return JSONResponse({"detail": why}, 403)
        if self._token is None:
            return None
        if path == "/login" and method == "POST":
            return await self._sign_in(request)
        open_metrics = path == "/metrics" and self._open_metrics
        if open_metrics or path.startswith("/static/") or self._known(request):
            return None
        if method == "GET" and "text/html" in headers.get("accept", ""):
            return HTMLResponse(_LOGIN.replace(_WRONG, ""), 401)
        return JSONResponse(
            {"detail": "this router's admin port wants its token (listen.admin_token): give it as a Bearer token"},
            401,
            {"www-authenticate": "Bearer"},
        )

    def _known(self, request: Request) -> bool:
        kind, _, shown = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self._is_token(shown.strip())
        return self._is_signed(request.cookies.get(COOKIE, ""))

    def _is_token(self, shown: str) -> bool:
        """Compared in the same time whatever is shown."""
        assert self._token is not None
        return hmac.compare_digest(sha256(shown.encode()).digest(), sha256(self._token).digest())

    # Signing in: the browser keeps a time and its signature, not the token, and no script can read it

    async def _sign_in(self, request: Request) -> Response:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > _FORM_LIMIT:
                return JSONResponse({"detail": f"a token has fewer than {_FORM_LIMIT} bytes"}, 413)
        shown = parse_qs(body.decode("latin-1")).get("token", [""])[0]
        if not self._is_token(shown):
            return HTMLResponse(_LOGIN.replace(_WRONG, '<p class="wrong" role="alert">That is not the token.</p>'), 401)
        answer = RedirectResponse("./", 303)
        until = str(int(self._wall()) + SIGNED_IN_FOR)
        signed, secure = f"{until}.{self._signature(until)}", request.scope["scheme"] == "https"
        answer.set_cookie(COOKIE, signed, max_age=SIGNED_IN_FOR, httponly=True, samesite="strict", secure=secure)
        return answer

    def _is_signed(self, cookie: str) -> bool:
        until, _, signature = cookie.partition(".")
        good = hmac.compare_digest(signature.encode(), self._signature(until).encode())
        return good and int(until) > self._wall()

    def _signature(self, until: str) -> str:
        assert self._token is not None
        return hmac.new(self._token, b"warmroute admin until " + until.encode(), sha256).hexdigest()
