"""Routes of the admin listener: reading by GET, changing by POST only."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from pydantic import Base64Bytes, BaseModel

from .. import __version__
from ..fleet.registry import Registry
from ..observe.metrics import CONTENT_TYPE, MetricsPage
from ..observe.state import StateView
from ..proxy.data import health_answer
from ..proxy.explain import Explainer

STATIC = Path(__file__).parent / "static"

_CSP = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'"


class SavedRequest(BaseModel):
    """A request to be explained; `body` is base64."""

    method: str = "POST"
    path: str
    headers: list[tuple[str, str]] = []
    body: Base64Bytes = b""


def build(
    *,
    state: StateView,
    metrics: MetricsPage,
    registry: Registry,
    explainer: Explainer,
    stopping: Callable[[], bool],
) -> FastAPI:
    """The FastAPI application; holds no state of its own."""
    app = FastAPI(title="warmroute admin API", version=__version__, docs_url=None, redoc_url=None)

    @app.middleware("http")
    async def _harden(request: Request, call_next):  # type: ignore[no-untyped-def]
        response = await call_next(request)
        response.headers["content-security-policy"] = _CSP
        response.headers["x-content-type-options"] = "nosniff"
        response.headers["cache-control"] = "no-cache"
        return response

    @app.get("/", include_in_schema=False)
    async def dashboard() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    @app.get("/metrics", include_in_schema=False)
    async def metrics_page() -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE)

    @app.get("/api/state")
    async def api_state() -> dict[str, object]:
        return state.state()

    @app.get("/api/history")
    async def api_history() -> dict[str, object]:
        return state.history()

    @app.get("/api/sessions")
    async def api_sessions(limit: Annotated[int, Query(ge=1, le=10_000)] = 100) -> dict[str, object]:
        return state.sessions(limit)

    @app.post("/api/explain")
    async def api_explain(saved: SavedRequest) -> dict[str, object]:
        """Where this request would go, and why; nothing is sent and nothing remembered."""
        headers = [(name.lower().encode(), value.encode()) for name, value in saved.headers]
        return explainer.explain(saved.method.upper(), saved.path.encode(), headers, saved.body)

    _add_drain(app, registry)
    _add_health(app, registry, stopping)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


def _add_drain(app: FastAPI, registry: Registry) -> None:
    def switch(name: str, on: bool) -> dict[str, object]:
        if name not in registry.backends:
            raise HTTPException(404, f"no backend is named {name!r}; there are {', '.join(registry.backends)}")
        registry.drain(name, on)
        backend = registry.backends[name]
        return {"backend": name, "state": backend.state, "sessions": backend.sessions}

    @app.post("/api/backends/{name:path}/drain")
    async def drain(name: str) -> dict[str, object]:
        """Give the backend no new sessions; those it has stay."""
        return switch(name, True)

    @app.post("/api/backends/{name:path}/undrain")
    async def undrain(name: str) -> dict[str, object]:
        """Give the backend new sessions again."""
        return switch(name, False)


def _add_health(app: FastAPI, registry: Registry, stopping: Callable[[], bool]) -> None:
    @app.api_route("/{path}", methods=["GET", "HEAD"], include_in_schema=False)
    async def health(path: str) -> Response:
        answer = health_answer(f"/{path}", registry.not_ready(), stopping())
        if answer is None:
            raise HTTPException(404, f"/{path} is not here")
        return Response(answer[1], answer[0], media_type="application/json")
