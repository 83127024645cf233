"""Routes of the admin listener: reading by GET, changing by POST only."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from pydantic import AfterValidator, Base64Bytes, BaseModel, Field

from .. import __version__
from ..core.headers import Headers
from ..fleet.broadcast import Broadcaster
from ..fleet.registry import BackendState, Registry
from ..observe.events import KEPT, Events
from ..observe.metrics import CONTENT_TYPE, MetricsPage
from ..observe.reloads import ReloadError
from ..observe.state import StateView
from ..proxy.data import health_answer
from . import broadcast, members
from .access import Access, App, Receive, Scope, Send
from .live import Live

STATIC = Path(__file__).parent / "static"

Explain = Callable[[str, bytes, Headers, bytes], Awaitable[dict[str, Any]]]
"""What tells of a request (method, path, headers, body) whose it is and where it would go."""


class AdminApp:
    """The ASGI application of the admin port; `access` and `inner` may be replaced at any time."""

    def __init__(self, access: Access, inner: App) -> None:
        self.access = access
        self.inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self.access(scope, receive, send, self.inner)


class DrainWish(BaseModel):
    """How a backend should be emptied. `deadline` in seconds; without one, `drain.deadline` of the configuration."""

    deadline: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None


def _writable(value: str) -> str:
    """JSON can hold half of a character, which stands for no bytes."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("holds half of a character, a surrogate without its other one") from None
    return value


Writable = Annotated[str, AfterValidator(_writable)]


class SavedRequest(BaseModel):
    """A request to be explained; `body` is base64."""

    method: Writable = "POST"
    path: Writable
    headers: list[tuple[Writable, Writable]] = []
    body: Base64Bytes = b""


def build(
    *,
    state: StateView,
    metrics: MetricsPage,
    registry: Registry,
    explain: Explain,
    stopping: Callable[[], bool],
    clock: Callable[[], float],
    drain_deadline: float,
    reload: Callable[[], Awaitable[dict[str, object]]],
    add_backend: members.Add,
    remove_backend: members.Remove,
    broadcaster: Broadcaster,
    events: Events,
) -> FastAPI:
    """The FastAPI application; holds no state of its own."""
    app = FastAPI(title="warmroute admin API", version=__version__, docs_url=None, redoc_url=None)
    _explain_errors(app)

    @app.get("/", include_in_schema=False)
    async def dashboard() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    @app.get("/metrics", include_in_schema=False)
    async def metrics_page() -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE)

    _add_reading(app, state)
    _add_live(app, state, events, stopping, clock)

    @app.post("/api/explain")
    async def api_explain(saved: SavedRequest) -> dict[str, object]:
        """Where this request would go, and why; nothing is sent and nothing remembered."""
        headers = [(name.lower().encode(), value.encode()) for name, value in saved.headers]
        return await explain(saved.method.upper(), saved.path.encode(), headers, saved.body)

    _add_drain(app, registry, clock, drain_deadline)
    _add_reload(app, reload)
    members.add(app, add_backend, remove_backend)
    broadcast.add(app, registry, broadcaster)
    _add_health(app, registry, stopping)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


def _add_reading(app: FastAPI, state: StateView) -> None:
    @app.get("/api/state")
    async def api_state() -> dict[str, object]:
        return state.state()

    @app.get("/api/history")
    async def api_history() -> dict[str, object]:
        return state.history()

    @app.get("/api/sessions")
    async def api_sessions(
        limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
        search: Annotated[str, Query(max_length=200)] = "",
    ) -> dict[str, object]:
        """The sessions used last; with `search` those with this text in digest, source or backend."""
        return state.sessions(limit, search)

    @app.get("/api/sessions/{session}/turns")
    async def api_turns(session: str) -> dict[str, object]:
        found = state.turns(session)
        if found is None:
            raise HTTPException(
                404, f"the turns of session {session!r} are not remembered; /api/sessions lists those that are"
            )
        return found


def _add_live(
    app: FastAPI, state: StateView, events: Events, stopping: Callable[[], bool], clock: Callable[[], float]
) -> None:
    def newest(limit: int = KEPT) -> dict[str, object]:
        return {"events": events.newest(limit)}

    live = Live(state.state, state.history, newest, lambda: events.version, stopping, clock)

    @app.get("/api/events")
    async def api_events(limit: Annotated[int, Query(ge=1, le=KEPT)] = KEPT) -> dict[str, object]:
        """Moves, failures, changes of state and reloads, the newest first."""
        return newest(limit)

    @app.get("/api/live")
    async def api_live() -> Response:
        """Server-sent events: `state` each second, `events` when there are new ones, `history` now and then."""
        if stopping() or live.full:
            why = "the router is stopping" if stopping() else "too many pages look already"
            raise HTTPException(503, f"{why}; ask /api/state instead")
        return StreamingResponse(live.stream(), media_type="text/event-stream")


def _explain_errors(app: FastAPI) -> None:
    @app.exception_handler(404)
    @app.exception_handler(405)
    async def explain(request: Request, error: HTTPException) -> JSONResponse:
        """The framework's own errors only name their status: say what would be right instead."""
        told, path, allowed = error.detail, request.url.path, (error.headers or {}).get("Allow", "")
        if told == HTTPStatus(error.status_code).phrase:
            told = (
                f"{path} takes {allowed} and no other method" if allowed else f"{path} is not here; see /openapi.json"
            )
        return JSONResponse({"detail": told}, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def own_fault(request: Request, error: Exception) -> JSONResponse:
        """The server logs the traceback."""
        return JSONResponse({"detail": "the router failed at this request; its log says why"}, 500)

    @app.exception_handler(RequestValidationError)
    async def refuse(request: Request, error: RequestValidationError) -> JSONResponse:
        """One line; the input is not sent back, since not all that JSON can be read from can be written as JSON."""
        told = [f"{'.'.join(map(str, fault['loc'][1:])) or 'the body'}: {fault['msg']}" for fault in error.errors()]
        return JSONResponse({"detail": "; ".join(told)}, 422)


def _add_drain(app: FastAPI, registry: Registry, clock: Callable[[], float], deadline: float) -> None:
    def known(name: str) -> BackendState:
        if name not in registry.backends:
            raise HTTPException(404, f"no backend is named {name!r}; there are {', '.join(registry.backends)}")
        return registry.backends[name]

    def told(backend: BackendState) -> dict[str, object]:
        return {"backend": backend.name, "state": backend.state, "sessions": backend.sessions}

    @app.post("/api/backends/{name:path}/drain")
    async def drain(name: str, wish: DrainWish | None = None) -> dict[str, object]:
        """Give the backend no new sessions; those it has stay until they are idle, or until the deadline."""
        backend = known(name)
        registry.drain(name, True, clock() + ((wish and wish.deadline) or deadline))
        return told(backend)

    @app.post("/api/backends/{name:path}/undrain")
    async def undrain(name: str) -> dict[str, object]:
        """Give the backend new sessions again."""
        backend = known(name)
        if backend.going:
            raise HTTPException(409, f"{name} is being removed; POST its url to /api/backends to keep it")
        registry.drain(name, False)
        return told(backend)


def _add_reload(app: FastAPI, reload: Callable[[], Awaitable[dict[str, object]]]) -> None:
    @app.post("/api/reload")
    async def reload_configuration() -> dict[str, object]:
        """Read the configuration again and put it in force as a whole; 400 or 409, and nothing has changed."""
        try:
            return await reload()
        except ReloadError as error:
            raise HTTPException(409 if error.refused else 400, str(error)) from None


def _add_health(app: FastAPI, registry: Registry, stopping: Callable[[], bool]) -> None:
    @app.api_route("/{path}", methods=["GET", "HEAD"], include_in_schema=False)
    async def health(path: str) -> Response:
        answer = health_answer(f"/{path}", registry.not_ready(), stopping())
        if answer is None:
            raise HTTPException(404, f"/{path} is not here")
        return Response(answer[1], answer[0], media_type="application/json")
