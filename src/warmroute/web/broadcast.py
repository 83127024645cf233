"""The admin route by which one thing is done on all backends."""

from collections.abc import Mapping
from typing import Annotated
from urllib.parse import unquote_plus

import msgspec
from fastapi import FastAPI, HTTPException, Query, Request, Response

from ..fleet.broadcast import PATHS, Broadcaster, Order, Told
from ..fleet.registry import BackendState, Registry

BODY_LIMIT = 1 << 20
"""Bytes of a request's body that are taken."""

_OWN = ("backend", "deadline")
"""Parameters that are meant for the router, and not sent on."""


def add(app: FastAPI, registry: Registry, broadcaster: Broadcaster) -> None:
    """Give the application its route."""

    @app.post("/api/broadcast/{path:path}")
    async def broadcast(
        path: str,
        request: Request,
        backend: Annotated[list[str] | None, Query()] = None,
        deadline: Annotated[float, Query(gt=0, le=3600)] = 60.0,
    ) -> Response:
        """POST the body to this path of vLLM on every backend, or on those named; 502 if one of them did not do it.

        `deadline` is in seconds. Other parameters are sent on.
        """
        if f"/{path}" not in PATHS:
            raise HTTPException(404, f"/{path} is not sent to all backends; these are: {', '.join(PATHS)}")
        chosen = _chosen(registry, backend)
        sent_on = [(name, value) for shown, name in _SENT_ON if (value := request.headers.get(shown)) is not None]
        body = await _body(request)
        query = _query(request.scope["query_string"])
        return _answer(path, await broadcaster.tell(chosen, Order(f"/{path}", query, sent_on, body, deadline)))


_SENT_ON = (("content-type", "content-type"), ("x-backend-authorization", "authorization"))
"""Headers that are meant for the backends, and their names there: vLLM wants JSON to be called so, and with --api-key a key.
`authorization` itself is for the router."""


def _chosen(registry: Registry, names: list[str] | None) -> list[BackendState]:
    unknown = [name for name in names or () if name not in registry.backends]
    if unknown:
        raise HTTPException(404, f"no backend is named {unknown[0]!r}; there are {', '.join(registry.backends)}")
    return [registry.backends[name] for name in dict.fromkeys(names or registry.backends)]


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_LIMIT:
            raise HTTPException(413, f"the body is larger than {BODY_LIMIT >> 20} MiB")
    return bytes(body)


def _query(raw: bytes) -> str:
    """What is for the backends, in the bytes it came in."""
    parts = raw.decode("latin-1").split("&")
    return "&".join(part for part in parts if part and unquote_plus(part.partition("=")[0]) not in _OWN)


def _answer(path: str, told: Mapping[str, Told]) -> Response:
    ok = all(found.ok for found in told.values())
    content = msgspec.json.encode({"path": f"/{path}", "ok": ok, "backends": told})
    return Response(content, 200 if ok else 502, media_type="application/json")
